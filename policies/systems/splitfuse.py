"""Dynamic SplitFuse after DeepSpeed-MII (8abdd98): generations first, prompts split to fill a fixed number of
tokens, each batch planned while the one before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from policies.core.errors import ContractError, EngineDied
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import (
    BatchRow,
    Chunk,
    Finish,
    Grant,
    Horizon,
    Idle,
    Load,
    PreemptionMode,
    Queues,
    StepPlan,
    StepResult,
)
from policies.core.protocols import Counts, Details, Ids
from policies.core.request import Request, RequestId
from policies.core.rows import Row
from policies.systems.base import BatchingPolicy


@mypyc_attr(allow_interpreted_subclasses=True)
class SplitFuse(BatchingPolicy):
    """One call of MII's loop is one step: it frees what was flushed, runs the batch that the call before planned, and
    plans the next one. So a request runs one step after the first one that finds it, with an empty step before if
    nothing ran.

    ``waiting`` is MII's buffer: prompts, the rest of a split prompt in front, and generations left out of the batch. A
    generation that got its token goes behind them all. A plan takes at most ``max_num_seqs`` generations and as many as
    ``max_num_batched_tokens``, each if its last block has room or a block is left; then prompts, while tokens are
    left: more than one token must fit whole into the blocks left, though only the tokens left are computed.

    If nothing can be planned, the last request of the buffer that holds KV is to be computed again, at the end of the
    buffer. The blocks of a finished request come back two calls later: the next plan picks up the flush that its client
    queues, the call after that frees. (Aborts, which MII has not, are taken for such flushes.)

    ``faithful``: the engine dies when nothing can be planned, nobody in the buffer holds KV and no flush has been
    picked up; and of one prompt too many, since prompts join up to ``max_num_seqs`` and one more, flushes counted.
    Otherwise the first goes on, a prompt that all of the pool cannot hold ends with ``kv_capacity``, and
    ``max_num_seqs`` holds.
    """

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        faithful: bool = False,
    ) -> None:
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.faithful = faithful
        self.num_waiting = 0
        self._next: list[tuple[Row, int]] = []
        self._answered: list[RequestId] = []
        self._to_flush: list[RequestId] = []
        self._flushed: Sequence[RequestId] = ()
        self._preempted: list[tuple[RequestId, PreemptionMode]] = []
        self._blocked_by = ""
        self._stays_blocked = False
        self._death = ""

    # -- arrivals and ends -----------------------------------------------------------------------------------

    def on_arrival(self, request: Request) -> None:
        """Append a request to the buffer."""
        self.num_waiting += 1
        if not self.waiting:
            self._stays_blocked = False
        super().on_arrival(request)

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request; blocks that it holds are flushed as if it had finished."""
        rows = chain(self.waiting, (row for row, _ in self._next))
        row = self.running.get(request_id) or next((row for row in rows if row.id == request_id), None)
        if row is None:
            raise ContractError(f"abort of request {request_id}, which this policy does not hold")
        self._stays_blocked = False
        self._next = [item for item in self._next if item[0] is not row]
        self._preempted = [item for item in self._preempted if item[0] != request_id]
        if row in self.waiting:
            self.waiting.remove(row)
        if request_id in self.running:
            self.remove(row)
        else:
            self.num_waiting -= 1
        return row.num_tokens - row.prompt_tokens

    def remove(self, row: Row) -> None:
        """Take a row off the running list; its client will queue the flush before the next step."""
        self.detach(row)
        self.kv.retire(row.id)
        self._answered.append(row.id)

    # -- steps -----------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Free what is to be flushed, then run what the last step planned."""
        if self._death:
            raise EngineDied(self._death)
        self._flushed = ()
        if self._to_flush:
            self._flush(self._to_flush)
        rejected = [] if self.faithful or self._blocked_by != "kv_blocks" else self._reject_hopeless()
        if not (self._next or self._preempted or self._paused or rejected):
            if self.decode.rows and not self.waiting:
                return self.quiet_plan()
            if not self.decode.rows and not self.waiting:
                return self._idle(())
        return self._make_step(rejected)

    def _make_step(self, rejected: Sequence[Finish]) -> StepPlan | Idle:
        num_seqs = len(self.decode.rows) + len(self._next)
        if not (num_seqs or self._paused or self.waiting or self._preempted):
            return self._idle(rejected)
        if num_seqs > self.max_num_seqs:
            self._death = f"{num_seqs} sequences in a batch that has room for {self.max_num_seqs}"
            raise EngineDied(self._death)
        grants = self.decode.grant()
        chunks: list[Chunk] = []
        joins: list[Grant] = []
        for row, count in self._next:
            chunks.append(self._begin_chunk(row, count, joins, grants))
        preempted, self._next, self._preempted = self._preempted, [], []
        return self.make_plan(
            decode=bool(self.decode.rows),
            chunks=chunks,
            joins=joins,
            grants=grants,
            preempted=preempted,
            rejected=rejected,
            limited_by=self._blocked_by or "batch" if self.num_waiting else "arrivals",
        )

    def _begin_chunk(self, row: Row, count: int, joins: list[Grant], grants: list[Grant]) -> Chunk:
        """Blocks for the next tokens of a prompt, which count as computed from now on."""
        start = row.num_computed_tokens
        row.num_computed_tokens = end = start + count
        if row.id in self.running:
            short = self.kv.blocks_for(end) - len(self.kv.tables[row.id])
            if short:
                grants.append((row.id, self.kv.extend(row.id, short)))
        else:
            self.num_waiting -= 1
            self.enter(row)
            joins.append((row.id, self.kv.open(row.id, self.kv.blocks_for(end))))
        if end < row.num_tokens:
            self.partial[row.id] = row
        return Chunk(row.id, start, count, end == row.num_tokens)

    def _idle(self, rejected: Sequence[Finish]) -> Idle:
        """Nobody is there: the calls of the loop that follow take no time and free everything."""
        self._flush(self._answered)
        return self.idle("no_requests", rejected=rejected)

    def _flush(self, ids: list[RequestId]) -> None:
        for request_id in ids:
            self.kv.free_retired(request_id)
        self._flushed = tuple(ids)
        self._stays_blocked = False
        ids.clear()

    def _reject_hopeless(self) -> list[Finish]:
        """End the prompts at the head of the buffer that all of the pool cannot hold; nobody could overtake them."""
        rejected = []
        while self.waiting and self.kv.blocks_for(self.waiting[0].num_tokens) > self.kv.num_blocks:
            row = self.waiting.popleft()
            self.num_waiting -= 1
            self._preempted = [item for item in self._preempted if item[0] != row.id]
            rejected.append(Finish(row.id, "kv_capacity", row.num_tokens - row.prompt_tokens))
            self._stays_blocked = False
        return rejected

    def horizon(self) -> Horizon:
        """A blocked prompt stays blocked while free blocks only shrink, and hides later arrivals. A flush to come
        must be seen."""
        if not self._decode_runs or self._chunks or self._paused or self._answered:
            return Horizon(0, True)
        if self.waiting and not self._stays_blocked:
            return Horizon(0, True)
        return Horizon(self.decode.free_steps(), not self.waiting)

    # -- results and the next plan ---------------------------------------------------------------------------

    def on_step_end(self, result: StepResult) -> None:
        """Book tokens and ends, then plan the next step from what had come before this one began."""
        self._to_flush, self._answered = self._answered, self._to_flush
        super().on_step_end(result)
        num_blocks = self._plan_generations()
        self._blocked_by = ""
        if self.waiting:
            self._plan_prompts(num_blocks)
            if not (self.decode.rows or self._next or self._to_flush):
                self._reset_last()

    def _book_chunks(self, finished: Sequence[Finish]) -> None:
        """Prompts that got their first token line up behind the other generations."""
        for request_id, _, _, emits in self._chunks:
            if emits:
                self.enter(self.running.pop(request_id))
        super()._book_chunks(finished)

    def _plan_generations(self) -> int:
        """Pause the generations that the next step leaves out; returns the blocks that the others need."""
        decode, num_free = self.decode, self.kv.pool.num_free
        before: Sequence[Row] = ()
        if self._paused:
            before = self._paused.copy()
            self.unpause()
            self._line_up(before)
        limit = min(self.max_num_seqs, self.max_num_batched_tokens)
        needed = decode.num_needed
        if needed <= num_free and len(decode.rows) <= limit:
            if before:
                self._keep_in_buffer(before)
            return needed
        num_blocks = 0
        for place, row in enumerate([row for row in self.running.values() if row.is_decoding]):
            needs_block = decode.needs_block(row)
            if place < limit and num_blocks + needs_block <= num_free:
                num_blocks += needs_block
            else:
                self.pause(row)
        self._keep_in_buffer(before)
        return num_blocks

    def _line_up(self, first: Sequence[Row]) -> None:
        """Those that stayed in the buffer come before those that got a token."""
        rows = dict.fromkeys((*first, *self.running.values()))
        self.running = {}
        for row in rows:
            self.enter(row)
        self.decode.reordered()

    def _keep_in_buffer(self, before: Sequence[Row]) -> None:
        """Generations that run leave the buffer, those left out stay in it or go to its end."""
        for row in before:
            if row.is_decoding:
                self.waiting.remove(row)
        if self._paused:
            self.waiting.extend([row for row in self._paused if row not in before])

    def _plan_prompts(self, num_blocks: int) -> None:
        """Chunks of prompts beside generations that need ``num_blocks``, until something does not fit."""
        kv, buffer = self.kv, self.waiting
        num_free, num_rows = kv.num_free, len(self.decode.rows)
        budget = self.max_num_batched_tokens - num_rows
        kept: list[Row] = []
        self._stays_blocked = True
        while buffer and not self._blocked_by:
            row = buffer[0]
            rest = row.num_tokens - row.num_computed_tokens
            if row in self._paused:
                kept.append(buffer.popleft())
                continue
            self._blocked_by = self._obstacle(row, rest, num_free, num_blocks, num_rows, budget)
            if self._blocked_by:
                break
            count = min(rest, budget)
            short = self._blocks_short(row, count)
            buffer.popleft()
            if num_blocks + short > num_free:  # a rest of one token is passed over
                self._stays_blocked = False
                kept.append(row)
                continue
            self._next.append((row, count))
            if row.id in self.running:
                self.enter(self.running.pop(row.id))  # the running list keeps batch order
            num_rows, num_blocks, budget = num_rows + 1, num_blocks + short, budget - count
            if count < rest:
                kept.insert(0, row)
        buffer.extendleft(reversed(kept))

    def _obstacle(
        self, row: Row, rest: int, num_free: int, num_blocks: int, num_rows: int, budget: int
    ) -> str:
        """What keeps a prompt, and all behind it, out of the next step; empty if nothing does. What can change while
        generations go on comes last."""
        if num_rows + len(self._to_flush) > self.max_num_seqs:
            return "max_num_seqs"
        if num_rows >= self.max_num_seqs and not self.faithful:
            return "max_num_seqs"
        if budget <= 0:
            return "token_budget"
        if not num_free or (rest > 1 and num_blocks + self._blocks_short(row, rest) > num_free):
            return "kv_blocks"
        return ""

    def _blocks_short(self, row: Row, count: int) -> int:
        """Blocks a prompt needs beyond its own to compute ``count`` more tokens."""
        held = len(self.kv.tables[row.id]) if row.id in self.running else 0
        return self.kv.blocks_for(row.num_computed_tokens + count) - held

    def _reset_last(self) -> None:
        """Nothing can be planned: flush the last request of the buffer that holds KV, to be computed again."""
        row = next((row for row in reversed(self.waiting) if row.id in self.running), None)
        if row is None:
            if self.faithful:
                self._death = f"nothing can be scheduled and none of {len(self.waiting)} requests holds KV"
            return
        self.detach(row)
        self.kv.retire(row.id)
        self._to_flush.append(row.id)
        row.num_computed_tokens = 0
        self.waiting.remove(row)
        self.waiting.append(row)
        self.num_waiting += 1
        self._preempted.append((row.id, "recompute"))

    # -- views -----------------------------------------------------------------------------------------------

    def batch_order(self) -> list[BatchRow]:
        """Generations, then prompts."""
        context = self.decode.num_tokens
        rows = self.running.values() if self._decode_runs else ()
        order = [BatchRow(row.id, 1, context(row) - 1, True) for row in rows if row.is_decoding]
        return order + [BatchRow(id_, count, start, emits) for id_, start, count, emits in self._chunks]

    def load(self) -> Load:
        """As everywhere; what holds KV is not waiting, though it may be in the buffer."""
        load = super().load()
        return load if load.waiting == self.num_waiting else load._replace(waiting=self.num_waiting)

    def queues(self) -> Queues:
        """Requests without KV, those that the next step runs in front; the others are running."""
        rows = dict.fromkeys(chain((row for row, _ in self._next), self.waiting))
        return Queues(tuple(row.id for row in rows if row.id not in self.running), tuple(self.running))

    def plan_details(self) -> Details:
        """Whose blocks came back at the start of the step."""
        return {"flushed": Ids(self._flushed)}

    def queue_details(self) -> Details:
        """The plan for the next step, the buffer after it, and whom it resets; an error if there is none."""
        generations = [(row.id, 1) for row in self.running.values() if row.is_decoding]
        details = {
            "planned": Counts((*generations, *((row.id, count) for row, count in self._next))),
            "waiting": Ids(row.id for row in self.waiting),
            "preempted": Ids(key for key, _ in self._preempted),
        }
        return {**details, "error": self._death} if self._death else details
