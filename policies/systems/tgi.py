"""Text Generation Inference: prompts alone in a step, KV memory reserved for a whole request, nobody ever preempted.

The router's queue decides (router/src/queue.rs, router/src/infer.rs of 1.4.0; the same in backends/v3 where a model
cannot chunk prompts): a running batch is joined by a batch large enough to be worth its pause, or by any after some
steps without.
"""

from __future__ import annotations

from itertools import islice
from math import floor
from struct import pack, unpack

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import Chunk, Grant, Horizon, Idle, StepPlan, StepResult
from policies.core.request import Request, RequestId
from policies.core.rows import Row
from policies.systems.gated import Gated

_FOREVER = 1 << 40


@mypyc_attr(allow_interpreted_subclasses=True)
class Tgi(Gated):
    """The batching task of TGI's router, one step for each forward pass.

    A step prefills a new batch alone, or decodes the running one. Before each decode, unless a prefill has just joined
    it, the queue is asked for a new batch: of at least ``waiting_served_ratio`` times the running requests (rounded
    down, in single precision as there), or of any size once ``max_waiting_tokens`` tokens were made since the last
    prefill, which counts as one of them, or if nothing runs. It is taken from the head while its prompts have at most
    ``max_batch_prefill_tokens`` tokens, and prompts and ``max_tokens`` fit into ``max_batch_total_tokens`` (0: all of
    the pool) less the blocks that the running batch holds, where each of the two lengths counts in whole blocks.
    Blocks for prompt + ``max_tokens`` - 1 are taken at once and held to the end. ``by_blocks`` (3): they alone
    have to fit.

    ``max_model_len`` is TGI's max_total_tokens: a prompt over ``max_input_length`` tokens (0: what leaves room for one)
    is refused, a request that may exceed ``max_model_len`` as well (``over_length``), and one that comes while
    ``max_concurrent_requests`` are inside (``overloaded``).

    A head of the queue that an empty engine cannot take ends with ``kv_capacity``; where ``faithful`` it, and everybody
    behind it, waits for ever.
    """

    cuts_prompts = False

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_model_len: int,
        max_batch_prefill_tokens: int,
        max_batch_total_tokens: int = 0,
        max_input_length: int = 0,
        waiting_served_ratio: float = 1.2,
        max_waiting_tokens: int = 20,
        max_concurrent_requests: int = 0,
        by_blocks: bool = False,
        faithful: bool = False,
    ) -> None:
        super().__init__(
            kv,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_requests=max_concurrent_requests,
            grows=False,
        )
        size, pool_tokens = kv.block_size, kv.num_blocks * kv.block_size
        self.max_input_length = max_input_length or max_model_len - 1
        self.max_batch_prefill_tokens = max_batch_prefill_tokens
        self.max_prefill_tokens = kv.blocks_for(max_batch_prefill_tokens) * size
        self.max_total_tokens = min(max_batch_total_tokens or pool_tokens, pool_tokens)
        self.waiting_served_ratio = _single(waiting_served_ratio)
        self.max_waiting_tokens = max_waiting_tokens
        self.by_blocks = by_blocks
        self.unused_blocks = 0
        if by_blocks and max_batch_total_tokens:
            null_blocks = kv.num_gpu_blocks - kv.num_blocks
            self.unused_blocks = max(0, kv.num_blocks + null_blocks - max_batch_total_tokens // size)
        self.faithful = faithful
        self.waiting_tokens = 1
        self._decode_is_due = False
        self._num_fitting = 0
        self._limit = "batch"
        self._next_chunks: dict[RequestId, int] = {}
        self._check_lengths(max_batch_prefill_tokens)

    def _check_lengths(self, max_batch_prefill_tokens: int) -> None:
        longest, limit = self.max_input_length, self.max_model_len
        if longest >= limit:
            raise ConfigError(f"max_input_length is {longest}; TGI wants less than max_model_len = {limit}")
        if max_batch_prefill_tokens < longest and not self.cuts_prompts:
            raise ConfigError(
                f"max_batch_prefill_tokens is {max_batch_prefill_tokens}; TGI wants at least max_input_length ="
                f" {longest}"
            )

    def too_long(self, request: Request) -> str | None:
        """The router validates lengths before it queues a request."""
        if request.prompt_tokens > self.max_input_length:
            return "prompt_too_long"
        return "over_length" if request.prompt_tokens + request.max_tokens > self.max_model_len else None

    # -- steps -------------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Prefill the next batch if there is one, else decode."""
        has_rows = bool(self.decode.rows)
        if not self.waiting:
            self._decode_is_due = False
            return self.quiet_plan() if has_rows else self.idle("no_requests")
        self.rejected = []
        if self._decode_is_due and has_rows:
            self._decode_is_due, self._limit, self._num_fitting = False, "batch", -1
            return self.make_plan(decode=True, limited_by="batch")
        size = self._next_batch_size()
        if not size:
            if has_rows:
                return self.make_plan(decode=True, rejected=self.rejected, limited_by=self._limit)
            return self.idle("blocked" if self.waiting else "no_requests", rejected=self.rejected)
        self._decode_is_due, self.waiting_tokens = has_rows, 1
        joins, chunks = self._start(size)
        return self.make_plan(
            decode=False,
            chunks=chunks,
            joins=joins,
            rejected=self.rejected,
            limited_by=self._limit if self.waiting else "arrivals",
        )

    def _start(self, size: int) -> tuple[list[Grant], list[Chunk]]:
        joins, chunks = [], []
        for _ in range(size):
            row = self.waiting.popleft()
            join, chunk = self.admit(row, self.reserved_blocks(row))
            joins.append(join)
            chunks.append(chunk)
        return joins, chunks

    def reserved_blocks(self, row: Row) -> int:
        """Blocks that a request holds from its prefill to its end; its last token is never computed."""
        return self.kv.blocks_for(row.prompt_tokens + row.request.max_tokens - 1)

    def horizon(self) -> Horizon:
        """A head that does not fit waits for a request to end. One that waits for company goes with it, or when the
        running batch has made enough tokens without."""
        if not self.waiting:
            return Horizon(_FOREVER, True)
        if not self._num_fitting:
            return Horizon(_FOREVER, False)
        if self._num_fitting < 0:
            return Horizon(0, True)
        return Horizon(self.max_waiting_tokens - self.waiting_tokens - 1, self._num_fitting == len(self.waiting))

    def on_step_end(self, result: StepResult) -> None:
        """Book the step; decodes count towards ``max_waiting_tokens``."""
        if self._decode_runs:
            self.waiting_tokens += result.steps
        super().on_step_end(result)

    # -- the next batch ----------------------------------------------------------------------------------------------

    def _next_batch_size(self) -> int:
        """Requests at the head of the queue that start now; 0 if too few fit or wait."""
        num_running = len(self.decode.rows)
        self._num_fitting = size = self._count_fitting()
        while not size and not num_running and self.waiting and not self.faithful:
            self.reject(self.waiting.popleft(), "kv_capacity")
            self._num_fitting = size = self._count_fitting()
        if num_running and self.waiting_tokens < self.max_waiting_tokens:
            least = floor(_single(num_running * self.waiting_served_ratio))
            if 0 < size < least:
                self._limit = "batch"
            return size if size >= least else 0
        return size

    def _count_fitting(self) -> int:
        """How many requests from the head on fit beside the running batch; sets what stops the next one."""
        kv, unit = self.kv, 1 if self.by_blocks else self.kv.block_size
        free_blocks = kv.pool.num_free - self.unused_blocks
        budget = self.max_total_tokens - (kv.num_blocks - kv.pool.num_free) * kv.block_size
        places = self.max_num_seqs - len(self.running)
        self._limit = "max_num_seqs"
        size = prompt_tokens = total_tokens = 0
        for row in islice(self.waiting, min(max(places, 0), len(self.waiting))):
            prompt = -(-row.prompt_tokens // unit) * unit
            prompt_tokens += prompt
            total_tokens += prompt + -(-row.request.max_tokens // unit) * unit
            free_blocks -= self.reserved_blocks(row)
            if free_blocks < 0 or (total_tokens > budget and not self.by_blocks):
                self._limit = "kv_blocks"
                break
            if prompt_tokens > self.max_prefill_tokens:
                self._limit = "token_budget"
                break
            size += 1
        return size


def _single(value: float) -> float:
    """The nearest number in single precision, in which the router computes."""
    nearest: float = unpack("f", pack("f", value))[0]
    return nearest
