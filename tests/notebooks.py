"""Runs the notebooks: ``python -m tests.notebooks`` executes all of them in place and saves what they show.

A figure is saved as plotly's JSON and as a PNG picture beside it, for viewers without scripts; drawing the picture
needs Chromium (``BATCHSCOPE_CHROMIUM`` names it) and the extra ``notebooks``.
"""

from __future__ import annotations

import base64
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))

SCALE = "BATCHSCOPE_NOTEBOOK_SCALE"
"""The environment variable by which every notebook scales the size of its runs; 1 where it is absent."""

PLOTLY, PNG = "application/vnd.plotly.v1+json", "image/png"


def run_notebook(path: Path, *, scale: float = 1.0, pictures: bool = False) -> Any:
    """The notebook executed in a kernel and a folder of its own; raises nbclient's CellExecutionError."""
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Between processes of one machine: no port, and none of the warnings about one.
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(Path(folder, "kernel")))
        client = NotebookClient(
            notebook,
            km=kernel,
            timeout=600,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute(cleanup_kc=True, env=_environment(scale, pictures))
    return _settled(notebook)


def _environment(scale: float, pictures: bool) -> dict[str, str]:
    """Of the kernel: this checkout, the data, how figures are shown."""
    found = {**os.environ, SCALE: f"{scale:g}", "OMP_NUM_THREADS": "1"}
    found["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    found["BATCHSCOPE_DATA"] = str((ROOT / os.environ.get("BATCHSCOPE_DATA", "../shared/data")).resolve())
    found["PLOTLY_RENDERER"] = "plotly_mimetype+png" if pictures else "plotly_mimetype"
    if pictures:
        found["BROWSER_PATH"] = _chromium()
    return found


def _chromium() -> str:
    found = os.environ.get("BATCHSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        sys.exit("notebooks: pictures of figures need Chromium; install it, or name it in BATCHSCOPE_CHROMIUM")
    return found


def _settled(notebook: Any) -> Any:
    """Without what differs from machine to machine though the results are the same."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    for place, cell in enumerate(notebook.cells, 1):
        cell.id, cell.metadata = f"cell-{place}", {}
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            data.get(PLOTLY, {}).pop("config", None)
            if PNG in data:
                data[PNG] = _few_colours(data[PNG])
    return notebook


def _few_colours(encoded: str) -> str:
    """The picture with a palette of its own, a quarter of the size."""
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB")
    small = io.BytesIO()
    picture.quantize(128, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode("ascii")


def outputs(notebook: Any) -> Iterator[Any]:
    """What all cells show, in order."""
    for cell in notebook.cells:
        yield from cell.get("outputs", ())


def main(names: list[str]) -> None:
    """Execute the notebooks whose names contain one of ``names``, by default all, and save them."""
    import nbformat

    for path in NOTEBOOKS:
        if not names or any(name in path.name for name in names):
            notebook = run_notebook(path, pictures=True)
            nbformat.write(notebook, path)
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:,.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
