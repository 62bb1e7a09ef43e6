"""One simulated engine: it plans, lets the cost model say how long the plan takes, and books the result at its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple, Protocol

from simpy.events import Event

from policies.core.engine import Engine
from policies.core.plan import (
    NO_EMITTED,
    Chunk,
    Decode,
    Finish,
    Idle,
    QuietRun,
    StepPlan,
    StepResult,
    Transfer,
    end_of,
)
from policies.core.request import Request, RequestId
from policies.core.stops import Stop, StopCalendar
from sim.world.clock import At, Clock, Timed

_ALL: Final = Decode.ALL
_STEP_END: Final = At.STEP_END
_new_tuple: Final = tuple.__new__


class StepCosts(Protocol):
    """Durations of steps, in seconds."""

    def decode_curve(
        self, num_seqs: int, num_tokens: int, sum_context: int, max_context: int
    ) -> tuple[float, float, int]:
        """``(base_s, slope_s, steps)`` of a quiet run, valid for that many steps."""

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        """Duration of one step of any kind, without transfers."""

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """Duration of one transfer."""


class SwapLink(NamedTuple):
    """What a transfer of KV blocks costs: bytes and copies a block."""

    block_bytes: int = 0
    pieces_per_block: int = 1


class Counts:
    """How the replica spent its steps."""

    def __init__(self) -> None:
        self.plans = 0
        self.quiet_plans = 0
        self.quiet_steps = 0
        self.swapped_out_bytes = 0
        self.swapped_in_bytes = 0


class Replica:
    """Drives one engine on the simulated clock.

    A quiet run is jumped over: one event at its end, which is where the policy's horizon, the next row that stops, or
    the cost model's next knot ends it. What comes in meanwhile waits in the inbox for a step boundary, as it would for
    a real engine; if it can matter, the jump is cut at the first boundary at or after it. Nothing is booked ahead.
    """

    def __init__(
        self,
        clock: Clock,
        engine: Engine,
        costs: StepCosts,
        on_end: Callable[[Sequence[Finish], float], None],
        *,
        link: SwapLink,
        skip_ahead: bool = True,
    ) -> None:
        self.counts = Counts()
        self.last_boundary_s = 0.0
        self._clock, self._engine, self._costs, self._on_end = clock, engine, costs, on_end
        self._agenda = clock.agenda
        self._link = link
        self._skip_ahead = skip_ahead
        self._calendar = StopCalendar()
        self._arrivals: deque[tuple[Request, Stop]] = deque()
        self._aborts: list[RequestId] = []
        self._transfers: dict[int, Transfer] = {}
        self._transfers_done: list[int] = []
        self._link_free_s = 0.0
        self._plan_is_due = False
        self._is_running = False
        self._stopping = False
        # Of the step or jump that runs: its quiet run, the place in it of its first step, its length, and its end.
        self._run: QuietRun | None = None
        self._first = 0
        self._target = 1
        self._arrivals_matter = True
        self.end_s = 0.0
        self._end_event: Timed | None = None
        self._add_state()
        self._life = self._live()

    def _add_state(self) -> None:
        """Where a kind of replica begins what it keeps beside the above."""

    # -- what comes in -----------------------------------------------------------------------------------------------

    def arrive(self, request: Request, stop: Stop) -> Finish | None:
        """A request comes in now; returns its end if the engine refuses it at the door."""
        now = request.arrival_s
        refused = self._engine.refuse(request, now)
        if refused is None:
            self._arrivals.append((request, stop))
            if not self._is_running:
                self._plan_soon()
            elif self._arrivals_matter:
                self._cut(now)
        return refused

    def turn_away(self, request: Request, reason: str) -> Finish:
        """A request comes in now and is not let in."""
        return self._engine.turn_away(request, reason, self._agenda.now)

    def abort(self, request_id: RequestId) -> None:
        """A client goes away now; the engine sees it at the next step boundary."""
        self._aborts.append(request_id)
        self._came_in()

    def stop(self) -> None:
        """End at the first step boundary from now on."""
        self._stopping = True
        now_s = self._agenda.now
        if self._is_running:
            self._cut(now_s)
            return
        if self._plan_is_due:
            self.last_boundary_s = now_s
            self._take_in(now_s)
        self._clock.end()

    def _came_in(self) -> None:
        """Something lies in the inbox that may change the next plan."""
        if self._is_running:
            self._cut(self._agenda.now)
        else:
            self._plan_soon()

    def _plan_soon(self) -> None:
        if not self._plan_is_due:
            self._plan_is_due = True
            self._clock.event_at(self._agenda.now, At.PLAN, self._on_plan)

    def _cut(self, time_s: float) -> None:
        """End the jump at the first step boundary at or after ``time_s``."""
        run = self._run
        if run is not None and self._target > 1:
            first = self._first
            target = run.steps_until(time_s, first + 1, first + self._target) - first
            if target < self._target:
                self._target = target
                self.end_s = end_of(run, first + target)
                if self._end_event is not None:
                    self._end_event.cancel()
                    self._queue_end()

    # -- steps -------------------------------------------------------------------------------------------------------

    def _on_plan(self, event: Event) -> None:
        self._plan_is_due = False
        if not self._is_running and not self._stopping:
            self.last_boundary_s = now_s = self._agenda.now
            self._take_in(now_s)
            next(self._life, None)

    def _on_step_end(self, event: Event) -> None:
        next(self._life, None)

    def _live(self) -> Generator[None, None, None]:
        """Plan, let the step or jump run, book it, and so on. This yields when something else happens before the step
        ends, and when nothing can run."""
        agenda, engine, calendar, counts = self._agenda, self._engine, self._calendar, self.counts
        curve, horizon = self._costs.decode_curve, engine.policy.horizon
        run: QuietRun | None = None
        first = knot = 0
        while True:
            start_s = self.last_boundary_s
            plan = engine.plan(start_s)
            if plan.rejected:
                self._reject(plan.rejected, start_s)
            if isinstance(plan, Idle):
                run = None
                self._wake(plan.wake_at_s)
                yield
                continue
            counts.plans += 1
            # By place: compiled, that is the cheapest way into a tuple.
            step, num_seqs, num_tokens, context, max_context = plan[0], plan[1], plan[2], plan[3], plan[4]
            decode, chunks, joins, leaves, preempted = plan[5], plan[6], plan[7], plan[9], plan[10]
            if joins or preempted:
                calendar.apply(plan)
            target, arrivals_matter = 1, True
            if chunks or decode is not _ALL or plan.transfers:
                run = None
                end_s = start_s + self._duration_s(plan, start_s)
            else:
                counts.quiet_plans += 1
                if run is None or first >= knot or leaves or joins:
                    base_s, slope_s, knot = curve(num_seqs, num_tokens, context, max_context)
                    run, first = _new_tuple(QuietRun, (start_s, base_s, slope_s, context, num_seqs)), 0
                if self._skip_ahead:
                    steps, arrivals_matter = horizon()
                    target = calendar.steps_to_stop()
                    if steps < target:
                        target = steps + 1
                    if knot - first < target:
                        target = knot - first
                end_s = end_of(run, first + target)
            if agenda.advance(end_s):
                answered = self._book(plan, run, step, first, target, end_s)
                first += target
                if not answered or agenda.is_last_of_now():
                    continue
            else:
                self._run, self._first, self._target, self._arrivals_matter = run, first, target, arrivals_matter
                self._is_running, self.end_s = True, end_s
                if not agenda.wait(self):
                    self._queue_end()
                    yield
                    self._end_event = None
                first = self._book_waited(plan, run, step)
                if self._stopping:
                    break
                if agenda.is_last_of_now():
                    self._take_in(agenda.now)
                    continue
            self._plan_soon()
            yield
        self._take_in(agenda.now)  # what came during the last step was offered: the record says it is unfinished
        self._clock.end()

    def _reject(self, rejected: Sequence[Finish], now_s: float) -> None:
        for finish in rejected:
            self._calendar.remove(finish.id)
        self._on_end(rejected, now_s)

    def _wake(self, time_s: float | None) -> None:
        if time_s is not None:
            self._clock.event_at(time_s, At.PLAN, self._on_plan)

    def _queue_end(self) -> None:
        self._end_event = self._clock.event_at(self.end_s, _STEP_END, self._on_step_end)

    def _duration_s(self, plan: StepPlan, now_s: float) -> float:
        """Blocking transfers one after the other, then the step; a plan that only preempts computes nothing."""
        duration_s = 0.0
        num_seqs, num_tokens, context, max_context, chunks = plan[1], plan[2], plan[3], plan[4], plan[6]
        if num_tokens:
            duration_s = self._costs.step_time_s(num_tokens, num_seqs, context, max_context, chunks)
        for transfer in plan.transfers:
            done_s = self._transfer(transfer, now_s)
            if transfer.blocking:
                duration_s += done_s - now_s
                now_s = done_s
        return duration_s

    def _transfer(self, transfer: Transfer, now_s: float) -> float:
        """Queue a transfer on the link; returns when it is done."""
        link = self._link
        blocks = len(transfer.src)
        if transfer.kind == "out":
            self.counts.swapped_out_bytes += blocks * link.block_bytes
        else:
            self.counts.swapped_in_bytes += blocks * link.block_bytes
        took_s = self._costs.swap_time_s(blocks * link.block_bytes, blocks * link.pieces_per_block)
        self._link_free_s = done_s = max(now_s, self._link_free_s) + took_s
        if not transfer.blocking:
            self._transfers[transfer.key] = transfer
            self._clock.event_at(done_s, At.TRANSFER, lambda event: self._on_transfer(transfer.key))
        return done_s

    def _on_transfer(self, key: int) -> None:
        self._transfers_done.append(key)
        self._came_in()

    # -- boundaries --------------------------------------------------------------------------------------------------

    def _book(
        self, plan: StepPlan, run: QuietRun | None, step: int, first: int, steps: int, end_s: float
    ) -> Sequence[Finish]:
        """Book steps of a plan, from the last boundary to ``end_s``; ``step`` is the number of the first one, ``first``
        its place in the run. Returns the requests whose clients were told that they ended."""
        if steps > 1:
            self._engine.skip(steps - 1)
        finished = self._calendar.complete(plan, steps)
        result = _new_tuple(StepResult, (
            step, self.last_boundary_s, end_s, steps, finished, run, first, None, NO_EMITTED, (), 0
        ))  # fmt: skip
        self.last_boundary_s = end_s
        if run is not None:
            self.counts.quiet_steps += steps
        ended = self._engine.complete(result)
        if ended:
            self._on_end(ended, end_s)
        return ended

    def _book_waited(self, plan: StepPlan, run: QuietRun | None, step: int) -> int:
        """Book what ran until now, in pieces up to each request that came in and changed nothing but the queue, since
        the record shows when it was queued. Returns how many steps of the run are booked."""
        first, target = self._first, self._target
        while run is not None and self._arrivals and not self._arrivals_matter:
            cut = run.steps_until(self._arrivals[0][0].arrival_s, first + 1, first + target)
            steps, now_s = cut - first, end_of(run, cut)
            if steps == target:
                break
            self._book(plan, run, step, first, steps, now_s)
            step, first, target = step + steps, cut, target - steps
            while self._arrivals and self._arrivals[0][0].arrival_s <= now_s:
                self._take_first(now_s)
            self._engine.carry_on(now_s)
        self._book(plan, run, step, first, target, self._agenda.now)
        self._is_running = False
        return first + target

    def _take_in(self, now_s: float) -> None:
        """Hand over what came in by ``now_s``: ends of transfers, then aborts, then arrivals."""
        if self._transfers_done:
            for key in self._transfers_done:
                self._engine.transfer_done(self._transfers.pop(key))
            self._transfers_done.clear()
        if self._aborts:
            self._apply_aborts(now_s)
        while self._arrivals:
            self._take_first(now_s)

    def _take_first(self, now_s: float) -> None:
        """Hand over the request that came first."""
        request, stop = self._arrivals.popleft()
        self._calendar.add(request[0], stop)
        self._engine.take(request, now_s)

    def _apply_aborts(self, now_s: float) -> None:
        for request_id in self._aborts:
            for item in self._arrivals:
                if item[0].id == request_id:
                    self._arrivals.remove(item)
                    self._calendar.add(request_id, item[1])
                    self._engine.take(item[0], now_s)
                    break
            if request_id in self._calendar or self._engine.awaits_delivery(request_id):
                self._calendar.remove(request_id)
                self._on_end((self._engine.abort(request_id, now_s),), now_s)
        self._aborts.clear()
