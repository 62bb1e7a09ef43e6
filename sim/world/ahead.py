"""A simulated engine that plans its next steps before it knows the tokens of the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence

from policies.core.plan import Finish, StepPlan, StepResult
from sim.world.replica import Replica


class AheadReplica(Replica):
    """A replica whose policy schedules ahead (``policy.max_in_flight`` > 1).

    The loop of such an engine: plan; if as many plans as it makes ahead are in flight, or there is nothing to plan,
    wait for the result of the oldest one. Steps run on the device one after the other without a gap, so what comes in
    while one runs is seen by the plan made at its end, and computed a step later than without planning ahead. Each
    step is planned, so there are no quiet runs.
    """

    def _live(self) -> Generator[None, None, None]:
        """Plan, wait for the oldest plan's end, book it, and so on; yields as ``Replica`` does."""
        clock, engine, calendar, counts = self._clock, self._engine, self._calendar, self.counts
        depth = engine.policy.max_in_flight
        in_flight: deque[StepPlan] = deque()
        while True:
            now_s = self.last_boundary_s
            plan = engine.plan(now_s)
            if plan.rejected:
                self._reject(plan.rejected, now_s)
            if isinstance(plan, StepPlan):
                counts.plans += 1
                calendar.apply(plan)
                in_flight.append(plan)
                if len(in_flight) < depth:
                    continue
            elif not in_flight:
                self._wake(plan.wake_at_s)
                yield
                continue
            oldest = in_flight.popleft()
            # The device has just ended the step before, or had nothing to do.
            end_s = now_s + self._duration_s(oldest, now_s)
            if clock.advance(end_s):
                if not self._book_oldest(oldest, in_flight, now_s, end_s) or clock.is_last_of_now():
                    continue
            else:
                self._run, self._target = None, 1
                self._is_running, self.end_s = True, end_s
                if not clock.wait(self):
                    self._queue_end()
                    yield
                    self._end_event = None
                self._book_oldest(oldest, in_flight, now_s, end_s)
                self._is_running = False
                if self._stopping:
                    break
                if clock.is_last_of_now():
                    self._take_in(end_s)
                    continue
            self._plan_soon()
            yield
        self._take_in(clock.now)
        clock.end()

    def _book_oldest(
        self, plan: StepPlan, later: Sequence[StepPlan], start_s: float, end_s: float
    ) -> Sequence[Finish]:
        """Book the oldest plan in flight; returns the requests whose clients were told that they ended."""
        finished = self._calendar.complete(plan, 1, later)
        # What a later plan took out of the batch loses its token of this step, if it still lives.
        lost = {request_id: 0 for other in later for request_id in other.leaves}
        self.last_boundary_s = end_s
        ended = self._engine.complete(StepResult(plan.step, start_s, end_s, finished=finished, emitted=lost))
        if ended:
            self._on_end(ended, end_s)
        return ended
