"""The accuracy table of the README: one command makes it, with its date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from calibrate.dates import today
from calibrate.validation import argonne, serving
from calibrate.validation.compare import Row, errors_of
from calibrate.validation.recorded_sets import recorded_runs
from calibrate.validation.text import percent
from calibrate.validation.untuned import FACTOR, untuned


def readme_table(data: Path) -> list[str]:
    """A Markdown table: what was predicted, how many figures, their error."""
    lines = [
        f"Made on {today()} by `batchscope calibrate validate --set readme`; all figures are published measurements of"
        " others.",
        "",
        "| simulated against measured | figures | mean or median error | worst |",
        "|---|--:|--:|--:|",
    ]
    return [*lines, *_argonne(data), *_recorded(data), *_serving(data), *_untuned(data)]


def _argonne(data: Path) -> Iterator[str]:
    found = argonne.leave_one_length_out(data / "measured" / argonne.FILE)
    rows = [row for fold in found.folds for row in fold.rows]
    what = "vLLM 0.5, Llama-2-7B, A100 40 GB, each length predicted from the others"
    yield _line(what, rows)
    yield _line("of these, with the KV pool exhausted", [row for row in rows if row.pool is not None])
    yield _line("the same recipe, untouched, on other 7-8B models of the card", found.others.rows)


def _line(what: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"| {what} | 0 | - | - |"
    errors = errors_of(rows)
    return f"| {what} | {errors.rows} | mean {100 * errors.mean:.1f} % | {percent(errors.worst)} |"


def _recorded(data: Path) -> Iterator[str]:
    for run, plain, fitted in recorded_runs(data / "e2e"):
        words = run.name.split("_")
        about = (
            f"recorded run of vLLM 0.19, {words[-1]} on {words[1]} (LLMServingSim): mean, p50, p99 of TTFT, TPOT, E2E"
        )
        for how, found in (
            ("preset's host time, itself fitted to this run", plain),
            ("with a time a request fitted, too", fitted),
        ):
            errors = [line.error for line in found.lines]
            mean = sum(map(abs, errors)) / len(errors)
            yield f"| {about}; {how} | {len(errors)} | mean {100 * mean:.1f} % | {percent(max(errors, key=abs))} |"


def _serving(data: Path) -> Iterator[str]:
    found = serving.serving(data / "measured", vary_pool=False)
    engines = "LMDeploy, TensorRT-LLM, SGLang, vLLM under load, A100 to H200, 7B to 70B, cases not fitted to"
    for what, figures in (("throughput", serving.THROUGHPUT), ("TPOT", serving.TPOT)):
        errors = errors_of(found.rows(figures, held_out=True))
        yield f"| {engines}: {what} | {errors.rows} | median {100 * errors.median:.1f} % | {percent(errors.worst)} |"
    apart = [knee.steps_apart for knee in found.knees]
    near = sum(steps <= 1 for steps in apart)
    what = "rate at which queues form, within one step of the offered rates"
    yield f"| {what} | {len(apart)} | {near} of {len(apart)} | |"


def _untuned(data: Path) -> Iterator[str]:
    found = untuned(data / "measured")
    rows = found.comparison.rows
    share = 100 * len(found.within) / len(rows)
    what = f"roofline with host and communication terms, dense 16-bit cases: within a factor of {FACTOR:g}"
    yield f"| {what} | {len(rows)} | {share:.1f} % of them | {len(found.below_bound)} faster than the card |"
    refused = f"{len(found.refused)} of {len(found.graded_x)} refused"
    yield f"| measurements graded impossible | {len(found.graded_x)} | {refused} | |"
