"""Scheduling after Vidur (7d47513): that simulator's own sarathi, vllm and orca."""

from __future__ import annotations

from typing import ClassVar, Literal

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.request import Request
from policies.core.rows import Row
from policies.systems.base import BatchingPolicy
from policies.systems.sarathi import Sarathi


@mypyc_attr(allow_interpreted_subclasses=True)
class Vidur(Sarathi):
    """Vidur's schedulers, where they differ from Sarathi-Serve's.

    Batches are in the order of the walk, decodes first. A request that gave way is a fresh one at once, and may
    join the very step again. ``vllm`` charges a step with its number of prompts times the longest. ``orca``
    reserves ``max_model_len // block_size`` blocks. ``max_num_seqs`` is Vidur's ``batch_size_cap``,
    ``max_model_len`` its ``max_tokens``; requests that do not fit the latter are refused at the door.

    A prompt longer than all of ``max_num_batched_tokens`` can never join a ``vllm`` step and ends with
    ``prompt_too_long``; if ``faithful``, it and all behind it wait for ever.
    """

    prompts_lead: ClassVar[bool] = False
    judges_by_old_progress: ClassVar[bool] = False

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_model_len: int,
        scheduler: Literal["sarathi", "vllm", "orca"] = "sarathi",
        max_num_batched_tokens: int = 0,
        watermark: float = 0.01,
        faithful: bool = False,
    ) -> None:
        super().__init__(
            kv,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            scheduler=scheduler,
            max_num_batched_tokens=max_num_batched_tokens,
            watermark=watermark,
            faithful=faithful,
        )
        if scheduler == "vllm":
            self.max_num_batched_tokens = max_num_batched_tokens
        if scheduler == "orca" and max_model_len % kv.block_size:
            raise ConfigError(
                f"max_model_len is {max_model_len}; Vidur's orca reserves whole blocks below it, too few for a"
                f" request of that length: give a multiple of block_size = {kv.block_size}"
            )

    def refusal(self, request: Request) -> str | None:
        """A prompt that leaves no room for one output token is refused."""
        return BatchingPolicy.refusal(self, request)

    def _is_too_long(self, row: Row) -> bool:
        return False

    def _why_never(self, row: Row, num_blocks: int) -> str:
        if self.scheduler == "vllm" and row.num_tokens > self.max_num_batched_tokens:
            return "prompt_too_long"
        return super()._why_never(row, num_blocks)

    def _charge(self, row: Row) -> int:
        longest = max([chunk.num_tokens for chunk in self._new_chunks], default=0)
        return (len(self._new_chunks) + 1) * max(longest, row.num_tokens)
