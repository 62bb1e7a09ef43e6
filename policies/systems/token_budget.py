"""Token-budget scheduling after vLLM V1 (0.11.2): one mixed batch a step, prompts in chunks, recompute only.

There is no prefill or decode phase: each step brings the computed tokens of every request as far towards its known
tokens as the budget allows, running requests first, then waiting ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from policies.core.errors import Stuck
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import Chunk, Finish, Grant, Horizon, Idle, PreemptionMode, StepPlan
from policies.core.prefix import PrivateContent
from policies.core.request import RequestId
from policies.core.rows import Row
from policies.systems.base import BatchingPolicy

_new_tuple: Final = tuple.__new__


@mypyc_attr(allow_interpreted_subclasses=True)
class TokenBudget(BatchingPolicy):
    """vLLM V1's scheduler.

    ``max_num_batched_tokens`` tokens a step, ``max_num_seqs`` running requests; a prompt chunk is at most
    ``long_prefill_token_threshold`` tokens (0 = no such limit). A running request that needs a block when none is free
    preempts the last of the running list, which is computed again later. ``faithful`` keeps the real engine's livelock
    of a request that the whole pool cannot hold; otherwise it ends with ``kv_capacity``.
    """

    stops_at_long_prompt: ClassVar[bool] = False
    """Without chunks, a prompt for which the step has no tokens left hides those behind it."""

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        faithful: bool = False,
    ) -> None:
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_chunked_prefill = enable_chunked_prefill
        self.chunk_limit = long_prefill_token_threshold or max_model_len
        self.faithful = faithful
        self._budget = 0
        self._skipped_head = self._head_exceeds = False
        self._new_chunks: list[Chunk] = []
        self._joins: list[Grant] = []
        self._grants: list[Grant] = []
        self._preempted: list[tuple[RequestId, PreemptionMode]] = []
        self._rejected: list[Finish] = []
        self._plan_preempted = False
        self._restarted = -1

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Running requests first, then, if nothing was preempted, waiting ones."""
        if self._paused:
            self.unpause()
        elif not self.waiting and not self.partial and self._is_easy():
            self._plan_preempted = False
            return self.quiet_plan()
        self._new_chunks, self._joins, self._preempted, self._rejected = [], [], [], []
        self._budget = self.max_num_batched_tokens
        self._schedule_running()
        if self.waiting and not self._preempted:
            self._admit()
        self._plan_preempted = bool(self._preempted)
        if not self.decode.rows and not self._new_chunks and not self._preempted:
            return self.idle("no_requests", rejected=self._rejected)
        return self.make_plan(
            decode=bool(self.decode.rows or self._new_chunks),
            chunks=self._new_chunks,
            joins=self._joins,
            grants=self._grants,
            preempted=self._preempted,
            rejected=self._rejected,
            limited_by=self._limit() if self.waiting else "arrivals",
        )

    def _is_easy(self) -> bool:
        """True when every decoding row runs and gets its block."""
        decode, num_free = self.decode, self.kv.pool.num_free
        num_seqs = len(decode.rows)
        return 0 < num_seqs <= self.max_num_batched_tokens and (num_seqs <= num_free or decode.num_needed <= num_free)

    def horizon(self) -> Horizon:
        """A blocked head stays blocked while free blocks only shrink, and hides every later arrival."""
        if self._plan_preempted or self._paused:
            return Horizon(0, True)
        return _new_tuple(Horizon, (self._quiet_steps(), not self.waiting or self._skipped_head))

    def _quiet_steps(self) -> int:
        """Steps for which the blocks surely suffice."""
        return self.decode.free_steps()

    def _limit(self) -> str:
        if len(self.running) >= self.max_num_seqs:
            return "max_num_seqs"
        is_short = self._budget <= 0 or self._skipped_head or self._head_exceeds
        return "token_budget" if is_short else "kv_blocks"

    # -- running requests --------------------------------------------------------------------------------------------

    def _schedule_running(self) -> None:
        """All decoding rows at once where the walk over the list could not decide otherwise, else the walk."""
        decode = self.decode
        num_decoding = len(decode.rows)
        if not self.partial:
            if not num_decoding or self._is_easy():
                self._grants = decode.grant()
                self._budget -= num_decoding
                return
        elif len(self.partial) == 1 and next(reversed(self.running)) in self.partial:
            row = self.running[next(reversed(self.running))]
            count = min(row.num_tokens - row.num_computed_tokens, self.chunk_limit, self._budget - num_decoding)
            if count > 0 and decode.num_needed + self._blocks_short(row, count) <= self.kv.pool.num_free:
                self._grants = decode.grant()
                self._budget -= num_decoding
                self._continue_chunk(row, count)
                return
        self._walk_running()

    def _walk_running(self) -> None:
        """vLLM's walk, row by row: the last running request gives way when a block is missing."""
        self._grants = []
        running, decode = self.running, self.decode
        decode.granted_elsewhere()
        scheduled: set[RequestId] = set()
        for row in list(running.values()):
            if row.id not in running:
                break
            if row.is_decoding and self._budget > 0 and not decode.needs_block(row):
                self._budget -= 1
                scheduled.add(row.id)
                continue
            count = min(self._tokens_left(row), self.chunk_limit, self._budget)
            if count == 0:
                continue
            if not self._make_room(row, count):
                break
            scheduled.add(row.id)
            if row.is_decoding:
                self._budget -= 1
                self._grant_one(row)
            else:
                self._continue_chunk(row, count)
        for row in [row for row in decode.rows.values() if row.id not in scheduled]:
            self.pause(row)

    def _tokens_left(self, row: Row) -> int:
        return 1 if row.is_decoding else row.num_tokens - row.num_computed_tokens

    def _blocks_short(self, row: Row, count: int) -> int:
        """Blocks a row needs beyond its own to compute ``count`` more tokens."""
        if row.is_decoding:
            return int(self.decode.needs_block(row))
        return self.kv.blocks_for(row.num_computed_tokens + count) - len(self.kv.tables[row.id])

    def _make_room(self, row: Row, count: int) -> bool:
        """Preempt from the tail until the row's blocks fit; False if the row itself had to go."""
        short = self._blocks_short(row, count)
        while short > self.kv.pool.num_free:
            victim = self.running[next(reversed(self.running))]
            if victim is row and len(self.running) == 1:
                self._outgrown(row)
                return False
            self._preempt(victim)
            if victim is row:
                return False
        return True

    def _grant_one(self, row: Row) -> None:
        if self.decode.needs_block(row):
            self._grants.append((row.id, self.kv.extend(row.id, 1)))
        if row.content is not None:
            self.kv.cache_blocks(row.id, row.content, self.decode.num_tokens(row))

    def _continue_chunk(self, row: Row, count: int) -> None:
        start = row.num_computed_tokens
        short = self._blocks_short(row, count)
        if short:
            self._grants.append((row.id, self.kv.extend(row.id, short)))
        self._compute(row, start, count)

    def _compute(self, row: Row, start: int, count: int) -> None:
        """Book a chunk: its tokens count as computed, and its full blocks may be hit, from now on."""
        row.num_computed_tokens = end = start + count
        self._budget -= count
        self._new_chunks.append(_new_tuple(Chunk, (row.id, start, count, end == row.num_tokens)))
        if row.content is not None:
            self.kv.cache_blocks(row.id, row.content, end)

    def _preempt(self, row: Row) -> None:
        """Free everything and wait at the front. What only this request could ever hit is hashed only now."""
        if row.content is None and self.kv.prefix_cache is not None:
            self._hash(row, self.decode.num_tokens(row) - 1 if row.is_decoding else row.num_computed_tokens)
        self.remove(row)
        row.num_computed_tokens = 0
        self.waiting.appendleft(row)
        self._preempted.append((row.id, "recompute"))

    def _hash(self, row: Row, num_tokens: int) -> None:
        """Hash a row's first ``num_tokens`` tokens, which no other request shares."""
        row.content = PrivateContent(row.id)
        self.kv.cache_blocks(row.id, row.content, num_tokens)

    def _outgrown(self, row: Row) -> None:
        """A request alone in the pool needs more than all of it: the real engine starts it over for ever."""
        if self.faithful:
            if self._restarted == row.id:
                raise Stuck(f"request {row.id} outgrows all {self.kv.num_blocks} KV blocks, starts over for ever")
            self._restarted = row.id
            self._preempt(row)
            return
        self.remove(row)
        self._rejected.append(Finish(row.id, "kv_capacity", row.num_tokens - row.prompt_tokens))

    # -- waiting requests --------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """From the head of the queue until something does not fit."""
        waiting, running, kv, limit = self.waiting, self.running, self.kv, self.chunk_limit
        skipped: list[Row] = []
        self._head_exceeds = False
        if kv.prefix_cache is not None:
            self.decode.cache_filling()
        while waiting and self._budget > 0 and len(running) < self.max_num_seqs:
            row = waiting[0]
            hits = kv.lookup(row.content, row.num_tokens) if row.content is not None else ()
            start = len(hits) * kv.block_size
            count = row.num_tokens - start
            if count > limit:
                count = limit
            if count > self._budget:
                if not self.enable_chunked_prefill:
                    if self.stops_at_long_prompt:
                        self._head_exceeds = True
                        break
                    skipped.append(waiting.popleft())
                    continue
                count = self._budget
            num_blocks = kv.blocks_for(start + count)
            if not self._can_open(row, num_blocks, hits):
                if running or not self._refuse_head():
                    break
                continue
            waiting.popleft()
            self.enter(row)
            self._joins.append((row.id, kv.open(row.id, num_blocks, hits)))
            self._compute(row, start, count)
            if row.num_computed_tokens < row.num_tokens:
                self.partial[row.id] = row
        self._skipped_head = bool(skipped)
        if skipped:
            waiting.extendleft(reversed(skipped))

    def _can_open(self, row: Row, num_blocks: int, hits: Sequence[int]) -> bool:
        """True if the head of the queue may have the blocks of its first chunk."""
        return self.kv.can_open(num_blocks, hits)

    def _refuse_head(self) -> bool:
        """The whole free pool cannot take the head of the queue: end it, or wait for ever as the real engine does."""
        if self.faithful:
            raise Stuck(f"request {self.waiting[0].id} can never get its KV blocks; the pool has {self.kv.num_blocks}")
        row = self.waiting.popleft()
        self._rejected.append(Finish(row.id, "kv_capacity", row.num_tokens - row.prompt_tokens))
        return True
