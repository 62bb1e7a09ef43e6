"""The named sets of ``batchscope calibrate validate --set``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from calibrate.validation import argonne
from calibrate.validation.text import left_lines, recipe_line, rows_table, summary_table


def argonne_lines(data: Path) -> list[str]:
    """The leave-one-length-out experiment as a table."""
    found = argonne.leave_one_length_out(data / "measured" / argonne.FILE)
    lines = ["vLLM 0.5, Llama-2-7B on A100 40 GB: each length predicted from the others (LLM-Inference-Bench, Argonne)"]
    for fold in found.folds:
        lines += ["", f"without length {fold.length}: {recipe_line(fold.recipe)}", *rows_table(fold.rows)]
    lines += ["", f"all lengths: {recipe_line(found.recipe)}"]
    if found.others.rows:
        lines += ["the same recipe, untouched, on other models of the card:", *rows_table(found.others.rows)]
    every = [row for fold in found.folds for row in fold.rows]
    named = [(f"length {fold.length}, from the others", fold.rows) for fold in found.folds]
    short = [row for row in every if row.pool is not None]
    models = sorted({row.case.model for row in found.others.rows})
    by_model = [(name, [row for row in found.others.rows if row.case.model == name]) for name in models]
    groups = [
        *named,
        ("all lengths left out in turn", every),
        ("of these, KV pool exhausted", short),
        *by_model,
        ("other models together", list(found.others.rows)),
    ]
    return [*lines, "", *summary_table("absolute error of the time of a batch", groups), *left_lines(found.others)]


SETS: Mapping[str, Callable[[Path], list[str]]] = {"argonne": argonne_lines}
"""Name of a set, and what prints it from the data folder."""
