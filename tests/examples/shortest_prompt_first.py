"""Continuous batching that admits the shortest waiting prompt first, and never preempts."""

from policies.core.kv import KvManager
from policies.core.plan import Chunk, Grant, Horizon, Idle, StepPlan
from policies.systems.base import BatchingPolicy


class ShortestPromptFirst(BatchingPolicy):
    """Reserves the blocks of prompt and output at entry, so that no row is ever out of blocks."""

    def __init__(self, kv: KvManager, *, max_num_seqs: int, max_model_len: int, max_prompts: int = 8) -> None:
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len, grows=False)
        self.max_prompts = max_prompts  # of one step

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Decode all that runs; beside it prefill the shortest prompts that fit."""
        joins: list[Grant] = []
        chunks: list[Chunk] = []
        for row in sorted(self.waiting, key=lambda row: row.prompt_tokens)[: self.max_prompts]:
            most_tokens = min(row.prompt_tokens + row.request.max_tokens, self.max_model_len)
            num_blocks = self.kv.blocks_for(most_tokens)
            if len(self.running) == self.max_num_seqs or num_blocks > self.kv.num_free:
                break
            self.waiting.remove(row)
            join, chunk = self.admit(row, num_blocks)
            joins.append(join)
            chunks.append(chunk)
        if not self.running:
            return self.idle("blocked" if self.waiting else "no_requests")
        limit = "kv_blocks" if self.waiting else "arrivals"
        return self.make_plan(decode=True, chunks=chunks, joins=joins, limited_by=limit)

    def horizon(self) -> Horizon:
        """With nobody waiting the rows decode until one ends or a request arrives; else ask at every step."""
        return Horizon(0 if self.waiting else 1 << 40, True)
