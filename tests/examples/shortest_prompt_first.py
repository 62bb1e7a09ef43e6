"""Continuous batching that admits the shortest waiting prompt first, and never preempts."""

from policies.core.kv import KvManager
from policies.core.plan import Chunk, Finish, Grant, Horizon, Idle, StepPlan
from policies.systems.base import BatchingPolicy


class ShortestPromptFirst(BatchingPolicy):
    """Reserves the blocks of prompt and output at entry, so that no row is ever out of blocks.

    A request overtakes one that came k requests earlier only if its prompt is more than k * ``ageing_tokens`` shorter,
    so that nobody waits for ever.
    """

    def __init__(self, kv: KvManager, *, max_num_seqs: int, max_model_len: int, ageing_tokens: int = 1) -> None:
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len, grows=False)
        self.ageing_tokens = ageing_tokens

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Decode all that runs; beside it prefill the shortest prompts that fit."""
        joins: list[Grant] = []
        chunks: list[Chunk] = []
        rejected: list[Finish] = []
        for row in sorted(self.waiting, key=lambda row: row.prompt_tokens + self.ageing_tokens * row.id):
            num_blocks = self.kv.blocks_for(min(row.prompt_tokens + row.request.max_tokens, self.max_model_len))
            if num_blocks > self.kv.num_blocks:
                self.waiting.remove(row)
                rejected.append(Finish(row.id, "kv_capacity", 0))
            elif len(self.running) == self.max_num_seqs or num_blocks > self.kv.num_free:
                break
            else:
                self.waiting.remove(row)
                join, chunk = self.admit(row, num_blocks)
                joins.append(join)
                chunks.append(chunk)
        if not self.running:
            return self.idle("no_requests", rejected=rejected)
        limit = "kv_blocks" if self.waiting else "arrivals"
        return self.make_plan(decode=True, chunks=chunks, joins=joins, rejected=rejected, limited_by=limit)

    def horizon(self) -> Horizon:
        """With nobody waiting the rows decode until one ends or a request arrives; else ask at every step."""
        return Horizon(0 if self.waiting else 1 << 40, True)
