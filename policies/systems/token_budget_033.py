"""Token-budget scheduling after vLLM V1 0.33.0: the rules of 0.11.2 with a gate before the running list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import Idle, StepPlan
from policies.core.rows import Row
from policies.systems.token_budget_priority import PriorityTokenBudget, SchedulingPolicy


@mypyc_attr(allow_interpreted_subclasses=True)
class TokenBudget033(PriorityTokenBudget):
    """vLLM V1's scheduler of 0.33.0.

    A waiting request is admitted only if the blocks of all it knows are free, not only those of its first chunk
    (``scheduler_reserve_full_isl``), and ``watermark`` (a fraction) of the pool stays free while others run. Without
    chunks a prompt for which the step has no tokens left hides those behind it. The threshold does not cut the prompt
    of a request that has the engine to itself. By priority, a request that is its own victim does not end the walk.

    The memory must hand freed blocks without a hash out first (``KvManager(unhashed_first=True)``).
    """

    own_end_ends_walk: ClassVar[bool] = False
    stops_at_long_prompt: ClassVar[bool] = True

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
            faithful=faithful,
        )
        self.reserve_full_isl = scheduler_reserve_full_isl
        self.watermark_blocks = int(watermark * kv.num_gpu_blocks)
        self._threshold = long_prefill_token_threshold
        self._hashes_all = kv.prefix_cache is not None

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """As of 0.11.2; the threshold holds where there are two requests or more."""
        if self._threshold:
            is_alone = len(self.waiting) + len(self.running) == 1
            self.chunk_limit = self.max_model_len if is_alone else self._threshold
        return super().schedule(now_s)

    def _can_open(self, row: Row, num_blocks: int, hits: Sequence[int]) -> bool:
        """True if the blocks of the whole request, or of its first chunk, are free and leave the watermark."""
        if self.reserve_full_isl:
            num_blocks = self.kv.blocks_for(row.num_tokens)
        return self.kv.can_open(num_blocks, hits, self.watermark_blocks if self.running else 0)

    def remove(self, row: Row) -> None:
        """Free a row's blocks; with the prefix cache, those of a row that was not hashed go where they would if it
        were."""
        if self._hashes_all and row.content is None:
            self.detach(row)
            self.kv.close_private(row.id, self._num_hashed(row) // self.kv.block_size)
        else:
            super().remove(row)

    def _num_hashed(self, row: Row) -> int:
        """Tokens of a row that goes whose full blocks count as hashed."""
        return row.num_computed_tokens
