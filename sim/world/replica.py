"""One simulated engine: it plans, lets the cost model say how long the plan takes, and books the result at its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

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
)
from policies.core.request import Request, RequestId
from policies.core.stops import Stop, StopCalendar
from sim.world.clock import At, Clock, Timed

_ALL, _STEP_END = Decode.ALL, At.STEP_END
_new_tuple = tuple.__new__


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
        self._link = link
        self._skip_ahead = skip_ahead
        self._skip, self._horizon = engine.policy.skip, engine.policy.horizon
        self._calendar = StopCalendar()
        self._arrivals: deque[tuple[Request, Stop]] = deque()
        self._aborts: list[RequestId] = []
        self._plan: StepPlan | None = None
        self._plan_is_due = False
        self._stopping = False
        self._run: QuietRun | None = None
        self._knot = 0
        self._first = 0
        self._target = 1
        self._step = 0
        self._arrivals_matter = True
        self._end_event = Timed(clock, [])
        self._transfers: dict[int, Transfer] = {}
        self._transfers_done: list[int] = []
        self._link_free_s = 0.0

    # -- what comes in -----------------------------------------------------------------------------------------------

    def arrive(self, request: Request, stop: Stop) -> Finish | None:
        """A request comes in now; returns its end if the engine refuses it at the door."""
        now = request.arrival_s
        refused = self._engine.refuse(request, now)
        if refused is None:
            self._arrivals.append((request, stop))
            if self._plan is None:
                self._plan_soon()
            elif self._arrivals_matter:
                self._cut(now)
        return refused

    def turn_away(self, request: Request, reason: str) -> Finish:
        """A request comes in now and is not let in."""
        return self._engine.turn_away(request, reason, self._clock.now)

    def abort(self, request_id: RequestId) -> None:
        """A client goes away now; the engine sees it at the next step boundary."""
        self._aborts.append(request_id)
        if self._plan is None:
            self._plan_soon()
        else:
            self._cut(self._clock.now)

    def stop(self) -> None:
        """End at the first step boundary from now on."""
        self._stopping = True
        if self._plan is None:
            if self._plan_is_due:
                self.last_boundary_s = self._clock.now
                self._take_in(self._clock.now)
            self._clock.end()
        else:
            self._cut(self._clock.now)

    def _plan_soon(self) -> None:
        if not self._plan_is_due:
            self._plan_is_due = True
            self._clock.event_at(self._clock.now, At.PLAN, self._on_plan)

    def _cut(self, time_s: float) -> None:
        """End the jump at the first step boundary at or after ``time_s``."""
        run = self._run
        if run is not None and self._target > 1:
            first = self._first
            target = run.steps_until(time_s, first + 1, first + self._target) - first
            if target < self._target:
                self._target = target
                self._end_event.cancel()
                self._end_at(run.end_s(first + target))

    # -- steps -------------------------------------------------------------------------------------------------------

    def _on_plan(self, event: Event) -> None:
        self._plan_is_due = False
        if self._plan is None and not self._stopping:
            self.last_boundary_s = now_s = self._clock.now
            self._take_in(now_s)
            self._go_on(now_s)

    def _go_on(self, now_s: float) -> None:
        """Run step after step, up to one during which something else happens. Until then nothing can come in."""
        clock = self._clock
        while True:
            end_s = self._begin(now_s)
            if end_s is None:
                return
            if not clock.advance(end_s):
                self._end_at(end_s)
                return
            if self._book(end_s, self._target) and not clock.is_last_of_now():
                self._plan = None
                self._plan_soon()
                return
            now_s = end_s

    def _end_at(self, time_s: float) -> None:
        self._end_event = self._clock.event_at(time_s, _STEP_END, self._on_step_end)

    def _on_step_end(self, event: Event) -> None:
        """Book what ran until now, and plan as soon as all that happens now has happened."""
        now_s = self._clock.now
        if self._arrivals and not self._arrivals_matter and self._run is not None:
            self._book_pieces(self._run)
        self._book(now_s, self._target)
        self._plan = None
        if self._stopping:
            self._take_in(now_s)  # what came during the last step was offered: the record says it is unfinished
            self._clock.end()
        elif self._clock.is_last_of_now():
            self._take_in(now_s)
            self._go_on(now_s)
        else:
            self._plan_soon()

    def _begin(self, now_s: float) -> float | None:
        """Plan and start the next step, or jump; returns when it ends, or None if there is nothing to run."""
        plan = self._engine.plan(now_s)
        if plan.rejected:
            for finish in plan.rejected:
                self._calendar.remove(finish.id)
            self._on_end(plan.rejected, now_s)
        if isinstance(plan, Idle):
            self._plan = self._run = None
            if plan.wake_at_s is not None:
                self._clock.event_at(plan.wake_at_s, At.PLAN, self._on_plan)
            return None
        self._plan = plan
        self.counts.plans += 1
        # One slice takes less time than the attributes of a tuple one by one.
        self._step, _, _, _, _, decode, chunks, joins, _, leaves, preempted, _, transfers = plan[:13]
        if joins or preempted:
            self._calendar.apply(plan)
        if chunks or transfers or decode is not _ALL:
            self._run, self._target, self._arrivals_matter = None, 1, True
            return now_s + self._duration_s(plan, now_s)
        self.counts.quiet_plans += 1
        run, first = self._run, self._first
        if run is None or first >= self._knot or leaves or joins:
            run, first = self._start_run(plan, now_s), 0
        if self._skip_ahead:
            horizon, self._arrivals_matter = self._horizon()
            target = self._calendar.steps_to_stop()
            if horizon < target:
                target = horizon + 1
            if first + target > self._knot:
                target = self._knot - first
            self._target = target
        return run.end_s(first + self._target)

    def _start_run(self, plan: StepPlan, now_s: float) -> QuietRun:
        """Set the anchor of a quiet run: its rows change with this plan, or the cost model reached a knot."""
        _, num_seqs, num_tokens, context, max_context = plan[:5]
        base_s, slope_s, self._knot = self._costs.decode_curve(num_seqs, num_tokens, context, max_context)
        self._first = 0
        self._run = run = _new_tuple(QuietRun, (now_s, base_s, slope_s, context, num_seqs))
        return run

    def _duration_s(self, plan: StepPlan, now_s: float) -> float:
        """Blocking transfers one after the other, then the step; a plan that only preempts computes nothing."""
        duration_s = 0.0
        _, num_seqs, num_tokens, context, max_context, _, chunks = plan[:7]
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
        if self._plan is None:
            self._plan_soon()
        else:
            self._cut(self._clock.now)

    # -- boundaries --------------------------------------------------------------------------------------------------

    def _book_pieces(self, run: QuietRun) -> None:
        """Book the steps of a jump up to the last request that came in and changed nothing but the queue: the record
        shows when each was queued."""
        while self._arrivals:
            end = self._first + self._target
            cut = run.steps_until(self._arrivals[0][0].arrival_s, self._first + 1, end)
            if cut >= end:
                break
            now_s = run.end_s(cut)
            steps = cut - self._first
            self._target -= steps
            self._book(now_s, steps)
            self._step += steps
            while self._arrivals and self._arrivals[0][0].arrival_s <= now_s:
                self._take_first(now_s)
            self._engine.carry_on(now_s)

    def _book(self, end_s: float, steps: int) -> bool:
        """Book that many steps of the plan, from the last boundary to ``end_s``; True if clients got answers."""
        plan, run = self._plan, self._run
        assert plan is not None
        if steps > 1:
            self._skip(steps - 1)
        result = _new_tuple(StepResult, (
            self._step, self.last_boundary_s, end_s, steps, self._calendar.complete(plan, steps), run, self._first,
            None, NO_EMITTED, (), 0,
        ))  # fmt: skip
        self.last_boundary_s = end_s
        if run is not None:
            self._first += steps
            self.counts.quiet_steps += steps
        ended = self._engine.complete(result)
        if not ended:
            return False
        self._on_end(ended, end_s)
        return True

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
