"""What the host takes of the steps of a run."""

from __future__ import annotations

from policies.core.null_observer import NullObserver
from policies.core.plan import StepPlan, StepResult


class HostTimes(NullObserver):
    """An observer that adds to ``seconds``, by decoding sequences and chunks, what each step took beyond its device
    time."""

    def __init__(self, seconds: dict[tuple[int, int], list[float]]) -> None:
        self._seconds = seconds

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """Add a step that computes."""
        if plan.num_tokens and result.time is not None:
            before_s, _, after_s = result.time
            self._seconds.setdefault((plan.num_seqs, len(plan.chunks)), []).append(before_s + after_s)
