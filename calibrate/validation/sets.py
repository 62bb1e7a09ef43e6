"""The named sets of ``batchscope calibrate validate --set``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from calibrate.validation import argonne, serving
from calibrate.validation.anchors import anchors
from calibrate.validation.compare import errors_of, grouped
from calibrate.validation.readme import readme_table
from calibrate.validation.recorded_sets import recorded_runs
from calibrate.validation.run_text import run_lines
from calibrate.validation.text import by_engine_card_figure, left_lines, recipe_line, rows_table, summary_table
from calibrate.validation.untuned import FACTOR, untuned


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


def untuned_lines(data: Path) -> list[str]:
    """The roofline against all dense 16-bit cases of grade A, the rest by cause, and what became of impossible ones."""
    found = untuned(data / "measured")
    rows, within = found.comparison.rows, found.within
    outside = [row for row in rows if row not in within]
    lines = [
        f"roofline with host and communication terms, {len(rows)} dense 16-bit cases of grade A, a figure each:",
        f"  within a factor of {FACTOR:g}: {len(within)} ({100 * len(within) / len(rows):.1f} %)",
        f"  faster than the card's bytes and FLOPs allow: {len(found.below_bound)}",
        f"  graded impossible: {len(found.graded_x)}, of which refused: {len(found.refused)}",
        "",
        *summary_table("absolute error", [*by_engine_card_figure(rows), ("all", list(rows))]),
    ]
    for why, group in grouped(outside, serving.cause).items():
        lines += ["", f"outside a factor of {FACTOR:g}: {why}", *rows_table(group)]
    return [*lines, "", *left_lines(found.comparison)]


def recorded_lines(data: Path) -> list[str]:
    """Each recorded run with the preset's own host time, and with the host's time fitted to it."""
    lines: list[str] = []
    for run, plain, fitted in recorded_runs(data / "e2e"):
        lines += [run.name, f"step costs: {run.costs}", *run_lines(run.served, plain), ""]
        lines += [*run_lines(run.served, fitted), ""]
    return lines[:-1]


def serving_lines(data: Path) -> list[str]:
    """Engines under load: errors by engine, card and figure, the rows beyond 10 % with their causes, the knees."""
    found = serving.serving(data / "measured", vary_pool=True)
    rows = found.comparison.rows
    counted = [row for row in rows if row.figure in (*serving.THROUGHPUT, *serving.TPOT)]
    outside = [row for row in counted if abs(row.error) > serving.OUTSIDE]
    lines = ["engines under load, cases of grade A and B:"]
    for what, figures in (("throughput", serving.THROUGHPUT), ("TPOT", serving.TPOT)):
        every, held_out = (errors_of(found.rows(figures, held_out=held)).median for held in (False, True))
        others = f"of cases not fitted to {100 * held_out:.1f} %"
        lines.append(f"  median absolute error of {what}: {100 * every:.1f} %; {others}")
    lines += ["", *summary_table("absolute error", [*by_engine_card_figure(rows), ("all", list(rows))]), ""]
    lines += [f"{len(outside)} of {len(counted)} figures are off by more than {100 * serving.OUTSIDE:g} %, by cause:"]
    lines += summary_table("cause", list(grouped(outside, serving.cause).items()))
    for why, group in grouped(outside, serving.cause).items():
        lines += ["", f"{why}:", *rows_table(group)]
    lines += ["", "offered rates before the knee (mean TTFT up to 3 times that at the lowest rate):"]
    for knee in found.knees:
        rates = f"of {len(knee.rates)} rates, {knee.rates[0]:g} to {knee.rates[-1]:g} a second"
        lines.append(f"  {knee.name}: measured {knee.measured}, simulated {knee.simulated}, {rates}")
    return [*lines, "", *left_lines(found.comparison)]


def anchor_lines(data: Path) -> list[str]:
    """The cited figures that travel with the project, and whether each is in its band."""
    found = anchors()
    beyond = [anchor.row for anchor in found if not anchor.is_within]
    rows = [anchor.row for anchor in found]
    lines = [*rows_table(rows), "", *summary_table("absolute error", [*by_engine_card_figure(rows), ("all", rows)])]
    lines.append(f"{len(beyond)} of {len(found)} are beyond their band")
    return [*lines, *(rows_table(beyond) if beyond else ())]


SETS: Mapping[str, Callable[[Path], list[str]]] = {
    "anchors": anchor_lines,
    "argonne": argonne_lines,
    "readme": readme_table,
    "recorded": recorded_lines,
    "serving": serving_lines,
    "untuned": untuned_lines,
}
"""Name of a set, and what prints it from the data folder."""
