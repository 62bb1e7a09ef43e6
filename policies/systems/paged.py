"""Paged scheduling after vLLM V0 (0.6.3): prompts first, else decodes, and a queue of swapped requests.

A step is either a pure prefill step or a pure decode step. ``policies.systems.paged_chunked`` holds the
variant that mixes the two.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Literal

from policies.core.errors import ConfigError, ContractError, EngineDied
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import (
    Chunk,
    Finish,
    Grant,
    Horizon,
    Idle,
    PreemptionMode,
    StepPlan,
    Transfer,
)
from policies.core.protocols import Services
from policies.core.request import Request, RequestId
from policies.core.rows import Row
from policies.systems.base import BatchingPolicy

PREEMPTION_MODES = ("recompute", "swap", "auto")


@mypyc_attr(allow_interpreted_subclasses=True)
class Paged(BatchingPolicy):
    """vLLM V0's default scheduler.

    Waiting prompts are prefilled whole, ``max_num_batched_tokens`` tokens a step, as long as ``watermark`` (a
    fraction) of the blocks stays free; while a request is swapped out, none is. A running row asks for one
    free block in every step, even if it will take none, and the last of the running list gives way when there
    is no such block.

    ``preemption_mode``: ``recompute`` frees the victim's blocks, ``swap`` moves them to the CPU tier,
    ``auto`` (ours, not vLLM's) does what ``services`` say is cheaper for this victim: twice the transfer of
    its blocks, each of ``block_bytes`` in ``pieces_per_block`` copies, or computing its tokens once more.

    ``swap_exhausted`` counts victims that were computed again because the CPU tier was full; where
    ``faithful``, the engine dies instead, as the real one does, and a swapped request that can never return
    waits for ever.
    """

    tokens_past_length = 1
    drops_in_a_step_of_its_own: ClassVar[bool] = False
    """A pass that drops waiting requests and starts none is an empty step; else the decodes run in it."""

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        watermark: float = 0.01,
        preemption_mode: Literal["recompute", "swap", "auto"] = "recompute",
        services: Services | None = None,
        block_bytes: int = 0,
        pieces_per_block: int = 1,
        faithful: bool = False,
    ) -> None:
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.watermark_blocks = int(watermark * kv.num_blocks)
        self.preemption_mode = preemption_mode
        self.block_bytes = block_bytes
        self.pieces_per_block = pieces_per_block
        self.faithful = faithful
        self.swap_exhausted = 0
        self._services = services
        self._half_prefilled: set[RequestId] = set()
        self._gave_way: set[RequestId] = set()
        self._check_settings()
        self._begin()

    def _check_settings(self) -> None:
        if self.preemption_mode not in PREEMPTION_MODES:
            modes = ", ".join(PREEMPTION_MODES)
            raise ConfigError(f"preemption_mode is '{self.preemption_mode}'; it must be one of {modes}")
        if self.preemption_mode == "auto" and (self._services is None or self.block_bytes <= 0):
            raise ConfigError("preemption_mode 'auto' needs a cost model and block_bytes > 0 to compare costs")
        if self.kv.prefix_cache is not None:
            raise ConfigError("enable_prefix_caching is not modelled for vLLM V0; switch it off or use vllm-0.11")
        least = self._least_token_budget()
        if self.max_num_batched_tokens < least:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and must be at least {least};"
                " without chunked prefill vLLM V0 needs max_model_len, or a long prompt could never run"
            )

    def _least_token_budget(self) -> int:
        return self.max_model_len

    # -- arrivals and aborts ---------------------------------------------------------------------------------

    def refusal(self, request: Request) -> str | None:
        """This engine takes every request and drops the impossible ones when their turn comes."""
        return None

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request, wherever it is."""
        row = self.swapped.get(request_id)
        if row is None:
            return super().on_abort(request_id)
        self._close_swapped(row)
        return row.num_tokens - row.prompt_tokens

    # -- steps -----------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Waiting prompts if any fits and nothing is swapped out; else all decodes, then swapped requests."""
        if not self.waiting and not self.swapped and self._is_easy():
            self._acted = False
            return self.make_plan(decode=True, grants=self.decode.grant())
        self._begin()
        if not self.swapped:
            self._admit()
        decodes = not self._chunks_new and not (self.drops_in_a_step_of_its_own and self._rejected)
        if decodes:
            self._decode_running()
            if self.swapped and not self._preempted:
                self._swap_in()
            self._requeue()
        return self._make_step(decode=decodes, chunks=self._chunks_new)

    def _is_easy(self) -> bool:
        """True when there are only decodes and each is sure to see a free block in its turn."""
        decode = self.decode
        return len(decode.rows) > 0 and self.kv.pool.num_free > decode.num_needed

    def _begin(self) -> None:
        self._chunks_new: list[Chunk] = []
        self._joins: list[Grant] = []
        self._grants: list[Grant] = []
        self._transfers: list[Transfer] = []
        self._preempted: list[tuple[RequestId, PreemptionMode]] = []
        self._victims: list[Row] = []
        self._rejected: list[Finish] = []
        self._unwalked: deque[Row] = deque()
        self._acted = False
        self._blocked_by = ""
        self._num_tokens = 0
        self._num_seqs = len(self.running)

    def _make_step(self, *, decode: bool, chunks: list[Chunk]) -> StepPlan | Idle:
        """The plan; empty if nothing runs but this pass changed what the next one finds."""
        if not chunks and not (decode and self.decode.rows):
            pending = self.waiting or self.swapped or (self.running and not decode)
            if not self._preempted and not (self._rejected and pending):
                reason = "blocked" if pending else "no_requests"
                idle = Idle(reason, None, tuple(self._leaves), tuple(self._rejected))
                self._leaves.clear()
                return idle
            decode = False
        self._acted = bool(self._preempted or self._transfers or self._rejected)
        return self.make_plan(
            decode=decode,
            chunks=chunks,
            joins=tuple(self._joins),
            grants=self._grants,
            preempted=tuple(self._preempted),
            rejected=tuple(self._rejected),
            transfers=tuple(self._transfers),
            limited_by=self._limit(),
        )

    def _limit(self) -> str:
        if self.swapped:
            return "swapped"
        if not self.waiting:
            return "arrivals"
        return "kv_blocks" if self._victims else self._blocked_by or "swapped"

    def horizon(self) -> Horizon:
        """Free blocks only shrink in a quiet run: what is blocked stays blocked and hides later arrivals."""
        if self._acted or self._paused or self.partial or not self._decode_runs:
            return Horizon(0, True)
        return Horizon(self.decode.free_steps(keep=1), self._arrivals_matter())

    def _arrivals_matter(self) -> bool:
        return not self.waiting and not self.swapped

    # -- waiting requests ------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Prefill from the head of the queue until something does not fit; drop what never will."""
        waiting, kv, kept = self.waiting, self.kv, self.watermark_blocks
        while waiting:
            row = waiting[0]
            count = self._prompt_tokens(row)
            num_blocks = kv.blocks_for(row.num_tokens)
            if self._is_too_long(row, count):
                self._reject(waiting.popleft(), "prompt_too_long")
            elif kv.num_blocks - num_blocks < kept:
                self._reject(waiting.popleft(), "kv_capacity")
            else:
                self._blocked_by = self._obstacle(count, num_blocks)
                if self._blocked_by:
                    break
                self._start(waiting.popleft(), count, num_blocks)

    def _prompt_tokens(self, row: Row) -> int:
        return row.num_tokens

    def _is_too_long(self, row: Row, count: int) -> bool:
        """True for more than a step or the model takes; a prompt as long as the model takes makes one token."""
        limit = min(self.max_model_len, self.max_num_batched_tokens)
        return count > limit or row.prompt_tokens > self.max_model_len

    def _obstacle(self, count: int, num_blocks: int) -> str:
        """What keeps ``count`` tokens and ``num_blocks`` blocks out of this step; empty if nothing.

        Blocks come last, since in a quiet run only they change: what is named first stays so until its end."""
        if self._num_seqs >= self.max_num_seqs:
            return "max_num_seqs"
        if not count or self._num_tokens + count > self.max_num_batched_tokens:
            return "token_budget"
        return "kv_blocks" if self.kv.num_free - num_blocks < self.watermark_blocks else ""

    def _start(self, row: Row, count: int, num_blocks: int) -> None:
        """Compute ``count`` tokens of a request that gets the blocks of all it knows."""
        self.enter(row)
        self._joins.append((row.id, self.kv.open(row.id, num_blocks)))
        self._chunks_new.append(self._chunk(row, count))

    def _chunk(self, row: Row, count: int) -> Chunk:
        """Book a chunk of a prompt; until its last one the row is partial."""
        start = row.num_computed_tokens
        row.num_computed_tokens = end = start + count
        self._num_tokens += count
        self._num_seqs += 1
        if end < row.num_tokens:
            self.partial[row.id] = row
        return Chunk(row.id, start, count, end == row.num_tokens)

    def _reject(self, row: Row, reason: str) -> None:
        self._rejected.append(Finish(row.id, reason, row.num_tokens - row.prompt_tokens))

    # -- running requests ------------------------------------------------------------------------------------

    def _decode_running(self) -> None:
        """All rows at once if each is sure to see a free block in its turn, else row by row."""
        self._num_tokens = len(self.decode.rows)
        if self.kv.num_free > self.decode.num_needed:
            self._grants = self.decode.grant()
        else:
            self.decode.granted_elsewhere()
            tail = self._unwalked = deque(self.running.values())
            while tail:
                row = tail.popleft()
                if self._make_room(row, 1, tail):
                    self._grant_one(row)

    def _make_room(self, row: Row, touched: int, tail: deque[Row]) -> bool:
        """Preempt from the end of ``tail`` until ``touched`` blocks are free; False if the row itself had to
        go."""
        while self.kv.num_free < touched:
            victim = tail.pop() if tail else row
            self._preempt(victim)
            if victim is row:
                return False
        return True

    def _grant_one(self, row: Row) -> None:
        if self.decode.needs_block(row):
            self._grants.append((row.id, self.kv.extend(row.id, 1)))

    # -- preemption ------------------------------------------------------------------------------------------

    def _preempt(self, row: Row) -> None:
        is_prefill = row.id in self.partial
        self.detach(row)
        mode = self._mode_for(row, is_prefill)
        self._preempted.append((row.id, mode))
        if mode == "swap":
            if is_prefill:
                self._half_prefilled.add(row.id)
            self._transfers.append(self.kv.swap_out(row.id))
            self.swapped[row.id] = row
        else:
            self.kv.close(row.id)
            row.num_computed_tokens = 0
            self._victims.append(row)

    def _mode_for(self, row: Row, is_prefill: bool) -> PreemptionMode:
        if self.preemption_mode == "recompute":
            return "recompute"
        as_real = self.faithful and self.preemption_mode == "swap"
        rest = row.num_tokens - row.num_computed_tokens
        if is_prefill and rest > self.max_num_batched_tokens and not as_real:
            return "recompute"  # swapped out, it would need more than a whole step's tokens to come back
        if self.preemption_mode == "auto" and self._recompute_is_cheaper(row):
            return "recompute"
        if self._blocks_touched(row, is_prefill) <= self.kv.cpu_pool.num_free:
            return "swap"
        if as_real:
            # The rows already walked are in none of the real engine's queues when it raises.
            self.running = {row.id: row for row in self._unwalked}
            raise EngineDied(
                f"no CPU swap space for request {row.id}; raise engine.swap_space_bytes or preempt by recompute"
            )
        self.swap_exhausted += 1
        return "recompute"

    def _recompute_is_cheaper(self, row: Row) -> bool:
        if self._services is None:
            raise ContractError("preemption_mode 'auto' without services")
        blocks = len(self.kv.tables[row.id])
        swap_s = 2 * self._services.swap_time_s(blocks * self.block_bytes, blocks * self.pieces_per_block)
        return self._services.recompute_time_s(row.num_computed_tokens, 0) < swap_s

    def _blocks_touched(self, row: Row, is_prefill: bool) -> int:
        """Blocks a swap asks for on the other side: full ones, and the one its next token goes to, even if
        new.

        A half-prefilled row holds the blocks of its whole prompt, a decoding one those of all tokens but the
        last.
        """
        if is_prefill:
            return self.kv.blocks_for(row.num_tokens)
        return (row.num_tokens - 1) // self.kv.block_size + 1

    def _requeue(self) -> None:
        """Recompute victims wait at the front, the one preempted last (the oldest) first."""
        self.waiting.extendleft(self._victims)

    # -- swapped requests ------------------------------------------------------------------------------------

    def _swap_in(self) -> None:
        """Bring requests back from the head of the swapped queue until one does not fit."""
        largest = self.kv.num_blocks - (0 if self.faithful else self.watermark_blocks)
        while self.swapped:
            row = next(iter(self.swapped.values()))
            num_blocks = self._blocks_touched(row, row.id in self._half_prefilled)
            if num_blocks > largest:
                self._close_swapped(row)
                self._reject(row, "kv_capacity")
            elif self._obstacle(row.num_tokens - row.num_computed_tokens, num_blocks):
                break
            else:
                self._resume(row)

    def _resume(self, row: Row) -> None:
        """Run a swapped request again, in this step."""
        del self.swapped[row.id]
        self._transfers.append(self.kv.swap_in(row.id))
        self.enter(row)
        if row.id in self._half_prefilled:
            self._half_prefilled.remove(row.id)
            self._resume_prompt(row)
        else:
            self._num_tokens += 1
            self._num_seqs += 1
            self.decode.join(row)
            if self.decode.needs_block(row):
                self.kv.extend(row.id, 1)
        self._joins.append((row.id, tuple(self.kv.tables[row.id])))

    def _resume_prompt(self, row: Row) -> None:
        raise ContractError(f"request {row.id} was swapped out in mid-prefill, which needs chunked prefill")

    def _close_swapped(self, row: Row) -> None:
        del self.swapped[row.id]
        self.kv.close_swapped(row.id)
        self._half_prefilled.discard(row.id)
