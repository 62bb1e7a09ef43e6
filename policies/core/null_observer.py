"""An observer that notes nothing."""

from __future__ import annotations

from policies.core.plan import Finish, StepPlan, StepResult
from policies.core.request import Request


class NullObserver:
    """Hears everything a StepObserver is told and notes nothing; the base of those that note one thing."""

    def on_arrival(self, request: Request, now_s: float) -> None:
        """Nothing is noted."""

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """Nothing is noted."""

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """Nothing is noted."""

    def on_finish(self, finish: Finish, now_s: float) -> None:
        """Nothing is noted."""
