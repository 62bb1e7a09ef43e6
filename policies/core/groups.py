"""The steps of a group after its first one, for those who drive an engine without a clock of their own."""

from __future__ import annotations

from policies.core.engine import Engine
from policies.core.plan import Finish, StepPlan, StepResult
from policies.core.stops import StopCalendar


def run_rest(engine: Engine, calendar: StopCalendar, plan: StepPlan, now_s: float) -> list[Finish]:
    """Run what the engine does on this plan beyond the step that is complete, all at one instant: nothing, unless its
    policy has ``num_scheduler_steps`` > 1 and the plan decodes. Returns the requests that ended, as ``complete``
    does."""
    ended: list[Finish] = []
    for number in range(1, engine.policy.num_scheduler_steps if plan.num_seqs else 1):
        engine.carry_on(now_s)
        finished = calendar.complete(plan, 1)
        ended += engine.complete(StepResult(plan.step + number, now_s, now_s, finished=finished))
    return ended
