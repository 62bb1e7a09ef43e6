"""What ``batchscope calibrate`` runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibrate.fit import fit
from policies.catalog import card, model
from policies.core.errors import CostFileError

_ROWS = {
    "step": "step, held out, all",
    "step_decode": "step, held out, decode",
    "step_prefill": "step, held out, prefill",
    "step_chunk_on_context": "step, held out, chunk on cached tokens",
    "linear_between_sizes": "linear term, between measured sizes",
    "decode_attention": "decode attention alone, all points",
    "prefill_attention": "prefill attention alone, all points",
}


def run_fit(data: str, model_name: str, hardware: str, out: str, tp: int = 1) -> str:
    """Fit a cost file from the tables in ``data``, write it to ``out``, and return the table of its errors. With ``tp``
    it is that of one GPU of so many.

    ``data`` is the folder of the operator tables or the one above its ``profiles``.
    """
    folder = Path(data)
    if (folder / "profiles").is_dir():
        folder = folder / "profiles"
    if not folder.is_dir():
        raise CostFileError(
            f"--data {data}: no such folder; name the folder of the operator tables (docs/calibrate.md)"
        )
    cost_file = fit(model(model_name), card(hardware), folder, tp)
    write_json(cost_file, Path(out))
    return f"{describe_fit(cost_file)}\nwritten: {out}"


def write_json(content: dict[str, Any], path: Path) -> None:
    """Write JSON, lists of numbers on one line."""
    text = json.dumps(content, indent=1)
    try:
        path.write_text(_joined_lists(text) + "\n", encoding="utf-8")
    except OSError as error:
        raise CostFileError(
            f"--out {path}: cannot be written ({error.strerror}); choose another path"
        ) from None


def describe_fit(cost_file: dict[str, Any]) -> str:
    """The relative errors of a cost file by term, as a plain table."""
    lines = [f"{cost_file['name']} version {cost_file['version']}: relative error, %"]
    lines.append(f"{'':40}{'median':>8}{'p95':>8}{'max':>8}{'points':>8}")
    for key, title in _ROWS.items():
        row = cost_file["held_out"].get(key)
        if row is None:
            continue
        figures = "".join(f"{100 * row[name]:8.2f}" for name in ("median", "p95", "max"))
        lines.append(f"{title:40}{figures}{row['points']:8d}")
    return "\n".join(lines)


def _joined_lists(text: str) -> str:
    """Put the numbers of each list on one line: the tables have hundreds."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if inside:
            lines[-1] += (" " if lines[-1].endswith(",") else "") + line.strip()
        else:
            lines.append(line)
        inside = line.endswith("[") or (inside and not line.lstrip().startswith("]"))
    return "\n".join(lines)
