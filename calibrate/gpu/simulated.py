"""Stage 7: every measured run simulated with the fitted costs, its figures and its steps beside the measured ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calibrate.fit import errors_of
from calibrate.gpu.drive import figures
from calibrate.gpu.fitted import COSTS
from policies.catalog import card, model
from policies.core.errors import RunError
from policies.core.plan import Chunk
from sim.costs.load import load_cost_model
from sim.latencies import SHOWN

if TYPE_CHECKING:
    from calibrate.gpu.worker import Check

_MARKS = ("p50", "p95")


def run(check: Check) -> None:
    """One run after the other, and the errors over all."""
    runs, fit = check.found("replay").get("runs", {}), check.found("fit")
    if not runs or "card" not in fit:
        missing = "replay" if not runs else "fit"
        raise RunError(f"the {missing} stage has left nothing to compare; run it first (--stages {missing} --resume)")
    costs_path = str(check.settings.out / COSTS)
    found: dict[str, Any] = {}
    for name, measured in runs.items():
        found[name] = _compare(check, measured, fit["card"], costs_path)
        check.record.keep(runs=found)
        check.say(f"{name}: {in_words(found[name])}")
    check.record.keep(errors=_errors(found))


def _compare(check: Check, measured: Mapping[str, Any], card_name: str, costs_path: str) -> dict[str, Any]:
    try:
        from sim.api import simulate
    except ModuleNotFoundError as error:
        raise RunError(
            f"{error.name} is not installed here; where batchscope is: python -m calibrate.gpu_check --resume --stages"
            f" simulate --out {check.settings.out}"
        ) from None

    hardware = {"name": card_name, "cost_model": costs_path}
    result = simulate({**measured["tables"], "hardware": hardware})
    if result.metrics is None:
        raise RunError(f"a simulation ended as {result.status}: {result.message}")
    theirs, ours = measured["figures"], figures(result.metrics)
    return {
        "measured": theirs,
        "simulated": ours,
        "errors": _relative(theirs, ours),
        "steps": _step_errors(check, measured["steps"], card_name, costs_path),
    }


def _relative(measured: Mapping[str, Any], simulated: Mapping[str, Any]) -> dict[str, float]:
    """Simulated over measured - 1, of all that is compared."""
    found = {}
    for name in SHOWN:
        for mark in _MARKS:
            theirs, ours = ((side[name] or {}).get(mark) for side in (measured, simulated))
            if theirs and ours is not None:
                found[f"{name} {mark}"] = ours / theirs - 1.0
    theirs, ours = (side["output_tokens_per_s"] for side in (measured, simulated))
    if theirs and ours:
        found["output_tokens_per_s"] = ours / theirs - 1.0
    return found


def _step_errors(check: Check, steps: Sequence[Sequence[Any]], card_name: str, costs_path: str) -> dict[str, Any]:
    """Of each measured step, what the fitted model says of its device time, as planned: relative errors by kind. Steps
    that waited for swapped blocks are left out."""
    costs = load_cost_model(model(check.settings.model), card(card_name), costs_path, None)
    by_kind: dict[str, list[float]] = {"decode": [], "prefill": [], "mixed": []}
    for _, _, device_s, num_tokens, num_seqs, sum_context, max_context, chunks, moved in steps:
        if moved or device_s <= 0:
            continue
        kind = "decode" if not chunks else "mixed" if num_seqs else "prefill"
        planned = [Chunk(0, start, tokens, emits) for start, tokens, emits in chunks]
        predicted_s = costs.step_time_s(num_tokens, num_seqs, sum_context, max_context, planned)
        by_kind[kind].append(predicted_s / device_s - 1.0)
    return {
        kind: {**errors_of([abs(error) for error in errors])._asdict(), "bias": statistics.median(errors)}
        for kind, errors in by_kind.items()
        if errors
    }


def _errors(found: Mapping[str, Any]) -> dict[str, Any]:
    """Over all runs, the absolute relative errors of each figure: median and largest."""
    by_name: dict[str, list[float]] = {}
    for run_found in found.values():
        for name, error in run_found["errors"].items():
            by_name.setdefault(name, []).append(abs(error))
    return {name: errors_of(errors)._asdict() for name, errors in by_name.items()}


def in_words(found: Mapping[str, Any]) -> str:
    """The errors of a run on one line."""
    names = ("ttft_s p50", "itl_s p50", "output_tokens_per_s")
    shown = [f"{name} {found['errors'][name]:+.1%}" for name in names if name in found["errors"]]
    decode = found["steps"].get("decode")
    return ", ".join([*shown, *([f"decode steps {decode['bias']:+.1%}"] if decode else [])])
