"""Asynchronous scheduling of vLLM V1 0.33.0: the next step is planned before the tokens of the last one are known."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from policies.core.errors import ContractError
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import BatchRow, Chunk, Decode, Grant, Horizon, Idle, Load, StepPlan, StepResult
from policies.core.prefix import Content
from policies.core.request import Request, RequestId, output_segment
from policies.core.rows import Row
from policies.systems.token_budget_033 import TokenBudget033
from policies.systems.token_budget_priority import SchedulingPolicy


@mypyc_attr(allow_interpreted_subclasses=True)
class AsyncRow(Row):
    """A request with ``placeholders``: tokens that plans in flight will make, and that later ones build on.

    ``in_flight`` plans hold the row; ``epoch`` counts how often it was preempted, ``makes_tokens`` is False until a
    plan has completed what is known of it, ``gone`` True after its end.
    """

    placeholders = 0
    in_flight = 0
    epoch = 0
    makes_tokens = False
    gone = False


class Part(NamedTuple):
    """What one plan computes of a row, planned in its ``epoch``."""

    row: AsyncRow
    start: int
    num_tokens: int
    emits: bool
    is_decode: bool
    epoch: int


@mypyc_attr(allow_interpreted_subclasses=True)
class AsyncTokenBudget(TokenBudget033):
    """vLLM V1's scheduler of 0.33.0 with ``async_scheduling``; parameters as of ``TokenBudget033``.

    A row that has completed what is known of it goes on with a placeholder for its next token; one that the token in
    flight will bring to ``max_tokens`` is not planned again. A preempted row still gets the tokens of plans in flight,
    may end with them, and waits until they have come. It leaves the batch only then (``StepPlan.leaves``), although
    its blocks are free at once. With nothing to plan while a step is in flight the plan is empty. Full blocks of
    known tokens may be hit as soon as they are planned, those that hold tokens in flight once these have come.

    Every row is looked at in every step: O(rows), and no quiet runs.
    """

    max_in_flight = 2

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        scheduling_policy: SchedulingPolicy = "fcfs",
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        scheduler_reserve_full_isl: bool = True,
        watermark: float = 0.0,
        faithful: bool = False,
    ) -> None:
        super().__init__(
            kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            scheduling_policy=scheduling_policy,
            enable_chunked_prefill=enable_chunked_prefill,
            long_prefill_token_threshold=long_prefill_token_threshold,
            scheduler_reserve_full_isl=scheduler_reserve_full_isl,
            watermark=watermark,
            faithful=faithful,
        )
        self._batch: dict[RequestId, Part] = {}
        self._flying: deque[Sequence[Part]] = deque()
        self._plans = 0

    # -- requests ----------------------------------------------------------------------------------------------------

    def new_row(self, request: Request) -> Row:
        """State of a new request; with the prefix cache all content is hashed."""
        row = AsyncRow(request)
        if self.kv.prefix_cache is not None:
            segments = request.segments or ((f"in:{request.id}", request.prompt_tokens),)
            row.content = Content(segments, output_segment(request.id), self.kv.block_size)
        return row

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request, wherever it is; what is in flight of it is dropped."""
        for row in (*self.running.values(), *self.waiting):
            if row.id == request_id:
                self._end(_own(row))
                return row.num_tokens - row.prompt_tokens
        raise ContractError(f"abort of request {request_id}, which this policy does not hold")

    def _end(self, row: AsyncRow) -> None:
        row.gone = True
        if row.id in self.running:
            self.remove(row)
        else:
            self.waiting.remove(row)
            if row.in_flight:
                self._leaves.append(row.id)

    # -- plans -------------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Running requests first, then, if nothing was preempted, waiting ones."""
        is_alone = len(self.waiting) + len(self.running) == 1
        self.chunk_limit = self._threshold if self._threshold and not is_alone else self.max_model_len
        self._batch, self._joins, self._preempted, self._rejected = {}, [], [], []
        self._budget = self.max_num_batched_tokens
        self._walk_running()
        if self.waiting and not self._preempted:
            self._admit()
        if not self._batch and not self._preempted and not any(self._flying):
            return self.idle("no_requests", rejected=self._rejected)
        return self._make()

    def _make(self) -> StepPlan:
        parts = tuple(self._batch.values())
        self._flying.append(parts)
        for part in parts:
            part.row.in_flight += 1
        decodes = [part for part in parts if part.is_decode]
        chunks = tuple(Chunk(part.row.id, *part[1:4]) for part in parts if not part.is_decode)
        leaves = tuple(self._leaves)
        self._leaves.clear()
        self._plans += 1
        return StepPlan(
            self._plans - 1,
            len(decodes),
            sum(part.num_tokens for part in parts),
            sum(part.start for part in decodes),
            max([part.start for part in decodes], default=0),
            tuple(part.row.id for part in decodes) if decodes else Decode.NONE,
            chunks,
            tuple(self._joins),
            tuple(self._grants),
            leaves,
            tuple(self._preempted),
            tuple(self._rejected),
            limited_by=self._limit() if self.waiting else "arrivals",
        )

    def skip(self, steps: int) -> Sequence[Grant]:
        """No plan of this engine starts a quiet run."""
        raise ContractError("asynchronous scheduling plans every step")

    def horizon(self) -> Horizon:
        """The next step needs a plan."""
        return Horizon(0, True)

    # -- running requests --------------------------------------------------------------------------------------------

    def _walk_running(self) -> None:
        self._grants = []
        self._scheduled = {}
        for row in map(_own, list(self.running.values())):
            if row.id not in self.running:
                continue
            count = self._count(row)
            if count <= 0:
                continue
            if not self._make_room(row, count):
                if not self.by_priority:
                    break
                continue
            short = self._blocks_short(row, count)
            if short:
                self._grants.append((row.id, self.kv.extend(row.id, short)))
            self._scheduled[row.id] = count
            self._book(row, count)

    def _count(self, row: AsyncRow) -> int:
        """Tokens of a running row that the step computes; none if the token in flight is its last."""
        done, ahead = row.num_computed_tokens, row.placeholders
        if ahead and done + 2 - ahead >= row.prompt_tokens + row.request.max_tokens:
            return 0
        return min(row.num_tokens + ahead - done, self.chunk_limit, self._budget, self.max_model_len - 1 - done)

    def _book(self, row: AsyncRow, count: int) -> None:
        """Book a part: its tokens count as computed from now on."""
        start = row.num_computed_tokens
        row.num_computed_tokens = end = start + count
        self._budget -= count
        emits = end == row.num_tokens + row.placeholders
        self._batch[row.id] = Part(row, start, count, emits, row.makes_tokens, row.epoch)
        if row.content is not None:
            self.kv.cache_blocks(row.id, row.content, min(end, row.num_tokens))
        if emits:
            row.placeholders += 1
            row.makes_tokens = True

    def _take_back(self, row: Row) -> None:
        super()._take_back(row)
        del self._batch[row.id]

    def _preempt(self, row: Row) -> None:
        """Free everything and wait; the tokens in flight still come."""
        row = _own(row)
        del self.running[row.id]
        self.kv.close(row.id)
        row.num_computed_tokens = row.placeholders = 0
        row.makes_tokens = False
        row.epoch += 1
        if not row.in_flight:
            self._leaves.append(row.id)
        self.waiting.appendleft(row)
        self._preempted.append((row.id, "recompute"))

    # -- waiting requests --------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """From the head of the queue until something does not fit; those with tokens in flight keep their place."""
        waiting, size = self.waiting, self.kv.block_size
        skipped: list[Row] = []
        self._head_exceeds = False
        while waiting and self._budget > 0 and len(self.running) < self.max_num_seqs:
            row = _own(waiting[0])
            if row.in_flight:
                skipped.append(waiting.popleft())
                continue
            hits = self.kv.lookup(row.content, row.num_tokens)
            start = len(hits) * size
            count = min(row.num_tokens - start, self.chunk_limit)
            self._head_exceeds = count > self._budget and not self.enable_chunked_prefill
            if self._head_exceeds:
                break
            count = min(count, self._budget)
            num_blocks = self.kv.blocks_for(start + count)
            if not self._can_open(row, num_blocks, hits):
                if self.running or not self._refuse_head():
                    break
                continue
            waiting.popleft()
            self.enter(row)
            self._joins.append((row.id, self.kv.open(row.id, num_blocks, hits)))
            row.num_computed_tokens = start
            self._book(row, count)
        waiting.extendleft(reversed(skipped))

    # -- results -----------------------------------------------------------------------------------------------------

    def on_step_end(self, result: StepResult) -> None:
        """The tokens of the oldest plan in flight come; what ends, running or waiting, is freed."""
        ended = {finish.id for finish in result.finished}
        for part in self._flying.popleft():
            row = part.row
            row.in_flight -= 1
            if row.gone:
                continue
            if part.emits:
                self._deliver(row, is_stale=part.epoch != row.epoch)
            if row.id in ended:
                self._end(row)
            if part.epoch != row.epoch and not row.in_flight:
                self._leaves.append(row.id)

    def _deliver(self, row: AsyncRow, *, is_stale: bool) -> None:
        row.num_tokens += 1
        if not is_stale:
            row.placeholders -= 1
            if row.content is not None:
                self.kv.cache_blocks(row.id, row.content, row.num_computed_tokens - row.placeholders)

    # -- views -------------------------------------------------------------------------------------------------------

    def load(self) -> Load:
        """As of any policy; ``residues`` is empty, since each plan gives its blocks by itself."""
        kv, rows = self.kv, self.running.values()
        return Load(
            len(self.waiting), len(rows), 0, kv.pool.num_free, sum(row.num_computed_tokens for row in rows), 0, (),
            sum(part.is_decode for part in self._batch.values()), kv.cpu_pool.num_free,
        )  # fmt: skip

    def batch_order(self) -> list[BatchRow]:
        """Rows of the last plan, running ones first."""
        return [BatchRow(part.row.id, part.num_tokens, part.start, part.emits) for part in self._batch.values()]


def _own(row: Row) -> AsyncRow:
    assert isinstance(row, AsyncRow)
    return row
