"""Stage 6: the scenarios on the real model."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from calibrate.gpu.drive import drive, figures
from calibrate.gpu.scenarios import Scenario, scenarios
from calibrate.transfers import by_direction
from policies.core.errors import RunError

if TYPE_CHECKING:
    from calibrate.gpu.worker import Check

CPU_DIVISOR = 10


def divisor(on_cuda: bool) -> int:
    """What a CPU divides requests and lengths by."""
    return 1 if on_cuda else CPU_DIVISOR


def run(check: Check) -> None:
    """All scenarios, each kept as soon as it is over; what the time does not allow is named in the end."""
    check.drop("timer")  # its pool is the memory of these
    release(check)
    left = scenarios(check.model.shape, divisor(check.settings.on_cuda))
    runs: dict[str, Any] = {}
    check.record.keep(runs=runs)
    missed, errors = [], []
    for scenario in left:
        if check.left_s() <= 0:
            missed.append(scenario.name)
            continue
        try:
            runs[scenario.name] = _run(check, scenario)
        except RunError as error:
            errors.append(f"{scenario.name}: {error}")
            continue
        check.record.keep(runs=runs, missed=missed)
        check.say(f"{scenario.name}: {in_words(runs[scenario.name]['figures'])}")
    check.record.keep(missed=missed)
    if missed or errors:
        raise RunError("; ".join([*errors, *([f"no time was left for {', '.join(missed)}"] if missed else [])]))


def _run(check: Check, scenario: Scenario) -> dict[str, Any]:
    driven = drive(check.model, scenario.tables, max_time_s=max(check.left_s(), 1.0))
    found = {
        "tables": scenario.tables,
        "figures": figures(driven.metrics) | {"preemptions": driven.preemptions},
        "steps": [_rounded(step) for step in driven.steps],
        "swapped": by_direction(driven.moved),
    }
    del driven
    release(check)
    return found


def release(check: Check) -> None:
    """Give the memory of a run back, graphs included."""
    gc.collect()
    if check.settings.on_cuda:
        import torch

        torch.cuda.empty_cache()


def _rounded(step: Any) -> list[Any]:
    """A step as a row of JSON: ``StepLine``'s fields, times to a tenth of a microsecond, chunks as (cached, tokens,
    emits)."""
    start_s, end_s, device_s, *sizes, chunks, moved = step
    times = [round(value, 7) for value in (start_s, end_s, device_s)]
    return [*times, *sizes, [[start, tokens, emits] for _, start, tokens, emits in chunks], moved]


def in_words(found: dict[str, Any]) -> str:
    """The figures of a run on one line."""
    ttft, itl = found["ttft_s"], found["itl_s"]
    words = [f"{found['output_tokens_per_s']:.1f} tokens/s" if found["output_tokens_per_s"] else "no tokens"]
    if ttft:
        words.append(f"TTFT {1e3 * ttft['p50']:.1f} / {1e3 * ttft['p95']:.1f} ms")
    if itl:
        words.append(f"ITL {1e3 * itl['p50']:.2f} / {1e3 * itl['p95']:.2f} ms")
    if found["preemptions"]:
        words.append(f"{found['preemptions']} preemptions")
    return ", ".join(words)
