"""A simulated engine that runs several decode steps on one plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.core.plan import Chunk, Finish, QuietRun, StepPlan
from sim.world.replica import Replica, StepCosts


class GroupCosts:
    """The durations of groups of ``steps`` decode steps, from those of steps.

    A group lasts as long as its steps one after the other, each on contexts one token longer, but what the host takes
    is paid once, as far as the costs know it (``host_time_s``, of so many sequences): the engine schedules, prepares
    inputs and processes outputs once a group. Prompts and transfers are as before.
    """

    def __init__(self, costs: StepCosts, steps: int) -> None:
        self._costs, self._steps = costs, steps
        self._host_time_s: Callable[[int], float] | None = getattr(costs, "host_time_s", None)
        self.swap_time_s = costs.swap_time_s

    def decode_curve(
        self, num_seqs: int, num_tokens: int, sum_context: int, max_context: int
    ) -> tuple[float, float, int]:
        """A quiet run of one group, as if it were one step."""
        return self._group_s(num_seqs, num_tokens, sum_context, max_context), 0.0, 1

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        """Seconds of a step that computes prompts, or of a group."""
        if chunks:
            return self._costs.step_time_s(num_tokens, num_seqs, sum_context, max_context, chunks)
        return self._group_s(num_seqs, num_tokens, sum_context, max_context)

    def _group_s(self, num_seqs: int, num_tokens: int, sum_context: int, max_context: int) -> float:
        left, group_s = self._steps, 0.0
        while left:
            base_s, slope_s, until_knot = self._costs.decode_curve(num_seqs, num_tokens, sum_context, max_context)
            steps = min(left, until_knot)
            group_s += QuietRun(0.0, base_s, slope_s, sum_context, num_seqs).end_s(steps)
            sum_context += steps * num_seqs
            max_context += steps
            left -= steps
        if self._host_time_s is not None:
            group_s -= (self._steps - 1) * self._host_time_s(num_seqs)
        return group_s


class GroupReplica(Replica):
    """A replica whose policy plans several decode steps at once (``policy.num_scheduler_steps`` > 1); its costs are
    ``GroupCosts``.

    What comes in while a group runs waits for its end, and so do the tokens that the group makes. So its first step is
    booked with all of its time, and the others with none, each with the rows that have not stopped: the record holds
    the times of delivery. All are charged with the rows of the plan.
    """

    def _book(
        self, plan: StepPlan, run: QuietRun | None, step: int, first: int, steps: int, end_s: float
    ) -> Sequence[Finish]:
        """Book a group as a whole, or a step that computes prompts."""
        ended = super()._book(plan, run, step, first, steps, end_s)
        if not plan.num_seqs:
            return ended
        told = [*ended]
        rest = QuietRun(end_s, 0.0, 0.0, plan.sum_context + plan.num_seqs, plan.num_seqs)
        left, done = self._engine.policy.num_scheduler_steps - 1, 0
        while left:
            steps = min(left, self._calendar.steps_to_stop()) if self._skip_ahead else 1
            self._engine.carry_on(end_s)
            told += super()._book(plan, rest, step + 1 + done, done, steps, end_s)
            left, done = left - steps, done + steps
        return told
