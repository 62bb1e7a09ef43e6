"""Asynchronous scheduling of vLLM V1 0.33.0: the next step is planned before the tokens of the last one are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from policies.core.errors import ContractError
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import AllBut, BatchRow, Chunk, Decode, Grant, Horizon, Idle, Load, StepPlan, StepResult
from policies.core.prefix import Content
from policies.core.request import Request, RequestId, output_segment
from policies.core.rows import Row
from policies.systems.token_budget_033 import TokenBudget033
from policies.systems.token_budget_flights import AsyncRow, Flights, Part, own
from policies.systems.token_budget_priority import SchedulingPolicy

_ALL: Final = Decode.ALL
_NONE: Final = Decode.NONE
_new_tuple: Final = tuple.__new__


@mypyc_attr(allow_interpreted_subclasses=True)
class AsyncTokenBudget(TokenBudget033):
    """vLLM V1's scheduler of 0.33.0 with ``async_scheduling``; parameters as of ``TokenBudget033``.

    A row that has completed what is known of it goes on with a placeholder for its next token; one that the token in
    flight will bring to ``max_tokens`` is not planned again. A preempted row still gets the tokens of plans in flight,
    may end with them, and waits until they have come. It leaves the batch only then (``StepPlan.leaves``), although
    its blocks are free at once. With nothing to plan while a step is in flight the plan is empty. Full blocks of
    known tokens may be hit as soon as they are planned, those that hold tokens in flight once these have come.

    A row decodes in lockstep from the plan after the one that gave it a token on, its counts those of what is planned.
    The running rows beside (``partial``) are in the middle of their prompt, or just done with it, or left out: they,
    and all of them where rows must give way, are planned one by one.
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
        self._flights = Flights(self.decode)
        self._num_leaving = 0

    # -- requests ----------------------------------------------------------------------------------------------------

    def new_row(self, request: Request) -> Row:
        """State of a new request; its content is hashed only if it says what it shares."""
        row = AsyncRow(request)
        if request.segments and self.kv.prefix_cache is not None:
            row.content = Content(request.segments, output_segment(request.id), self.kv.block_size)
        return row

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request, wherever it is; what is in flight of it is dropped."""
        row = self.running.get(request_id)
        if row is None:
            row = next((row for row in self.waiting if row.id == request_id), None)
            if row is None:
                raise ContractError(f"abort of request {request_id}, which this policy does not hold")
        self._end(own(row))
        return row.num_tokens - row.prompt_tokens

    def _end(self, row: AsyncRow) -> None:
        row.gone = True
        if row.is_decoding:
            self._step_out(row)
        if row.id in self.running:
            self.remove(row)
        else:
            self.waiting.remove(row)
            if row.in_flight:
                self._leave(row)

    def _leave(self, row: AsyncRow) -> None:
        """A preempted row leaves the batch."""
        self._leaves.append(row.id)
        self._num_leaving -= 1

    def _num_hashed(self, row: Row) -> int:
        return own(row).num_hashable

    # -- lockstep ----------------------------------------------------------------------------------------------------

    def _step_in_and_out(self) -> None:
        """Who decodes in lockstep from this plan on: those that the last plan gave a token, until all of theirs are
        planned."""
        flights = self._flights
        for row in flights.step_out_complete():
            self.partial[row.id] = row
        for part in self._batch.values():
            row = part.row
            if part.emits and not row.gone and part.epoch == row.epoch:
                limit = min(row.prompt_tokens + row.request.max_tokens, self.max_model_len)
                if row.num_computed_tokens + 1 < limit:
                    del self.partial[row.id]
                    flights.step_in(row, limit)
        if self._batch:
            self._batch = {}
        self.decode.lag = 1 if len(flights) else 0

    def _step_out(self, row: AsyncRow) -> None:
        self._flights.step_out(row)
        self.partial[row.id] = row

    # -- plans -------------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Running requests first, then, if nothing was preempted, waiting ones."""
        self._step_in_and_out()
        if not self.waiting and not self.partial and self._is_easy():
            self._plan_preempted = False
            plan = self.quiet_plan()
            self._take_off([], computes=True)
            return plan
        if self._threshold:
            is_alone = len(self.waiting) + len(self.running) == 1
            self.chunk_limit = self.max_model_len if is_alone else self._threshold
        self._joins, self._preempted, self._rejected = [], [], []
        self._budget = self.max_num_batched_tokens
        self._schedule_running()
        if self.waiting and not self._preempted:
            self._admit()
        self._plan_preempted = bool(self._preempted)
        computes = bool(self._batch or self.decode.rows)
        if not computes and not self._preempted and not self._flights.compute():
            return self.idle("no_requests", rejected=self._rejected)
        return self._make()

    def _make(self) -> StepPlan:
        num_seqs, sum_context, max_context = self.decode.totals()
        num_tokens, parts, chunks = num_seqs, list(self._batch.values()), []
        mode: Decode | tuple[RequestId, ...] = self._decoding()
        for part in parts:
            row, start, count = part.row, part.start, part.num_tokens
            row.in_flight += 1
            num_tokens += count
            if part.is_decode:
                num_seqs, sum_context, max_context = num_seqs + 1, sum_context + start, max(max_context, start)
            else:
                chunks.append(_new_tuple(Chunk, (row.id, start, count, part.emits)))
        plan = _new_tuple(StepPlan, (
            self._step, num_seqs, num_tokens, sum_context, max_context, mode, tuple(chunks),
            tuple(self._joins), tuple(self._grants), tuple(self._leaves), tuple(self._preempted),
            tuple(self._rejected), (), (), self._limit() if self.waiting else "arrivals", 0, (),
        ))  # fmt: skip
        self._leaves.clear()
        self._take_off(parts, computes=num_tokens > 0)
        return plan

    def _decoding(self) -> Decode | tuple[RequestId, ...]:
        """All that decode, by name if that is not everybody of the batch who could."""
        batch, rows = self._batch, self.decode.rows
        apart = [part.row.id for part in batch.values() if part.is_decode] if batch else []
        if apart or self._num_leaving:
            return (*rows, *apart) or _NONE
        if not rows:
            return _NONE
        left_out = [key for key, row in self.partial.items() if key not in batch and own(row).makes_tokens]
        if not left_out:
            return _ALL
        decoding = AllBut(rows)
        decoding.left_out = tuple(left_out)
        return decoding

    def _take_off(self, parts: list[Part], *, computes: bool) -> None:
        self._flights.take_off(parts, computes=computes)
        self._step = self._flights.next_step

    def skip(self, steps: int) -> Sequence[Grant]:
        """Blocks of further steps of a quiet run, which are in flight from now on."""
        grants = self.decode.skip(steps)
        self._flights.carry_on(steps)
        self._step = self._flights.next_step
        return grants

    def horizon(self) -> Horizon:
        """As of any token budget, unless a row is beside the lockstep."""
        return Horizon(0, True) if self.partial else super().horizon()

    def _quiet_steps(self) -> int:
        """As of any token budget, until a row is complete with what is in flight."""
        return min(super()._quiet_steps(), self._flights.steps_to_last())

    # -- running requests --------------------------------------------------------------------------------------------

    def _schedule_running(self) -> None:
        """The lockstep at once, then at most one row behind it, where the walk could not decide otherwise."""
        others = [own(row) for row in self.partial.values() if self._count(own(row)) > 0]
        self._scheduled = {}
        num_decoding = len(self.decode.rows)
        if (not num_decoding or self._is_easy()) and (not others or self._fits_behind(others)):
            self._grants = self.decode.grant()
            self._budget -= num_decoding
        else:
            self._grants = []
            for decoding in list(self.decode.rows.values()):
                self._step_out(own(decoding))
            others = [own(row) for row in self.running.values()]
        self._walk(others)

    def _fits_behind(self, rows: list[AsyncRow]) -> bool:
        """True for one row, last in the running list, that gets its blocks beside the lockstep."""
        row, decode = rows[0], self.decode
        if len(rows) > 1 or (decode.rows and row.order < decode.last_order):
            return False
        count = min(self._count(row), self._budget - len(decode.rows))
        return decode.num_needed + self._blocks_short(row, count) <= self.kv.pool.num_free

    def _walk(self, rows: list[AsyncRow]) -> None:
        """vLLM's walk, row by row."""
        for row in rows:
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
        self._batch[row.id] = Part(row, start, count, emits=emits, is_decode=row.makes_tokens)
        self._let_hit(row, min(end, row.num_tokens))
        if emits:
            row.placeholders += 1
            row.makes_tokens = True

    def _let_hit(self, row: AsyncRow, num_tokens: int) -> None:
        """Full blocks of a row's first tokens may be hit from now on."""
        row.num_hashable = num_tokens
        if row.content is not None:
            self.kv.cache_blocks(row.id, row.content, num_tokens)

    def _take_back(self, row: Row) -> None:
        super()._take_back(row)
        del self._batch[row.id]

    def _preempt(self, row: Row) -> None:
        """Free everything and wait; the tokens in flight still come."""
        row = own(row)
        if row.content is None and self.kv.prefix_cache is not None:
            self._hash(row, row.num_hashable)
        del self.running[row.id], self.partial[row.id]
        self.kv.close(row.id)
        row.num_computed_tokens = row.placeholders = 0
        row.makes_tokens = False
        row.epoch += 1
        self._num_leaving += 1
        if not row.in_flight:
            self._leave(row)
        self.waiting.appendleft(row)
        self._preempted.append((row.id, "recompute"))

    def _outgrown(self, row: Row) -> None:
        super()._outgrown(row)
        own(row).gone = not self.faithful

    # -- waiting requests --------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """From the head of the queue until something does not fit; those with tokens in flight keep their place."""
        waiting, size = self.waiting, self.kv.block_size
        skipped: list[Row] = []
        self._head_exceeds = False
        if not len(self._flights):
            self.decode.cache_filling()
        while waiting and self._budget > 0 and len(self.running) < self.max_num_seqs:
            row = own(waiting[0])
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
            self.partial[row.id] = row
            self._joins.append((row.id, self.kv.open(row.id, num_blocks, hits)))
            row.num_computed_tokens = start
            self._book(row, count)
        if skipped:
            waiting.extendleft(reversed(skipped))

    # -- results -----------------------------------------------------------------------------------------------------

    def on_step_end(self, result: StepResult) -> None:
        """The tokens of the oldest plan in flight come; what ends, running or waiting, is freed in batch order."""
        steps, finished = result[3], result[4]
        parts = self._flights.land(steps)
        for part in parts:
            self._deliver(part)
        if len(finished) == 1:
            self._end(self._find(finished[0][0], parts))
        elif finished:
            for row in sorted([self._find(finish[0], parts) for finish in finished], key=lambda row: row.order):
                self._end(row)

    def _find(self, request_id: RequestId, parts: Iterable[Part]) -> AsyncRow:
        """A request that has ended in a step with these parts, and may have been preempted since."""
        row = self.running.get(request_id)
        return own(row) if row is not None else next(part.row for part in parts if part.row.id == request_id)

    def _deliver(self, part: Part) -> None:
        row = part.row
        row.in_flight -= 1
        if row.gone:
            return
        is_stale = part.epoch != row.epoch
        if part.emits:
            row.num_tokens += 1
            if not is_stale:
                row.placeholders -= 1
                if not row.is_decoding:
                    self._let_hit(row, row.num_computed_tokens - row.placeholders)
        if is_stale and not row.in_flight:
            self._leave(row)

    # -- views -------------------------------------------------------------------------------------------------------

    def load(self) -> Load:
        """As of any policy, of the plan just made: what it decodes counts as planned, not as stored."""
        decode, kv = self.decode, self.kv
        num_decoding = len(decode.rows)
        stored, emitting = decode.sum_context - num_decoding, num_decoding
        for row in self.partial.values():
            stored += row.num_computed_tokens
        for part in self._batch.values():
            emitting += part.is_decode
        return _new_tuple(Load, (
            len(self.waiting), len(self.running), 0, kv.pool.num_free, stored,
            (decode.steps - 1) % decode.block_size, tuple(decode.sizes), emitting, kv.cpu_pool.num_free,
        ))  # fmt: skip

    def batch_order(self) -> list[BatchRow]:
        """Rows of the last plan in running order, those that it admitted last."""
        decode = self.decode
        order = {row.order: BatchRow(row.id, 1, decode.num_tokens(row) - 2, True) for row in decode.rows.values()}
        for part in self._batch.values():
            order[part.row.order] = BatchRow(part.row.id, part.num_tokens, part.start, part.emits)
        return [order[place] for place in sorted(order)]
