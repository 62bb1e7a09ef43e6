"""The backend that computes: plans in, tokens of a real model out, with the time that each step took."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpu_backend.batch import BatchTable, physical_blocks
from gpu_backend.clock import Clock
from policies.core.plan import Finish, Idle, StepPlan, StepResult, StepTime, Transfer
from policies.core.request import Request, RequestId
from policies.core.stops import Stop, StopCalendar

if TYPE_CHECKING:
    from gpu_backend.runner import Launched, StepRunner
    from gpu_backend.swap import Moved, SwapPool


class RealBackend(Protocol):
    """What the real-time driver asks of a backend, beyond ``policies.core.protocols.Backend``."""

    max_in_flight: int

    def add(self, request: Request, stop: Stop) -> None:
        """A request that plans may name from now on, and how it stops."""

    def end(self, request_id: RequestId) -> None:
        """A request ended otherwise: its client went away, or the policy gave it up."""

    def submit(self, plan: StepPlan, steps: int = 1) -> int:
        """Start that many steps of a plan; returns a ticket."""

    def rest(self, idle: Idle) -> None:
        """Nothing is to be computed; book who left."""

    def collect(self, ticket: int) -> Sequence[StepResult]:
        """Wait for the oldest plan; one result a step of it. Their times are the backend's own: launch to result."""

    def transfers_done(self) -> Sequence[int]:
        """Keys of the non-blocking transfers that ended since this was asked last; never waits."""


class _InFlight(NamedTuple):
    """A plan under way: its launched steps with the requests of their tokens, and when it was handed over."""

    ticket: int
    plan: StepPlan
    steps: Sequence[tuple[Launched, Sequence[RequestId]]]
    start_s: float
    launched_s: float


class ModelBackend:
    """Runs plans on a model. ``outputs`` are the tokens that each request has made; ``on_token`` is told of each when
    the host knows it. A token of ``stop_ids`` ends its request; lengths end the others.

    ``swap`` holds the CPU tier, if the policy has one; ``moved`` lists every transfer that ended, with what it took.
    A block of the policy is a run of ``split`` in memory.
    """

    max_in_flight = 2

    def __init__(
        self,
        runner: StepRunner,
        table: BatchTable,
        clock: Clock,
        *,
        outputs: dict[RequestId, list[int]] | None = None,
        swap: SwapPool | None = None,
        stop_ids: Collection[int] = (),
        on_token: Callable[[RequestId, int], object] | None = None,
    ) -> None:
        self.outputs: dict[RequestId, list[int]] = {} if outputs is None else outputs
        self.moved: list[Moved] = []
        self.runner = self._runner = runner
        self._table, self._clock, self._swap = table, clock, swap
        self.split = table.split
        self._stop_ids, self._on_token = frozenset(stop_ids), on_token
        self._calendar = StopCalendar()
        self._live: set[RequestId] = set()
        self._in_flight: deque[_InFlight] = deque()
        self._waits_for_transfers: set[int] = set()
        self._done: list[int] = []
        self._tickets = 0

    # -- what comes in -----------------------------------------------------------------------------------------------

    def add(self, request: Request, stop: Stop) -> None:
        """A request that plans may name from now on, and how it stops."""
        self._calendar.add(request.id, stop)
        self._table.add(request)
        self._live.add(request.id)
        self.outputs[request.id] = []

    def end(self, request_id: RequestId) -> None:
        """A request ended otherwise."""
        self._calendar.remove(request_id)
        self._live.discard(request_id)
        self._table.end(request_id)

    # -- plans -------------------------------------------------------------------------------------------------------

    def submit(self, plan: StepPlan, steps: int = 1) -> int:
        """Book the deltas of a plan, start its transfers and copies, then its steps."""
        start_s = self._clock.now_s()
        self._calendar.apply(plan)
        self._table.apply(plan)
        if self._table.num_rows > self._runner.tokens_RP.shape[0]:
            self._runner.grow(self._table.num_rows)
        if plan.transfers:
            self._transfer(plan.transfers)
        if plan.copies:
            src, dst = zip(*plan.copies, strict=True)
            self._runner.copy_blocks(*(physical_blocks(ids, self._table.split) for ids in (src, dst)))
        launched = []
        for number in range(steps):
            arrays = self._table.build(plan if not number else plan._replace(chunks=()))
            launched.append((self._runner.launch(arrays), arrays.emit_ids))
        self._tickets += 1
        self._in_flight.append(_InFlight(self._tickets, plan, launched, start_s, self._clock.now_s()))
        return self._tickets

    def rest(self, idle: Idle) -> None:
        """Nothing is to be computed; book who left."""
        self._table.apply(idle)

    def _transfer(self, transfers: Sequence[Transfer]) -> None:
        assert self._swap is not None, "a plan moves blocks, and there is no CPU tier"
        split = self._table.split
        moves = [
            transfer._replace(
                src=tuple(physical_blocks(transfer.src, split).tolist()),
                dst=tuple(physical_blocks(transfer.dst, split).tolist()),
            )
            for transfer in transfers
        ]
        busy = {block for move in moves for block in move.dst if move.kind == "in"} if self._in_flight else ()
        self._waits_for_transfers |= {transfer.key for transfer in transfers if not transfer.blocking}
        self._swap.start(moves, busy)

    def transfers_done(self) -> Sequence[int]:
        """Keys of the non-blocking transfers that ended."""
        if self._swap is None:
            return ()
        ended = self._swap.done()
        self.moved += ended
        keys = [move.key for move in ended if move.key in self._waits_for_transfers]
        self._waits_for_transfers.difference_update(keys)
        return keys

    # -- results -----------------------------------------------------------------------------------------------------

    def collect(self, ticket: int) -> Sequence[StepResult]:
        """Wait for the oldest plan and say who is done."""
        flight = self._in_flight.popleft()
        assert flight.ticket == ticket, "results are collected in the order of the plans"
        later = [other.plan for other in self._in_flight]
        gone = {request_id: 0 for plan in later for request_id in plan.leaves}
        device_s, ended = 0.0, []
        for number, (launched, ids) in enumerate(flight.steps):
            tokens, seconds = launched.wait()
            device_s += seconds
            plan = flight.plan if not number else flight.plan._replace(chunks=())
            ended.append(self._book(plan, ids, tokens, gone, later))
        end_s = self._clock.now_s()
        time = _split(flight.start_s, flight.launched_s, end_s, device_s)
        results = [StepResult(flight.plan.step, flight.start_s, end_s, finished=ended[0], time=time, emitted=gone)]
        for number, finished in enumerate(ended[1:], 1):
            results.append(StepResult(flight.plan.step + number, end_s, end_s, finished=finished))
        return results

    def _book(
        self,
        plan: StepPlan,
        ids: Sequence[RequestId],
        tokens: Sequence[int],
        gone: Collection[RequestId],
        later: Collection[StepPlan],
    ) -> tuple[Finish, ...]:
        """Note the tokens of one step; rows that ended, or leave with a plan behind it, have made none."""
        live, outputs, on_token, stop_ids = self._live, self.outputs, self._on_token, self._stop_ids
        stopped = []
        for request_id, token in zip(ids, tokens, strict=True):
            if request_id not in live or request_id in gone:
                continue
            outputs[request_id].append(token)
            if on_token is not None:
                on_token(request_id, token)
            if token in stop_ids:
                stopped.append(request_id)
        finished = self._calendar.complete(plan, 1, later)
        for request_id in stopped:
            if request_id in self._calendar:
                self._calendar.remove(request_id)
                finished += (Finish(request_id, "stop", len(outputs[request_id])),)
        for finish in finished:
            live.discard(finish.id)
            self._table.end(finish.id)
        return finished


def _split(start_s: float, launched_s: float, end_s: float, device_s: float) -> StepTime:
    """Host and device time that add up to what a step took: the host works before the device as far as the device did
    not work meanwhile, and after it in what is left."""
    total_s = end_s - start_s
    device_s = min(device_s, total_s)
    before_s = min(launched_s - start_s, total_s - device_s)
    return StepTime(before_s, device_s, total_s - device_s - before_s)
