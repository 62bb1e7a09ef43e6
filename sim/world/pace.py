"""Costs of a machine whose speed changes while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.core.null_observer import NullObserver
from policies.core.plan import Chunk, StepPlan
from sim.costs.model import CostModel

Pace = Callable[[float], float]
"""How many times as long as the costs say what begins at that second of a run takes."""


class PacedCosts(NullObserver):
    """The durations of ``costs`` times the pace when a step begins. The engine tells this observer when that is, so
    every step is asked for by itself: no quiet run is longer than one. Where an engine plans ahead, a step that is
    carried on takes the pace at which the step before it began."""

    def __init__(self, costs: CostModel, pace: Pace) -> None:
        self._costs, self._pace, self._factor = costs, pace, 1.0

    def decode_curve(
        self, num_seqs: int, num_tokens: int, sum_context: int, max_context: int
    ) -> tuple[float, float, int]:
        """A quiet run of one step."""
        base_s, slope_s, _ = self._costs.decode_curve(num_seqs, num_tokens, sum_context, max_context)
        return self._factor * (base_s + slope_s * sum_context), 0.0, 1

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        """Seconds of a step."""
        return self._factor * self._costs.step_time_s(num_tokens, num_seqs, sum_context, max_context, chunks)

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """Seconds of one transfer."""
        return self._factor * self._costs.swap_time_s(num_bytes, pieces)

    def host_time_s(self, num_seqs: int) -> float:
        """Seconds of the host's part of a step."""
        return self._factor * self._costs.host_time_s(num_seqs)

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """Note how slow the machine is now."""
        self._factor = self._pace(now_s)
