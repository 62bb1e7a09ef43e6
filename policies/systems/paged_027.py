"""Paged scheduling after vLLM 0.2.7, which pads the prompts of a step to the longest of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import Chunk, Idle, StepPlan
from policies.core.protocols import Services
from policies.core.rows import Row
from policies.systems.paged_sorted import SortedPaged


@mypyc_attr(allow_interpreted_subclasses=True)
class Paged027(SortedPaged):
    """vLLM 0.2.7's scheduler, where it differs from 0.6.3's.

    A prefill step is charged with its number of prompts times the longest, of which at most ``max_paddings`` tokens may
    be padding. Running and swapped requests are in order of arrival when a step decodes. A swapped request returns when
    one block more than it held is free; it asks for as many blocks of the CPU tier as it holds.
    """

    drops_in_a_step_of_its_own: ClassVar[bool] = True

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        max_paddings: int = 256,
        watermark: float = 0.01,
        preemption_mode: Literal["recompute", "swap", "auto"] = "recompute",
        services: Services | None = None,
        block_bytes: int = 0,
        pieces_per_block: int = 1,
        faithful: bool = False,
    ) -> None:
        super().__init__(
            kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            watermark=watermark,
            preemption_mode=preemption_mode,
            services=services,
            block_bytes=block_bytes,
            pieces_per_block=pieces_per_block,
            faithful=faithful,
        )
        self.max_paddings = max_paddings

    def place(self, row: Row) -> tuple[float, ...]:
        """Order of arrival."""
        return row.request.arrival_s, row.id

    # -- prompts -----------------------------------------------------------------------------------------------------

    def _padded(self, count: int) -> int:
        """Tokens of the step with one more prompt of ``count`` tokens."""
        longest = max([chunk.num_tokens for chunk in self._chunks_new], default=0)
        return (len(self._chunks_new) + 1) * max(longest, count)

    def _obstacle(self, count: int, num_blocks: int) -> str:
        padded = self._padded(count)
        if padded > self.max_num_batched_tokens or padded - self._num_tokens - count > self.max_paddings:
            return "token_budget"
        return super()._obstacle(count, num_blocks)

    def _make_step(self, *, decode: bool, chunks: list[Chunk]) -> StepPlan | Idle:
        plan = super()._make_step(decode=decode, chunks=chunks)
        if chunks and isinstance(plan, StepPlan):
            return plan._replace(num_tokens=len(chunks) * max(chunk.num_tokens for chunk in chunks))
        return plan

    # -- swapped requests --------------------------------------------------------------------------------------------

    def _decode_running(self) -> None:
        super()._decode_running()
        if len(self.swapped) > 1:
            self.swapped = {row.id: row for row in sorted(self.swapped.values(), key=self.place)}

    def _blocks_touched(self, row: Row, is_prefill: bool) -> int:
        """Blocks that a row holds, on the GPU before a swap out."""
        return len(self.kv.tables[row.id])

    def _swap_in(self) -> None:
        """Bring requests back from the head of the swapped queue until one does not fit."""
        kv, kept = self.kv, self.watermark_blocks
        while self.swapped:
            row = next(iter(self.swapped.values()))
            needed = len(kv.cpu_tables[row.id]) + 1
            if needed > kv.num_blocks - kept and not self.faithful:
                self._close_swapped(row)
                self._reject(row, "kv_capacity")
            elif self._num_seqs >= self.max_num_seqs or kv.num_free - needed < kept:
                break
            else:
                self._resume(row)
