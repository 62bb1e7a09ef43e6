"""Text Generation Inference 3 where the model can chunk prompts: prefill and decode in one pass."""

from __future__ import annotations

from itertools import islice

from policies.core.native import mypyc_attr
from policies.core.plan import Chunk, Grant, Horizon, Idle, StepPlan
from policies.core.rows import Row
from policies.systems.tgi import Tgi

_FOREVER = 1 << 40


@mypyc_attr(allow_interpreted_subclasses=True)
class TgiChunked(Tgi):
    """TGI 3's batching task, a step for each forward pass.

    A round asks the queue for new requests, whatever their number; if there are any, they run in one pass with the
    running batch. Then, unless nothing ran before them, comes a pass of all that run, before the next round.

    New requests come from the head of the queue while the blocks of prompt + ``max_tokens`` - 1 tokens are free, and
    their prompts have at most ``max_batch_prefill_tokens`` less the tokens that the running batch will compute in that
    pass, in whole blocks; the last one is cut to what is left. The next piece of a cut prompt is what is left of it, at
    most ``max_batch_prefill_tokens`` less one for each other request of the pass before, older ones first.
    """

    cuts_prompts = True

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """A mixed pass with new requests, or one of those that run."""
        if self.rejected:
            self.rejected = []
        if not self.waiting and not self.partial:
            self._decode_is_due = False
            return self.quiet_plan() if self.decode.rows else self.idle("no_requests")
        running = bool(self.running)
        asks = not (self._decode_is_due and running)
        self._decode_is_due = False
        sizes = self._new_sizes() if asks and self.waiting else []
        if not asks:
            self._limit, self._num_fitting = "batch", -1
        if not sizes and not running:
            return self.idle("blocked" if self.waiting else "no_requests", rejected=self.rejected)
        self._decode_is_due = running and bool(sizes)
        chunks = [self._compute(row, self._next_chunks[row.id]) for row in list(self.partial.values())]
        joins: list[Grant] = []
        for count in sizes:
            row = self.waiting.popleft()
            self.enter(row)
            joins.append((row.id, self.kv.open(row.id, self.reserved_blocks(row))))
            chunks.append(self._compute(row, count))
        self._plan_chunks()
        return self.make_plan(
            decode=True,
            chunks=chunks,
            joins=joins,
            rejected=self.rejected,
            limited_by=self._limit if self.waiting else "arrivals",
        )

    def _compute(self, row: Row, count: int) -> Chunk:
        """Book a piece of a prompt; until its last one the row is partial."""
        start = row.num_computed_tokens
        row.num_computed_tokens = end = start + count
        if end < row.num_tokens:
            self.partial[row.id] = row
        return Chunk(row.id, start, count, end == row.num_tokens)

    def _plan_chunks(self) -> None:
        """The pieces of the next pass, from the size that the batch has in this one."""
        self._next_chunks = {}
        budget = self.max_batch_prefill_tokens - (len(self.running) - 1)
        for row in self.partial.values():
            rest = row.num_tokens - row.num_computed_tokens
            if rest:
                self._next_chunks[row.id] = count = max(min(rest, budget), 1)
                budget -= count

    def _new_sizes(self) -> list[int]:
        """Tokens of the prompts that start now, from the head of the queue; sets what stops the next one."""
        kv = self.kv
        current_tokens = len(self.decode.rows) + sum(self._next_chunks[key] for key in self.partial)
        left = kv.blocks_for(max(self.max_batch_prefill_tokens - current_tokens, 0)) * kv.block_size
        sizes: list[int] = []
        places = min(max(self.max_num_seqs - len(self.running), 0), len(self.waiting))
        while not sizes:
            free = kv.pool.num_free - self.unused_blocks
            self._limit = "max_num_seqs"
            for row in islice(self.waiting, places):
                free -= self.reserved_blocks(row)
                if free < 0 or not left:
                    self._limit = "kv_blocks" if free < 0 else "token_budget"
                    break
                sizes.append(min(row.prompt_tokens, left))
                left -= sizes[-1]
                if sizes[-1] < row.prompt_tokens:
                    self._limit = "token_budget"
                    break
            if sizes or self.running or not self.waiting or self.faithful:
                break
            self.reject(self.waiting.popleft(), "kv_capacity")
        self._num_fitting = len(sizes)
        return sizes

    def horizon(self) -> Horizon:
        """A head that does not fit waits for a request to end."""
        if self.partial or (self.waiting and self._num_fitting):
            return Horizon(0, True)
        return Horizon(_FOREVER, not self.waiting)
