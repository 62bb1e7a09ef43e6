"""The notebooks run from a clean kernel, and what is saved in them can be seen anywhere."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import NOTEBOOKS, PLOTLY, PNG, ROOT, outputs, run_notebook

pytest.importorskip("nbclient", reason="no nbclient here: pip install 'batchscope[notebooks]'")
pytest.importorskip("ipykernel", reason="no ipykernel here: pip install 'batchscope[notebooks]'")

MOST_BYTES = 400_000
BY_NAME = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
TITLES = (
    "First run",
    "Static against continuous batching",
    "Preemption: swap or recompute?",
    "Replaying a production trace",
    "Writing your own policy",
    "Sweep and capacity",
    "Calibrating and validating",
)


def saved(path: Path) -> Any:
    """The notebook as it is in the repository."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def failed(notebook: Any) -> list[str]:
    return [output["evalue"] for output in outputs(notebook) if output["output_type"] == "error"]


def texts(notebook: Any) -> str:
    """All that the outputs say in words and HTML."""
    parts = []
    for output in outputs(notebook):
        data = output.get("data", {})
        parts += [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
    return "\n".join(parts)


def test_there_is_one_for_each_subject() -> None:
    heads = [saved(path).cells[0].source.splitlines()[0] for path in NOTEBOOKS]
    assert heads == [f"# {title}" for title in TITLES]


@BY_NAME
def test_it_runs_from_a_clean_kernel(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BATCHSCOPE_DATA", str(tmp_path))  # what does not travel with the project is not needed
    ran = run_notebook(path, scale=0.06)
    assert failed(ran) == []
    assert ran.cells[-2].outputs[-1]["text"].count("\n") >= 3, "it ends with a conclusion from its runs"
    figures = [output["data"] for output in outputs(ran) if PLOTLY in output.get("data", {})]
    assert len(figures) == sum(PLOTLY in output.get("data", {}) for output in outputs(saved(path)))


@BY_NAME
def test_what_is_saved_shows_everywhere(path: Path) -> None:
    notebook = saved(path)
    assert path.stat().st_size <= MOST_BYTES
    assert failed(notebook) == []
    assert [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"] == list(
        range(1, 1 + sum(cell.cell_type == "code" for cell in notebook.cells))
    )
    figures = [output["data"] for output in outputs(notebook) if {PLOTLY, PNG} & output.get("data", {}).keys()]
    assert figures
    for figure in figures:
        assert figure.keys() >= {PLOTLY, PNG}
        assert figure[PLOTLY]["data"]
        assert base64.b64decode(figure[PNG]).startswith(b"\x89PNG")


@BY_NAME
def test_nothing_in_it_runs_by_itself_or_belongs_to_one_machine(path: Path) -> None:
    notebook = saved(path)
    said = texts(notebook)
    assert "<script" not in json.dumps(notebook).lower()
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    for word in (str(ROOT), str(Path.home()), "/tmp/", " at 0x", "Traceback"):
        assert word not in said, word
    assert re.search(r"\bnan\b|NaN|inf\b", said) is None


@BY_NAME
def test_it_begins_with_a_question_and_ends_with_a_conclusion(path: Path) -> None:
    cells = saved(path).cells
    assert "**Question:**" in cells[0].source
    assert cells[-3].source == "## Conclusion"
    assert cells[-2].outputs[-1]["output_type"] == "stream"
