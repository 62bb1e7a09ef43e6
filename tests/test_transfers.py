"""Transfers that do not block: a scripted policy moves rows to the CPU tier and back while the others decode."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from policies.core.engine import Engine
from policies.core.kv import KvManager
from policies.core.null_observer import NullObserver
from policies.core.plan import Chunk, Grant, Horizon, Idle, PreemptionMode, StepPlan, StepResult, Transfer
from policies.core.request import Request, RequestId
from policies.core.rows import Row
from policies.core.stops import Stop
from policies.kit.mirror import MirrorBackend
from policies.systems.base import BatchingPolicy
from sim.record import Tee
from sim.world.replica import SwapLink
from sim.world.world import Outcome, World
from tests.token_watch import TokenWatch, check_against
from tests.worlds import SHIPPED, Costs, Kept, KnottyCosts, Run, first_difference, memory_of, workload_of
from traces.record.recorder import Recorder
from traces.workload.rows import TraceRow

PERIOD = 9
STAY = 4
BLOCK_SIZE = 4
MAX_MODEL_LEN = 128


class Tide(BatchingPolicy):
    """First come, first served; every ``PERIOD`` steps the oldest decoding row goes out, to come back ``STAY`` steps
    after it is there, or when nothing else decodes.

    The pool is large enough for every row at its longest, twice. ``swapped`` are all rows on their way or away.
    """

    def __init__(self, kv: KvManager) -> None:
        super().__init__(kv, max_num_seqs=6, max_model_len=MAX_MODEL_LEN)
        self.on_done: Callable[[Transfer], None] = lambda transfer: None
        self.on_idle: Callable[[Idle], object] = lambda idle: None
        self._away: list[tuple[int, Row]] = []
        self._landed: list[Row] = []
        self._next_tide = PERIOD

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Rows that landed decode again, rows that are away start back, one goes, new ones come."""
        joins = [self._join(row) for row in self._landed]
        self._landed.clear()
        transfers = self._fetch()
        preempted: list[tuple[RequestId, PreemptionMode]] = []
        if self._is_tide():
            self._next_tide = self.decode.steps + PERIOD
            row = next(row for row in self.running.values() if row.is_decoding)
            self.detach(row)
            self.swapped[row.id] = row
            preempted.append((row.id, "swap"))
            transfers.append(self.kv.swap_out(row.id, blocking=False))
        grants = self.decode.grant()
        # What joined has the block of its next token already.
        grants = [(key, blocks) for key, blocks in grants if key not in dict(joins)]
        chunks = self._admit(joins)
        if not self.decode.rows and not chunks and not transfers:
            idle = Idle("transfers" if self.kv.in_transit else "no_requests", None, tuple(self._leaves))
            self._leaves.clear()
            self.on_idle(idle)
            return idle
        limit = "max_num_seqs" if self.waiting else "arrivals"
        return self.make_plan(
            decode=bool(self.decode.rows or chunks),
            chunks=chunks,
            joins=[(key, tuple(self.kv.tables[key])) for key, _ in joins],
            grants=grants,
            preempted=preempted,
            transfers=transfers,
            limited_by=limit,
        )

    def _is_tide(self) -> bool:
        return len(self.decode.rows) > 1 and self.decode.steps >= self._next_tide

    def _join(self, row: Row) -> Grant:
        del self.swapped[row.id]
        self.enter(row)
        self.decode.join(row)
        return row.id, ()

    def _fetch(self) -> list[Transfer]:
        due = [row for step, row in self._away if self.decode.steps >= step or not self.decode.rows]
        self._away = [(step, row) for step, row in self._away if row not in due]
        return [self.kv.swap_in(row.id, blocking=False) for row in due]

    def _admit(self, joins: list[Grant]) -> list[Chunk]:
        chunks = []
        while self.waiting and len(self.running) + len(self.swapped) < self.max_num_seqs:
            row = self.waiting.popleft()
            self.enter(row)
            joins.append((row.id, self.kv.open(row.id, self.kv.blocks_for(row.prompt_tokens))))
            chunks.append(Chunk(row.id, 0, row.prompt_tokens, True))
            row.num_computed_tokens = row.prompt_tokens
        return chunks

    def horizon(self) -> Horizon:
        """Until the next tide, or the return of a row; only a free place makes an arrival matter."""
        due = [step for step, _ in self._away]
        if len(self.decode.rows) > 1:
            due.append(self._next_tide)
        return Horizon(max(0, min(due, default=1 << 40) - self.decode.steps - 1), not self.waiting)

    def on_transfer_done(self, transfer: Transfer) -> None:
        """A row is away, or back."""
        row = self.swapped[transfer.id]
        if transfer.kind == "out":
            self._away.append((self.decode.steps + STAY, row))
        else:
            self._landed.append(row)
        self.on_done(transfer)


class MirrorWatch(NullObserver):
    """Feeds the mirror backend from a stepped run and holds its tables and memory against the policy's."""

    def __init__(self, policy: Tide) -> None:
        self.mirror = MirrorBackend(BLOCK_SIZE)
        self.transits = 0
        self._policy = policy
        policy.on_done, policy.on_idle = self.mirror.copy, self.mirror.submit

    def on_arrival(self, request: Request, now_s: float) -> None:
        """It stops when the world says so."""
        self.mirror.add(request, Stop(1 << 30, "never"))

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """Tables equal, no block lost: free + held + in transit = total."""
        kv = self._policy.kv
        self.mirror.submit(plan)
        assert self.mirror.tables == kv.tables
        assert self.mirror.cpu_tables == kv.cpu_tables
        kv.check()
        out = sum(len(transfer.src) for transfer in kv.in_transit.values() if transfer.kind == "out")
        self.transits += out > 0
        assert kv.num_free + sum(map(len, kv.tables.values())) + out == kv.num_blocks

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """Every token that is read is the right one."""
        self.mirror.collect(result.step)


def rows_of(seed: int) -> list[TraceRow]:
    random = Random(seed)
    now_s = 0.0
    rows = []
    for _ in range(25):
        now_s += random.choice((0.0, random.expovariate(5.0), random.expovariate(20.0)))
        rows.append(TraceRow(now_s, random.randint(1, 40), random.randint(1, 80)))
    return rows


def run_tide(seed: int, costs: Costs, *, skip_ahead: bool, watched: bool = False) -> tuple[Run, list[float]]:
    """The run, and the times at which the policy learnt of ends of transfers."""
    policy = Tide(KvManager(400, BLOCK_SIZE, num_cpu_blocks=400))
    kept = Kept()
    recorder = Recorder(policy, [kept], block_bytes=1 << 18, keep_segments=True)
    watch = TokenWatch()
    watch.policy = policy
    observer = Tee(recorder, watch, MirrorWatch(policy)) if watched else recorder
    world = World(
        Engine(policy, observer=observer),
        costs,
        max_model_len=MAX_MODEL_LEN,
        link=SwapLink(1 << 24, 40),
        skip_ahead=skip_ahead,
    )
    done_s: list[float] = []
    mirror_copy = policy.on_done

    def on_done(transfer: Transfer) -> None:
        done_s.append(world.clock.now)
        mirror_copy(transfer)

    policy.on_done = on_done
    outcome: Outcome = world.run(workload_of(rows_of(seed)), recorder)
    if watched:
        check_against(kept, watch, at_batch_end=False)
    return Run(outcome, kept, policy, memory_of(policy)), done_s


@pytest.mark.parametrize("costs", [SHIPPED, KnottyCosts()], ids=["shipped", "knotty"])
@pytest.mark.parametrize("seed", range(4))
def test_transfers_beside_the_steps_end_at_a_boundary_and_lose_nothing(seed: int, costs: Costs) -> None:
    stepped, stepped_done_s = run_tide(seed, costs, skip_ahead=False, watched=True)
    jumped, jumped_done_s = run_tide(seed, costs, skip_ahead=True)
    assert stepped.outcome.status == "completed"
    assert first_difference(stepped, jumped) is None
    assert stepped_done_s == jumped_done_s
    assert len(stepped_done_s) > 10
    assert {row.reason for row in stepped.kept.request_rows} == {"stop"}
    kv = stepped.policy.kv
    assert (kv.num_free, kv.cpu_pool.num_free, kv.in_transit) == (400, 400, {})
