"""A simulated engine that plans its next steps before it knows the tokens of the last one."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

from policies.core.plan import NO_EMITTED, Decode, Finish, Idle, QuietRun, StepPlan, StepResult, end_of
from sim.world.replica import Replica

_ALL: Final = Decode.ALL
_new_tuple: Final = tuple.__new__


def _is_quiet(plan: StepPlan) -> bool:
    """``plan.is_quiet``, by place: compiled, that is the cheapest way into a tuple."""
    return plan[5] is _ALL and not plan[6] and not plan[12]


class AheadReplica(Replica):
    """A replica whose policy schedules ahead (``policy.max_in_flight`` > 1).

    The loop of such an engine: plan; if as many plans as it makes ahead are in flight, or there is nothing to plan,
    wait for the result of the oldest one. Steps run on the device one after the other without a gap, so what comes in
    while one runs is seen by the plan made at its end, and computed a step later than without planning ahead.

    A quiet plan is carried on within its horizon while nothing comes in and nobody ends. Once nothing else is in
    flight, its steps are jumped over as those of any replica; the one in flight when a jump ends has begun by then.
    (An engine that makes more than one plan ahead, which none does, is asked for every step.)
    """

    def _add_state(self) -> None:
        # The plan of each step in flight, without the one that runs (few: a list is quickest at both ends); steps that
        # the last one may be carried on, and if it still may; those that it has been carried on, of which the engine is
        # told when a step is booked.
        self._later: list[StepPlan] = []
        self._left = self._untold = 0
        self._carries = False
        self._arrivals_matter_later = True
        # Of the step that runs, beside what any replica knows of it: its plan and number, and of its quiet run, the
        # contexts at the anchor and where it ends.
        self._plan: StepPlan | None = None
        self._step = 0
        self._context = self._max_context = self._knot = 0

    def _live(self) -> Generator[None, None, None]:
        """Plan, wait for the oldest plan's end, book it, and so on; yields as ``Replica`` does."""
        agenda = self._agenda
        while True:
            start_s = self.last_boundary_s
            plan = self._next(start_s)
            if plan is None:
                self._run = None
                yield
                continue
            end_s = self._begin(plan, start_s)
            first = self._first
            if agenda.advance(end_s):
                answered = self._book(plan, self._run, self._step, first, self._target, end_s)
                self._go_on(first + self._target)
                if not answered or agenda.is_last_of_now():
                    continue
            else:
                self._is_running, self.end_s = True, end_s
                if not agenda.wait(self):
                    self._queue_end()
                    yield
                    self._end_event = None
                self._go_on(self._book_waited(plan, self._run, self._step))
                if self._stopping:
                    break
                if agenda.is_last_of_now():
                    self._take_in(agenda.now)
                    continue
            self._plan_soon()
            yield
        self._take_in(agenda.now)
        self._clock.end()

    # -- plans -------------------------------------------------------------------------------------------------------

    def _next(self, now_s: float) -> StepPlan | None:
        """The oldest plan, with as many behind it as this engine makes ahead or finds to make; None if there is none.
        The device has just ended the step before, or had nothing to do."""
        later, depth = self._later, self._engine.policy.max_in_flight
        while len(later) < depth:
            if self._left and self._carries:
                self._left -= 1
                self._untold += 1
                later.append(later[-1])
            elif not self._make(now_s):
                break
        return later.pop(0) if later else None

    def _make(self, now_s: float) -> bool:
        """Put one more plan in flight; False if there is nothing to plan."""
        plan = self._engine.plan(now_s)
        self._left = 0
        if isinstance(plan, Idle):
            if plan.rejected:
                self._reject(plan.rejected, now_s)
            if not self._later:
                self._wake(plan.wake_at_s)
            return False
        self.counts.plans += 1
        if plan[11]:
            self._reject(plan[11], now_s)
        if plan[7] or plan[9]:
            self._calendar.apply(plan)
        self._later.append(plan)
        if _is_quiet(plan):
            self.counts.quiet_plans += 1
            if self._skip_ahead and self._engine.policy.max_in_flight == 2:
                self._left, self._arrivals_matter_later = self._engine.policy.horizon()
                self._carries = True
        return True

    def _begin(self, plan: StepPlan, start_s: float) -> float:
        """The next step or jump begins; returns its end."""
        self._target, self._arrivals_matter = 1, True
        run, first, num_seqs = self._run, self._first, plan[1]
        if plan is not self._plan:
            self._plan, self._step = plan, plan[0]
            if not _is_quiet(plan):
                self._run = None
                return start_s + self._duration_s(plan, start_s)
            if run is None or plan[7] or plan[9] or plan[10]:
                run, self._context, self._max_context = None, plan[3], plan[4]
        if run is not None and first >= self._knot:
            run = None
            self._context, self._max_context = self._context + first * num_seqs, self._max_context + first
        if run is None:
            context = self._context
            base_s, slope_s, self._knot = self._costs.decode_curve(num_seqs, plan[2], context, self._max_context)
            self._run = run = _new_tuple(QuietRun, (start_s, base_s, slope_s, context, num_seqs))
            self._first = 0
        if self._left and self._later and self._later[-1] is plan:
            self._target = min(min(self._left + 1, self._calendar.steps_to_stop()), self._knot - self._first)
            self._arrivals_matter = self._arrivals_matter_later
        return end_of(run, self._first + self._target)

    # -- boundaries --------------------------------------------------------------------------------------------------

    def _book(
        self, plan: StepPlan, run: QuietRun | None, step: int, first: int, steps: int, end_s: float
    ) -> Sequence[Finish]:
        """Book steps of the oldest plan in flight, as any replica does; what a later plan took out of the batch loses
        its token of this step, if it still lives."""
        engine, later = self._engine, self._later
        carried = self._untold + steps - 1
        if carried:
            # The last of these steps has been in flight since the one before the last that is booked here has ended.
            self._untold = 0
            engine.carry_on(self.last_boundary_s if run is None else end_of(run, first + steps - 1), carried)
        if run is not None:
            self.counts.quiet_steps += steps
        finished = self._calendar.complete(plan, steps, later)
        gone = [key for other in later if other is not plan for key in other[9] if key in self._calendar]
        emitted = dict.fromkeys(gone, 0) if gone else NO_EMITTED
        result = _new_tuple(StepResult, (
            step, self.last_boundary_s, end_s, steps, finished, run, first, None, emitted, (), 0
        ))  # fmt: skip
        self.last_boundary_s = end_s
        ended = engine.complete(result)
        if finished:
            self._carries = False
        if ended:
            self._on_end(ended, end_s)
        return ended

    def _book_waited(self, plan: StepPlan, run: QuietRun | None, step: int) -> int:
        """As of any replica, but the step in flight when a request came was planned without it, and is booked alone."""
        first, end = self._first, self._first + self._target
        was_planned_before = False
        while run is not None and first + 1 < end:
            steps = end - first
            if was_planned_before:
                steps, was_planned_before = 1, False
            elif self._arrivals:
                steps = run.steps_until(self._arrivals[0][0].arrival_s, first + 1, end) - first
            if first + steps == end:
                break
            now_s = end_of(run, first + steps)
            self._book(plan, run, step, first, steps, now_s)
            step, first = step + steps, first + steps
            while self._arrivals and self._arrivals[0][0].arrival_s <= now_s:
                self._take_first(now_s)
                was_planned_before = True
            self._untold += 1
        self._book(plan, run, step, first, end - first, self._agenda.now)
        self._is_running = False
        return end

    def _go_on(self, first: int) -> None:
        """The next step is number ``first`` of the run."""
        steps = first - self._first
        self._first = first
        self._step += steps
        self._left -= steps - 1

    def _take_in(self, now_s: float) -> None:
        if self._arrivals or self._aborts or self._transfers_done:
            self._carries = False
        super()._take_in(now_s)
