"""Every step of an executed run beside what the cost model says of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from calibrate.measure_points import Step
from calibrate.measure_rounds import Rounds
from gpu_backend.clock import RealClock
from policies.core.null_observer import NullObserver
from policies.core.plan import StepPlan, StepResult
from sim.costs.model import CostModel
from sim.world.pace import Pace
from sim.world.replica import SwapLink

EDGES = (-0.5, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.5)
"""Where the bins of the histogram of relative errors begin and end; the outer ones are open."""

_WATCH_EVERY = 2
"""Steps of a run for each that is timed between them."""


class DoneStep(NamedTuple):
    """A step that was run, when it began, and its seconds from plan to result."""

    plan: StepPlan
    start_s: float
    seconds: float

    @property
    def kind(self) -> str:
        """What it did."""
        if any(transfer.blocking for transfer in self.plan.transfers):
            return "with a swap"
        if not self.plan.chunks:
            return "decode"
        return "both" if self.plan.num_seqs else "prefill"


class SpeedWatch(NullObserver):
    """An observer that keeps the steps of a run. After each second one ``clock`` stands still and a timed step that is
    much like it is timed once more, which tells how slow the machine is just then.

    Much like it, since the next step of the run comes after this one now: on a CPU a step that decodes takes longer
    after a long prompt.
    """

    def __init__(self, session: Rounds, clock: RealClock) -> None:
        self.steps: list[DoneStep] = []
        self.watched_s: list[float] = []
        self._session, self._clock = session, clock

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """Keep a step. Plans carried on are plans of their own here: real backends run step by step."""
        if plan.num_tokens:
            self.steps.append(DoneStep(plan, result.start_s, result.end_s - result.start_s))
            if len(self.steps) % _WATCH_EVERY == 0:
                self.watched_s.append(self._clock.now_s())
                with self._clock.stopped():
                    self._session.once_more(_like(plan))


def _like(plan: StepPlan) -> Step:
    """A step that a session can time, of as many tokens on as much context."""
    chunks, rows = plan.chunks, plan.num_seqs
    return Step(
        (plan.sum_context // rows + 1,) * rows if rows else (),
        -(-sum(chunk.num_tokens for chunk in chunks) // len(chunks)) if chunks else 0,
        sum(chunk.start for chunk in chunks) // len(chunks) if chunks else 0,
        chunks=len(chunks) or 1,
    )


def predicted_s(plan: StepPlan, costs: CostModel, link: SwapLink) -> float:
    """What the simulator would charge for a step."""
    seconds = costs.step_time_s(plan.num_tokens, plan.num_seqs, plan.sum_context, plan.max_context, plan.chunks)
    for transfer in plan.transfers:
        if transfer.blocking:
            blocks = len(transfer.src)
            seconds += costs.swap_time_s(blocks * link.block_bytes, blocks * link.pieces_per_block)
    return seconds


def step_errors(
    runs: Iterable[tuple[Sequence[DoneStep], Pace]], costs: CostModel, link: SwapLink
) -> dict[str, dict[str, Any]]:
    """Of runs, each at its pace, by kind of step: how many, the median and mean of the measured seconds, the sum's
    error, the median of the absolute errors, and how many errors lie in each bin of ``EDGES``."""
    by_kind: dict[str, list[tuple[float, float]]] = {}
    for steps, pace in runs:
        for step in steps:
            seconds = pace(step.start_s) * predicted_s(step.plan, costs, link)
            by_kind.setdefault(step.kind, []).append((step.seconds, seconds))
    by_kind["all"] = [pair for pairs in by_kind.values() for pair in pairs]
    return {kind: _errors(pairs) for kind, pairs in by_kind.items() if pairs}


def _errors(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    measured = [pair[0] for pair in pairs]
    errors = [predicted / seconds - 1 for seconds, predicted in pairs]
    return {
        "steps": len(pairs),
        "median_s": statistics.median(measured),
        "mean_s": statistics.fmean(measured),
        "error_of_sum": sum(pair[1] for pair in pairs) / sum(measured) - 1,
        "median_error": statistics.median(errors),
        "median_abs_error": statistics.median(abs(error) for error in errors),
        "histogram": _histogram(errors),
    }


def _histogram(errors: Sequence[float]) -> list[int]:
    bounds = [float("-inf"), *EDGES, float("inf")]
    return [sum(low <= error < high for error in errors) for low, high in pairwise(bounds)]
