"""The simulated world: clients and one replica on one clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from policies.core.engine import Engine
from policies.core.errors import RunError
from policies.core.plan import Finish
from sim.world.ahead import AheadReplica
from sim.world.clients import Clients, OpenLoop, closed_loop
from sim.world.clock import At, Clock
from sim.world.groups import GroupCosts, GroupReplica
from sim.world.replica import Counts, Replica, StepCosts, SwapLink
from traces.workload.source import Workload


class RecordWriter(Protocol):
    """Ends the record when the run is over."""

    def close(self, now_s: float) -> None:
        """The run is over at ``now_s``."""


class Outcome(NamedTuple):
    """How a run ended. ``end_s`` is the last step boundary or answer; ``message`` says why it did not complete."""

    status: str
    message: str
    end_s: float
    offered: int
    counts: Counts


Progress = Callable[[float, int], None]
"""Called now and then with the simulated time and the number of requests that ended."""


def replica_of(
    clock: Clock,
    engine: Engine,
    costs: StepCosts,
    on_end: Callable[[Sequence[Finish], float], None],
    *,
    link: SwapLink | None = None,
    skip_ahead: bool = True,
) -> Replica:
    """The replica that drives this engine as its policy asks for: step by step, several steps on one plan, or planning
    ahead. Several replicas may share a clock."""
    link = link or SwapLink()
    if engine.policy.num_scheduler_steps > 1:
        grouped = GroupCosts(costs, engine.policy.num_scheduler_steps)
        return GroupReplica(clock, engine, grouped, on_end, link=link, skip_ahead=skip_ahead)
    drives = AheadReplica if engine.policy.max_in_flight > 1 else Replica
    return drives(clock, engine, costs, on_end, link=link, skip_ahead=skip_ahead)


class World:
    """Runs a workload against an engine whose steps last as long as the cost model says."""

    def __init__(
        self,
        engine: Engine,
        costs: StepCosts,
        *,
        max_model_len: int,
        link: SwapLink | None = None,
        skip_ahead: bool = True,
        reject_over_length: bool = False,
        progress: Progress | None = None,
        progress_every: int = 250,
    ) -> None:
        self.clock = Clock()
        self.replica = replica_of(self.clock, engine, costs, self._on_end, link=link, skip_ahead=skip_ahead)
        self.clients = Clients(
            self.clock,
            self.replica,
            max_model_len=max_model_len,
            tokens_past_length=engine.policy.tokens_past_length,
            reject_over_length=reject_over_length,
        )
        self._interrupted = False
        self._ended = 0
        self._progress = progress
        self._progress_every = self._progress_next = progress_every

    def run(self, workload: Workload, recorder: RecordWriter, max_time_s: float | None = None) -> Outcome:
        """Send the whole workload and return when the last request ended, or at the first step boundary at or after
        ``max_time_s``."""
        rows = workload.rows()
        if workload.concurrency:
            closed_loop(
                self.clock,
                self.clients,
                rows,
                concurrency=min(workload.concurrency, workload.num_requests),
                think_time_s=workload.think_time_s,
            )
        else:
            OpenLoop(self.clock, self.clients, rows)
        if max_time_s is not None:
            self.clock.event_at(max_time_s, At.STOP, lambda event: self.replica.stop())
        status, message = "completed", ""
        try:
            self.clock.drain()
        except RunError as error:
            status, message = error.status, str(error)
        end_s = self.replica.last_boundary_s
        if self._interrupted:
            status, message = "interrupted", f"stopped at {end_s:.1f} s of simulated time; what ran until then counts"
        recorder.close(end_s)
        return Outcome(status, message, end_s, self.clients.offered, self.replica.counts)

    def interrupt(self) -> None:
        """End at the next step boundary, with status ``interrupted``; a signal handler may call this."""
        self._interrupted = True
        self.clock.event_at(self.clock.now, At.STOP, lambda event: self.replica.stop())

    def _on_end(self, finished: Sequence[Finish], now_s: float) -> None:
        for finish in finished:
            self.clients.answer(finish, now_s)
        self._ended += len(finished)
        if self._progress is not None and self._ended >= self._progress_next:
            self._progress_next = self._ended + self._progress_every
            self._progress(now_s, self._ended)
