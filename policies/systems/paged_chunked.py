"""Chunked prefill of vLLM V0 (0.6.3): running requests first, prompts in chunks beside them.

Decodes stand before prefills in the running list, and rows that a step leaves out move to its front; the
list's end picks the victims, so its order is part of the decision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from policies.core.errors import Stuck
from policies.core.native import mypyc_attr
from policies.core.plan import BatchRow, Chunk, Idle, StepPlan
from policies.core.rows import Row
from policies.systems.paged import Paged


@mypyc_attr(allow_interpreted_subclasses=True)
class PagedChunked(Paged):
    """vLLM V0's scheduler with ``enable_chunked_prefill``; parameters as of ``Paged``."""

    def _least_token_budget(self) -> int:
        return 1

    def _begin(self) -> None:
        super()._begin()
        self._num_seqs = 0
        self._chunks_running: list[Chunk] = []
        self._chunks_resumed: list[Chunk] = []
        self._resumed: list[Row] = []

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Running requests; then, if none gave way, swapped ones; then waiting ones, within the budget."""
        if self._paused:
            self.unpause()
        elif not self.waiting and not self.swapped and not self.partial and self._is_easy():
            self._acted = False
            self._resumed = []
            return self.make_plan(decode=True, grants=self.decode.grant())
        self._begin()
        left_out: Sequence[Row] = ()
        if self.running and not self._run_all():
            left_out = self._walk_running()
        if self.swapped and not self._preempted:
            self._swap_in()
        self._admit()
        self._requeue()
        if left_out or self._resumed or self._chunks_resumed:
            self._reorder(left_out)
        chunks = [*self._chunks_new, *self._chunks_running, *self._chunks_resumed]
        if self._gave_way and (self.decode.rows or any(chunk.emits for chunk in chunks)):
            self._gave_way.clear()
        return self._make_step(decode=True, chunks=chunks)

    def _is_easy(self) -> bool:
        return len(self.decode.rows) <= self.max_num_batched_tokens and super()._is_easy()

    def _limit(self) -> str:
        if not self.waiting:
            return "swapped" if self.swapped else "arrivals"
        return self._blocked_by or "kv_blocks"

    def _arrivals_matter(self) -> bool:
        return not self.waiting

    # -- running requests ------------------------------------------------------------------------------------

    def _run_all(self) -> bool:
        """Run every row if the walk over the list could not do otherwise, in O(changes); False if it might.

        It could not if the list is decodes, then partial rows, each row gets tokens, and each sees a free
        block.
        """
        decode, partial = self.decode, self.partial
        left = self.max_num_batched_tokens - len(decode.rows)
        tail = list(islice(reversed(self.running.values()), len(partial)))
        rests = [row.num_tokens - row.num_computed_tokens for row in reversed(tail)]
        if self.kv.num_free <= decode.num_needed or left < 0 or (rests and sum(rests[:-1]) >= left):
            return False
        if any(row.id not in partial for row in tail):
            return False
        self._num_tokens = self._num_seqs = len(decode.rows)
        self._grants = decode.grant()
        for row in reversed(tail):
            self._continue(row)
        return True

    def _walk_running(self) -> Sequence[Row]:
        """vLLM's walk, row by row; returns the rows left out when the tokens were used up."""
        self.decode.granted_elsewhere()
        tail = self._unwalked = deque(self.running.values())
        while tail and self._num_tokens < self.max_num_batched_tokens:
            row = tail.popleft()
            if row.is_decoding:
                if self._make_room(row, 1, tail):
                    self._grant_one(row)
                    self._num_tokens += 1
                    self._num_seqs += 1
            elif self._make_room(row, self._touched(row), tail):
                self._continue(row)
            elif not self.running and not self.swapped:
                self._gives_way_to_itself(row)
        for row in tail:
            if row.is_decoding:
                self.pause(row)
        return tail

    def _touched(self, row: Row) -> int:
        """Free blocks a partial row asks for, although it holds those of its whole prompt.

        One, unless the prompt fills its blocks. Alone in a full pool the row would give way to itself and start
        over for ever, so there it asks for none.
        """
        if len(self.running) == 1 and not self.faithful:
            return 0
        return int(row.num_tokens % self.kv.block_size > 0)

    def _gives_way_to_itself(self, row: Row) -> None:
        """Twice without a token in between means that the real engine computes the same chunks for ever."""
        if row.id in self._gave_way:
            raise Stuck(f"request {row.id} gives way to itself before its last chunk and starts over for ever")
        self._gave_way.add(row.id)

    def _continue(self, row: Row) -> None:
        rest = row.num_tokens - row.num_computed_tokens
        left = self.max_num_batched_tokens - self._num_tokens
        self._chunks_running.append(self._chunk(row, min(rest, left)))

    def _reorder(self, left_out: Sequence[Row]) -> None:
        """The list after a step: rows left out, swapped in (decodes first), decodes, running and new
        prefills."""
        running = self.running
        prefills = [running[chunk.id] for chunk in (*self._chunks_running, *self._chunks_new)]
        resumed_prefills = [running[chunk.id] for chunk in self._chunks_resumed]
        rows = {row.id: row for row in (*left_out, *self._resumed, *resumed_prefills)}
        late = {row.id for row in prefills}
        rows |= {key: row for key, row in running.items() if key not in rows and key not in late}
        rows |= {row.id: row for row in prefills}
        self.running = rows
        for row in rows.values():
            self._last_order += 1
            row.order = self._last_order
        self.decode.reordered()

    # -- waiting and swapped requests ------------------------------------------------------------------------

    def _prompt_tokens(self, row: Row) -> int:
        return min(row.num_tokens, self.max_num_batched_tokens - self._num_tokens)

    def _resume(self, row: Row) -> None:
        super()._resume(row)
        if row.is_decoding:
            self._resumed.append(row)

    def _resume_prompt(self, row: Row) -> None:
        rest = row.num_tokens - row.num_computed_tokens
        self._chunks_resumed.append(self._chunk(row, rest))

    # -- views -----------------------------------------------------------------------------------------------

    def batch_order(self) -> list[BatchRow]:
        """Prefills (new, running, swapped in), then decodes, those swapped in last."""
        order = [BatchRow(chunk.id, chunk.num_tokens, chunk.start, chunk.emits) for chunk in self._chunks]
        if self._decode_runs:
            resumed = {row.id for row in self._resumed}
            decodes = [row for row in self.running.values() if row.is_decoding and row.id not in resumed]
            for row in (*decodes, *self._resumed):
                order.append(BatchRow(row.id, 1, self.decode.num_tokens(row) - 1, True))
        return order
