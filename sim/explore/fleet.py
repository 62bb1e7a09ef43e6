"""Several replicas of one server behind a router, on one clock, and what their clients see.

Only what latencies need is kept: times of requests and gaps between tokens, of all replicas together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from policies.core.engine import Engine
from policies.core.errors import RunError
from policies.core.plan import Finish
from policies.core.request import Request, RequestId
from policies.core.stops import Stop
from sim.api import Setup, limits_of
from sim.collector import no_garbage_collection
from sim.machine import swap_link
from sim.world.clients import Clients, OpenLoop
from sim.world.clock import Clock
from sim.world.replica import Replica
from sim.world.world import replica_of
from traces.metrics.pool import PairPool
from traces.metrics.queue import Stability, stability
from traces.metrics.requests import FINISHED, REJECTED, RequestColumns, RequestStore
from traces.metrics.stats import Stats
from traces.metrics.steps import regular_gaps
from traces.record.columns import Columns, RequestTable, RowsToColumns, StallTable, StepTable
from traces.record.expand import chunks, expand
from traces.record.recorder import Recorder
from traces.workload.rows import TraceRow

ROUTERS = ("round_robin", "least_outstanding")


class Trial(NamedTuple):
    """What the clients of a fleet saw. ``gaps`` are statistics of the gaps between tokens (None: none), ``stable`` the
    verdict on all requests (None: not enough data); ``message`` says why the run did not complete."""

    requests: RequestColumns
    gaps: Stats | None
    stability: Stability | None
    message: str

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last completion."""
        if not len(self.requests.arrival_s):
            return 0.0
        end_s = np.nanmax(np.append(self.requests.finish_s, self.requests.arrival_s))
        return float(end_s - self.requests.arrival_s.min())

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return int(self.requests.output_tokens.sum(dtype=np.int64))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts that got an answer."""
        answered = ~np.isnan(self.requests.first_token_s)
        return int(self.requests.prompt_tokens[answered].sum(dtype=np.int64))

    @property
    def finished(self) -> int:
        """Requests that completed."""
        return int(np.count_nonzero(self.requests.is_finished))


class TrialSink(RowsToColumns):
    """Keeps the requests and gaps of every replica whose recorder writes into it."""

    def __init__(self, *, at_batch_end: bool = False) -> None:
        self._requests = RequestStore()
        self._gaps = PairPool()
        self._by_step = not at_batch_end

    def step_table(self, table: StepTable) -> None:
        """Keep the gaps of a batch of steps."""
        if self._by_step:
            for part in chunks(table):
                self._gaps.add(*regular_gaps(part, expand(part.numbers)))

    def request_table(self, table: RequestTable) -> None:
        """Keep a batch of requests."""
        finished = self._requests.add(table) == FINISHED
        if not self._by_step:
            tokens = table.numbers["output_tokens"][finished]
            self._gaps.add(np.zeros(len(tokens)), tokens - 1)

    def stall_table(self, table: StallTable) -> None:
        """Keep irregular gaps."""
        if self._by_step:
            self._gaps.add(table.gap_s, table.num_gaps)

    def close(self) -> None:
        """Nothing is held open."""

    def trial(self, message: str) -> Trial:
        """What was kept, once all recorders are closed."""
        requests = self._requests.columns()
        ended_s = np.where(requests.outcome == REJECTED, requests.arrival_s, requests.finish_s)
        return Trial(
            requests,
            self._gaps.stats(),
            stability(requests.arrival_s, ended_s, requests.batch_s()),
            message,
        )


class Router:
    """Stands before the replicas and hands each request to one: in turn, or to the one with the fewest that it has not
    answered, of equals the next in turn."""

    def __init__(self, name: str) -> None:
        self._in_turn = name == "round_robin"
        self._next = 0
        self._home: dict[RequestId, int] = {}
        self.replicas: list[Replica] = []
        self.outstanding: list[int] = []
        self.answer: Callable[[Finish, float], None] = lambda finish, now_s: None

    def add(self, make: Callable[[Callable[[Sequence[Finish], float], None]], Replica]) -> None:
        """One more replica; ``make`` builds it around where it reports ends."""
        self.outstanding.append(0)
        self.replicas.append(make(partial(self._on_end, len(self.replicas))))

    def arrive(self, request: Request, stop: Stop) -> Finish | None:
        """Hand a request on; returns its end if it is refused."""
        place = self._pick()
        refused = self.replicas[place].arrive(request, stop)
        if refused is None:
            self._home[request.id] = place
            self.outstanding[place] += 1
        return refused

    def turn_away(self, request: Request, reason: str) -> Finish:
        """A request is not let in."""
        return self.replicas[self._pick()].turn_away(request, reason)

    def abort(self, request_id: RequestId) -> None:
        """A client goes away."""
        self.replicas[self._home[request_id]].abort(request_id)

    def _pick(self) -> int:
        most, first = len(self.replicas), self._next
        place = first
        if not self._in_turn:
            place = min(((first + step) % most for step in range(most)), key=self.outstanding.__getitem__)
        self._next = (place + 1) % most
        return place

    def _on_end(self, place: int, finished: Sequence[Finish], now_s: float) -> None:
        for finish in finished:
            if self._home.pop(finish.id, None) is not None:
                self.outstanding[place] -= 1
            self.answer(finish, now_s)


def run_fleet(
    make_setup: Callable[[], Setup], rows: Iterator[TraceRow], *, replicas: int = 1, router: str = "round_robin"
) -> Trial:
    """Send ``rows`` in open loop to that many replicas, each built by ``make_setup``, until all are answered."""
    clock, front, recorders = Clock(), Router(router), []
    sink: TrialSink | None = None
    setups = [make_setup() for _ in range(replicas)]
    for setup in setups:
        at_batch_end = setup.options.deliver_at_batch_end
        sink = sink or TrialSink(at_batch_end=setup.parameters.delivery == "batch_end")
        recorder = Recorder(
            setup.policy, [Columns(sink)], deliver_at_batch_end=setup.parameters.delivery == "batch_end"
        )
        engine = Engine(setup.policy, observer=recorder, deliver_at_batch_end=at_batch_end)
        link = swap_link(setup.config, setup.shape, setup.policy.kv.block_size)
        skip = setup.config.sim.skip_ahead is not False and setup.parameters.custom is None
        front.add(partial(_replica, clock, engine, setup, link=link, skip_ahead=skip))
        recorders.append(recorder)
    assert sink is not None
    first = setups[0]
    clients = Clients(
        clock,
        front,
        max_model_len=first.parameters.max_model_len,
        tokens_past_length=first.policy.tokens_past_length,
        reject_over_length=first.workload.over_length == "reject",
    )
    front.answer = clients.answer
    clients.slo = limits_of(first.config)
    for setup in setups:
        setup.services.lengths = clients.unanswered
    message = ""
    with no_garbage_collection():
        OpenLoop(clock, clients, rows)
        try:
            clock.drain()
        except RunError as error:
            message = f"{error.status}: {error}"
    for recorder, replica in zip(recorders, front.replicas, strict=True):
        recorder.close(replica.last_boundary_s)
    return sink.trial(message)


def _replica(
    clock: Clock, engine: Engine, setup: Setup, on_end: Callable[[Sequence[Finish], float], None], **more: object
) -> Replica:
    return replica_of(clock, engine, setup.costs, on_end, **more)  # type: ignore[arg-type]
