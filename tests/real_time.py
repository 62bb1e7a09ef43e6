"""The real-time driver before the mirror: the mirror's memory of names stands in for tensors, and checks every read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpu_backend.clock import TickClock
from gpu_backend.loop import Door, Ending, RealTimeLoop
from gpu_backend.traffic import Traffic
from policies.core.engine import Engine
from policies.core.plan import Idle, StepPlan, StepResult
from policies.core.protocols import StepObserver
from policies.core.request import Request, RequestId
from policies.core.stops import Stop
from policies.kit.mirror import MirrorBackend
from tests.variants import Size, Variant
from traces.record.events import EventLog
from traces.workload.rows import TraceRow


class MirrorInRealTime:
    """``MirrorBackend`` as the driver wants it, one plan at a time. Transfers in the background end two looks later."""

    max_in_flight = 1

    def __init__(self, block_size: int, clock: TickClock) -> None:
        self.mirror, self._clock = MirrorBackend(block_size), clock
        self._steps = 1
        self._moving: list[list[int]] = []

    def add(self, request: Request, stop: Stop) -> None:
        self.mirror.add(request, stop)

    def end(self, request_id: RequestId) -> None:
        if request_id in self.mirror.rows:
            self.mirror.end(request_id)

    def submit(self, plan: StepPlan, steps: int = 1) -> int:
        self._steps = steps
        ticket = self.mirror.submit(plan)
        for transfer in plan.transfers:
            if not transfer.blocking:  # nobody may touch what is in transit, so to copy now is as good as later
                self.mirror.copy(transfer)
                self._moving.append([2, transfer.key])
        return ticket

    def rest(self, idle: Idle) -> None:
        self.mirror.submit(idle)

    def collect(self, ticket: int) -> Sequence[StepResult]:
        results = [self.mirror.collect(ticket + number) for number in range(self._steps)]
        now_s = self._clock.now_s()
        return [result._replace(start_s=now_s, end_s=now_s) for result in results]

    def transfers_done(self) -> Sequence[int]:
        for moving in self._moving:
            moving[0] -= 1
        done = [key for left, key in self._moving if left <= 0]
        self._moving = [moving for moving in self._moving if moving[0] > 0]
        return done


class Lengths:
    """Services in which lengths are known and swapping pays for long requests only."""

    def __init__(self) -> None:
        self.lengths: Mapping[RequestId, int] = {}

    def step_time_s(self, *args: object) -> float:
        return 0.0

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        return 4.0 + pieces

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        return float(num_tokens)

    def predict_output_len(self, request: Request) -> int:
        return self.lengths[request.id]


class Driven(NamedTuple):
    """A run that ended, and the tokens that each request made."""

    ending: Ending
    made: Mapping[int, int]


def drive(
    variant: Variant,
    size: Size,
    rows: Sequence[TraceRow],
    *,
    concurrency: int | None = None,
    events: Path | None = None,
    observer: StepObserver | None = None,
    max_time_s: float | None = None,
) -> Driven:
    """Run rows in ticks of a millisecond."""
    services, clock = Lengths(), TickClock()
    policy = variant.build(size, services)
    backend = MirrorInRealTime(policy.kv.block_size, clock)
    loop = RealTimeLoop(
        Engine(policy, observer=observer, deliver_at_batch_end=variant.deliver_at_batch_end),
        backend,
        Traffic(iter(rows), concurrency=concurrency),
        clock,
        Door(size.max_model_len),
        events=None if events is None else EventLog(events),
        on_boundary=policy.kv.check,
    )
    services.lengths = loop.lengths
    ending = loop.run(max_time_s)
    return Driven(ending, {number: row.produced for number, row in backend.mirror.rows.items()})
