"""The real-time driver: it owns time. Between two steps the engine learns what came in; then it plans, a backend runs
the plan, and the result is booked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from gpu_backend.backend import RealBackend
from gpu_backend.clock import Clock
from gpu_backend.traffic import GiveUp, Send, Traffic
from policies.core.engine import Engine
from policies.core.errors import ContractError, RunError
from policies.core.plan import Finish, Idle, StepPlan, StepResult, StepTime
from policies.core.request import Request, RequestId, Slo
from policies.core.stops import stop_of
from traces.record.events import EventLog
from traces.workload.sending import request_of

_POLL_S = 2e-4
"""Time between two looks at transfers under way while nothing else is to do."""


class Ending(NamedTuple):
    """How a run ended; ``message`` says why it did not complete. ``plans`` counts the steps that were planned."""

    status: str
    message: str
    end_s: float
    offered: int
    plans: int


class Boundary(Protocol):
    """Told after each step, when everything about it is booked."""

    def __call__(self) -> object:
        """Write down what is known."""


class Door(NamedTuple):
    """What every request is measured against when it comes in."""

    max_model_len: int
    reject_over_length: bool = False
    slo: Slo | None = None


class _Submitted(NamedTuple):
    ticket: int
    now_s: float


class RealTimeLoop:
    """Drives one engine and one backend until the traffic has its answers.

    Where policy and backend allow more than one plan in flight, the next plan is made and submitted while a step runs:
    host and device overlap. ``lengths`` maps the requests without an answer to the tokens that they will make, for
    oracles. ``events`` keeps what a replay needs; ``on_boundary`` writes the record, step by step.
    """

    def __init__(
        self,
        engine: Engine,
        backend: RealBackend,
        traffic: Traffic,
        clock: Clock,
        door: Door,
        *,
        events: EventLog | None = None,
        on_boundary: Boundary | None = None,
        on_progress: Callable[[float, int], None] | None = None,
        overlap: bool = True,
    ) -> None:
        self.lengths: dict[RequestId, int] = {}
        self._engine, self._backend, self._traffic, self._clock = engine, backend, traffic, clock
        self._door, self._events, self._on_boundary, self._on_progress = door, events, on_boundary, on_progress
        self._depth = min(engine.policy.max_in_flight, backend.max_in_flight) if overlap else 1
        self._in_flight: deque[_Submitted] = deque()
        self._interrupted = False
        self._offered = self._plans = self._ended = 0
        self._last_s = 0.0

    def interrupt(self) -> None:
        """End at the next step boundary, with status ``interrupted``; a signal handler may call this."""
        self._interrupted = True

    def run(self, max_time_s: float | None = None) -> Ending:
        """Until the last request ended, or until the first boundary at or after ``max_time_s``."""
        status, message = "completed", ""
        try:
            self._live(max_time_s)
        except RunError as error:
            status, message = error.status, str(error)
        if self._interrupted and status == "completed":
            status, message = "interrupted", f"stopped after {self._last_s:.1f} s; what ran until then counts"
        if self._events is not None:
            self._events.close(status, self._last_s)
        return Ending(status, message, self._last_s, self._offered, self._plans)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _live(self, max_time_s: float | None) -> None:
        while True:
            now_s = self._clock.now_s()
            self._take_in(now_s)
            if self._interrupted or (max_time_s is not None and now_s >= max_time_s):
                break
            plan = self._plan(now_s)
            if isinstance(plan, StepPlan):
                self._submit(plan, now_s)
                if len(self._in_flight) < self._depth:
                    continue
            else:
                self._backend.rest(plan)
                if not self._in_flight:
                    if not self._wait(plan.wake_at_s):
                        return
                    continue
            self._finish_oldest()
        while self._in_flight:
            self._finish_oldest()
        self._take_in(self._last_s)  # what came during the last step was offered: the record says it is unfinished

    def _plan(self, now_s: float) -> StepPlan | Idle:
        try:
            plan = self._engine.plan(now_s)
        except RunError as error:
            if self._events is not None:
                self._events.died(type(error).__name__, str(error), now_s)
            raise
        if self._events is not None:
            self._events.plan(plan, now_s)
        for finish in plan.rejected:
            self._backend.end(finish.id)
        self._answer(plan.rejected, now_s)
        return plan

    def _submit(self, plan: StepPlan, now_s: float) -> None:
        self._plans += 1
        steps = self._engine.policy.num_scheduler_steps if plan.num_seqs else 1
        self._in_flight.append(_Submitted(self._backend.submit(plan, steps), now_s))

    def _finish_oldest(self) -> None:
        """Wait for the oldest plan in flight and book its steps; those of a group all come with its end."""
        ticket, planned_s = self._in_flight.popleft()
        first, *others = self._backend.collect(ticket)
        began_s = max(planned_s, self._last_s)  # a plan made ahead waits for the step before it
        self._book(first._replace(start_s=began_s, time=_with_planning(first, began_s)))
        for result in others:
            if self._engine.carry_on(result.start_s):
                raise ContractError("a plan of several steps grants all its blocks at once; skip gave some later")
            self._book(result, carried=True)
        if self._on_boundary is not None:
            self._on_boundary()

    def _book(self, result: StepResult, *, carried: bool = False) -> None:
        self._last_s = result.end_s
        answered = self._engine.complete(result)
        if self._events is not None:
            self._events.result(result, carried=carried)
        self._answer(answered, result.end_s)

    def _answer(self, finished: Sequence[Finish], now_s: float) -> None:
        for finish in finished:
            self.lengths.pop(finish.id, None)
            self._traffic.answered(finish.id, now_s)
        self._ended += len(finished)
        if finished and self._on_progress is not None:
            self._on_progress(now_s, self._ended)

    def _wait(self, wake_at_s: float | None) -> bool:
        """Until something comes in or ends, or the policy wants to be asked again; False if nothing ever will."""
        while not self._interrupted:
            times = [time_s for time_s in (wake_at_s, self._traffic.next_s) if time_s is not None]
            now_s = self._clock.now_s()
            if self._engine.policy.kv.in_transit:
                if self._end_transfers():
                    return True
                times.append(now_s + _POLL_S)
            if not times:
                return False
            if now_s >= min(times):
                return True
            self._clock.wait_until(min(times))
        return True

    # -- what comes in -----------------------------------------------------------------------------------------------

    def _take_in(self, now_s: float) -> None:
        """Hand over what came in by now: ends of transfers, then who goes and who comes, in order of time."""
        self._end_transfers()
        for event in self._traffic.due(now_s):
            if isinstance(event, GiveUp):
                self._abort(event.number, now_s)
            else:
                self._arrive(event, now_s)

    def _end_transfers(self) -> bool:
        keys = self._backend.transfers_done()
        for key in keys:
            self._engine.transfer_done(self._engine.policy.kv.in_transit[key])
            if self._events is not None:
                self._events.transfer(key)
        return bool(keys)

    def _arrive(self, send: Send, now_s: float) -> None:
        time_s, number, row = send
        request = request_of(number, row, time_s, self._door.slo)
        stop = stop_of(request, row.output_tokens, self._door.max_model_len + self._engine.policy.tokens_past_length)
        self._offered += 1
        self.lengths[number] = stop.num_output_tokens
        refused = self._refusal(request, row.output_tokens, now_s)
        if self._events is not None:
            self._events.arrival(request, stop, now_s, None if refused is None else refused.reason)
        if refused is not None:
            self._answer((refused,), now_s)
            return
        self._backend.add(request, stop)
        self._engine.take(request, now_s)

    def _refusal(self, request: Request, output_tokens: int, now_s: float) -> Finish | None:
        door = self._door
        if door.reject_over_length and request.prompt_tokens + output_tokens > door.max_model_len:
            return self._engine.turn_away(request, "over_length", now_s)
        return self._engine.refuse(request, now_s)

    def _abort(self, request_id: RequestId, now_s: float) -> None:
        finish = self._engine.abort(request_id, now_s)
        self._backend.end(request_id)
        if self._events is not None:
            self._events.abort(finish, now_s)
        self._answer((finish,), now_s)


def _with_planning(result: StepResult, began_s: float) -> StepTime | None:
    """The backend's times with what passed before it had the plan, so that they add up to the step."""
    time = result.time
    if time is None:
        return None
    total_s = result.end_s - began_s
    device_s = min(time.device_s, total_s)
    before_s = min(time.host_before_s + max(result.start_s - began_s, 0.0), total_s - device_s)
    return StepTime(before_s, device_s, total_s - device_s - before_s)
