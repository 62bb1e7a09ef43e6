"""Scheduling after Sarathi-Serve (96f9911): prompts in chunks beside the decodes, and the schedulers that it
emulates to compare itself with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import floor
from typing import ClassVar, Literal

from policies.core.errors import ConfigError, EngineDied
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import (
    BatchRow,
    Chunk,
    Finish,
    Grant,
    Horizon,
    Idle,
    PreemptionMode,
    Queues,
    StepPlan,
)
from policies.core.request import Request, RequestId
from policies.core.rows import Row
from policies.systems.base import BatchingPolicy

Scheduler = Literal["sarathi", "simple_chunking", "vllm", "orca", "faster_transformer"]

_RESERVING = ("orca", "faster_transformer")
_CHUNKING = ("sarathi", "simple_chunking")
_ROUND_TO = 32


def chunk_schedule(low: int, high: int, stages: int) -> tuple[int, ...]:
    """Chunk sizes in tokens of the stages of a prompt, from ``high`` down to ``low``: equally spaced, rounded
    down to whole tokens, then to the nearest multiple of 32 (halves to the even multiple)."""
    step = (high - low) / (stages - 1) if stages > 1 else 0.0
    sizes = [floor(index * step + low) for index in range(stages)]
    if stages > 1:
        sizes[-1] = high
    return tuple(round(size / _ROUND_TO) * _ROUND_TO for size in reversed(sizes))


@mypyc_attr(allow_interpreted_subclasses=True)
class Sarathi(BatchingPolicy):
    """Sarathi-Serve's schedulers; requests stand in order of arrival in every queue.

    ``sarathi``: all decodes, then half-prefilled prompts, then new ones, while the tokens of the step stay
    within ``max_num_batched_tokens``, the chunk size. ``simple_chunking``: turns of chunks (half-prefilled
    prompts, or new ones) and of decodes. ``vllm``: whole new prompts alone, at most
    ``max_num_batched_tokens`` tokens (and never more than ``max_model_len``), else the decodes. ``orca``:
    decodes and whole new prompts together, each with ``max_model_len`` tokens reserved.
    ``faster_transformer``: the same, and nobody joins a batch.

    A prompt takes the blocks of all its tokens at once and leaves ``watermark`` (a fraction) of the blocks
    free; orca and faster_transformer need no such reserve. A decoding request asks for one free block in
    every step, even if it will take none; while there is none the last of the list gives way and is computed
    again. In that very step the victim, now at the head of the queue, is still judged by the progress it had.

    Dynamic chunks: with ``chunk_schedule_stages`` the chunk size falls from ``max_num_batched_tokens`` to
    ``low_chunk_size`` while a prompt of ``chunk_schedule_max_tokens`` proceeds. A size already used up is 0
    and the last size holds beyond the schedule, unless ``faithful``: the engine dies of both. It also keeps
    waiting for a request that the pool can never hold, and never computes a request again that gave way in
    an empty step; otherwise the first ends with ``kv_capacity`` and the second is computed again.
    """

    prompts_lead: ClassVar[bool] = True
    """Batch order: prompts before decodes."""
    judges_by_old_progress: ClassVar[bool] = True

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_model_len: int,
        scheduler: Scheduler = "sarathi",
        max_num_batched_tokens: int = 0,
        watermark: float = 0.01,
        low_chunk_size: int = 0,
        chunk_schedule_max_tokens: int = 0,
        chunk_schedule_stages: int = 0,
        faithful: bool = False,
    ) -> None:
        reserves = scheduler in _RESERVING
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len, grows=not reserves)
        self.scheduler = scheduler
        self.max_num_batched_tokens = max_num_seqs * max_model_len if reserves else max_num_batched_tokens
        if scheduler == "vllm":
            self.max_num_batched_tokens = min(max_num_batched_tokens, max_model_len)
        self.watermark_blocks = 0 if reserves else int(watermark * kv.num_blocks)
        self.faithful = faithful
        self.reserved_blocks = kv.blocks_for(max_model_len) if reserves else 0
        self.chunk_sizes: tuple[int, ...] = (max_num_batched_tokens,) if scheduler in _CHUNKING else ()
        self.tokens_per_stage = 1 << 40
        if chunk_schedule_stages:
            self._set_schedule(low_chunk_size, chunk_schedule_max_tokens, chunk_schedule_stages)
        if self.max_num_batched_tokens < 1:
            raise ConfigError(f"max_num_batched_tokens is {max_num_batched_tokens}; {scheduler} needs at least 1")
        self._asks_for = 0 if reserves else 1
        self._alternates = scheduler in ("simple_chunking", "vllm")
        self._is_decode_turn = False
        self._old_progress: dict[RequestId, tuple[int, int]] = {}
        self._begun: Sequence[RequestId] = ()
        self._begin()

    def _set_schedule(self, low: int, max_tokens: int, stages: int) -> None:
        high = self.max_num_batched_tokens
        if self.scheduler != "sarathi":
            raise ConfigError(f"chunk_schedule_stages is {stages}; {self.scheduler} has no dynamic chunks")
        for name, value, unit in (
            ("low_chunk_size", low, _ROUND_TO),
            ("max_num_batched_tokens", high, _ROUND_TO),
            ("chunk_schedule_max_tokens", max_tokens, 1),
            ("chunk_schedule_stages", stages, 1),
        ):
            if value < unit or value % unit:
                raise ConfigError(f"{name} is {value}; dynamic chunks need a multiple of {unit}, at least {unit}")
        self.chunk_sizes = chunk_schedule(low, high, stages)
        self.tokens_per_stage = -(-max_tokens // stages)
        self.max_num_batched_tokens = max(self.chunk_sizes)

    def refusal(self, request: Request) -> str | None:
        """This engine takes every request and drops those too long for it when their turn comes."""
        return None

    # -- steps -----------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Decodes, half-prefilled prompts and new ones, in the order and mixture of the scheduler."""
        if not self.waiting and not self.partial and self.decode.rows and self._all_see_a_block():
            self._acted = self._is_decode_turn = False
            self._begun = ()
            return self.make_plan(decode=True, grants=self.decode.grant())
        self._begin()
        if not self.running and not self.waiting:
            return self._idle("no_requests")  # the engine is not asked and its turn stands
        decodes = self._take_turns() if self._alternates else self._mix()
        return self._make_step(decodes)

    def _all_see_a_block(self) -> bool:
        """True when each decoding row is sure to see a free block in its turn."""
        decode = self.decode
        return self.kv.pool.num_free >= decode.num_needed + self._asks_for

    def _begin(self) -> None:
        self._new_chunks: list[Chunk] = []
        self._joins: list[Grant] = []
        self._grants: list[Grant] = []
        self._preempted: list[tuple[RequestId, PreemptionMode]] = []
        self._rejected: list[Finish] = []
        self._begun = ()
        self._num_tokens = 0
        self._blocked_by = ""
        self._acted = self._ignored = self._passed = False

    def _mix(self) -> bool:
        """One batch of all kinds; a static batch takes nobody in."""
        self._decode_running()
        self._num_tokens = len(self.decode.rows)
        self._continue_prompts()
        if self.running and self.scheduler == "faster_transformer":
            self._blocked_by = "batch"
        else:
            self._admit()
        return True

    def _take_turns(self) -> bool:
        """Prompts alone if this is their turn and any can run, else decodes alone; returns which."""
        self._passed = self._is_decode_turn
        if not self._is_decode_turn:
            self._continue_prompts()
            if not self._new_chunks:
                self._admit()
            if self._new_chunks or self._ignored:
                self._is_decode_turn = self.scheduler == "simple_chunking"
                return False
        self._is_decode_turn = False
        self._decode_running()
        return True

    def _make_step(self, decodes: bool) -> StepPlan | Idle:
        """The plan; empty if nothing runs but the next pass finds another state."""
        is_empty = not self._new_chunks and not (decodes and self.decode.rows)
        if not (is_empty and self.faithful):
            for key, _ in self._preempted:
                self._old_progress.pop(key, None)
        if is_empty:
            decodes = False
            pending = bool(self.waiting or self.running)
            if not self._preempted and not (pending and (self._passed or self._ignored)):
                return self._idle("blocked" if pending else "no_requests")
        self._acted = bool(self._preempted or self._rejected)
        return self.make_plan(
            decode=decodes,
            chunks=self._new_chunks,
            joins=self._joins,
            grants=self._grants,
            preempted=self._preempted,
            rejected=self._rejected,
            limited_by=self._limit() if self.waiting else "arrivals",
        )

    def _idle(self, reason: str) -> Idle:
        return self.idle(reason, rejected=self._rejected)

    def _limit(self) -> str:
        return "kv_blocks" if self._preempted else self._blocked_by or "batch"

    def horizon(self) -> Horizon:
        """Free blocks only shrink in a quiet run: a head that was found blocked stays blocked and hides later
        arrivals."""
        untried = self.waiting and not self._blocked_by
        if self._acted or self.partial or untried or not self._decode_runs:
            return Horizon(0, True)
        return Horizon(self.decode.free_steps(keep=self._asks_for), not self.waiting)

    # -- running requests ------------------------------------------------------------------------------------

    def _decode_running(self) -> None:
        """All decodes at once if each is sure to see a free block in its turn, else row by row."""
        if self._all_see_a_block():
            self._grants = self.decode.grant()
            return
        self.decode.granted_elsewhere()
        tail = deque(self.running.values())
        while tail:
            row = tail.popleft()
            if row.is_decoding and self._make_room(row, tail) and self.decode.needs_block(row):
                self._grants.append((row.id, self.kv.extend(row.id, 1)))

    def _make_room(self, row: Row, tail: deque[Row]) -> bool:
        """Preempt from the end of ``tail`` until a block is free; False if the row itself had to go."""
        while not self.kv.num_free:
            victim = tail.pop() if tail else row
            self._preempt(victim)
            if victim is row:
                return False
        return True

    def _preempt(self, row: Row) -> None:
        if self.judges_by_old_progress and self.chunk_sizes:
            # While a row decodes, num_computed_tokens stays at the end of its last chunk.
            rest = 0 if row.is_decoding else row.num_tokens - row.num_computed_tokens
            self._old_progress[row.id] = (rest, row.num_computed_tokens)
        self.remove(row)
        row.num_computed_tokens = 0
        self.waiting.appendleft(row)
        self._preempted.append((row.id, "recompute"))

    def _continue_prompts(self) -> None:
        """A chunk of each half-prefilled prompt while tokens are left; their blocks are theirs already."""
        if self.partial:
            self._begun = tuple(self.partial)
            for row in list(self.partial.values()):
                count = self._chunk_tokens(row)
                if not self._is_nothing(count):
                    self._check_chunk(row, count)
                    self._compute(row, count)

    def _progress(self, row: Row) -> tuple[int, int]:
        """Tokens that a request has still to compute before it makes one, and those computed."""
        done = row.num_computed_tokens
        return self._old_progress.get(row.id) or (row.num_tokens - done, done)

    def _chunk_tokens(self, row: Row) -> int:
        """Tokens of a request that this step computes; negative where the chunk size is more than used up, or
        where the engine dies since its schedule does not cover them."""
        rest, done = self._progress(row)
        if not self.chunk_sizes:
            return rest
        stage = done // self.tokens_per_stage
        if stage >= len(self.chunk_sizes):
            if self.faithful:
                return -1
            stage = -1
        return min(rest, self.chunk_sizes[stage] - self._num_tokens)

    def _is_nothing(self, count: int) -> bool:
        """True for a chunk that does not run in this step."""
        return not count or (count < 0 and not self.faithful)

    def _compute(self, row: Row, count: int) -> None:
        """Book a chunk; until its last one the row is half-prefilled."""
        start = row.num_computed_tokens
        row.num_computed_tokens = end = start + count
        self._num_tokens += count
        self._new_chunks.append(Chunk(row.id, start, count, end == row.num_tokens))
        if end < row.num_tokens:
            self.partial[row.id] = row

    def _check_chunk(self, row: Row, count: int) -> None:
        """The real engine dies of a negative chunk and of a prompt beyond its schedule."""
        if count > 0:
            return
        done = self._progress(row)[1]
        if done // self.tokens_per_stage < len(self.chunk_sizes):
            raise EngineDied(f"request {row.id} would get a chunk of {count} tokens")
        self.running = {}  # in none of the real engine's queues when it raises
        raise EngineDied(f"request {row.id} has computed {done} tokens, more than the chunk schedule covers")

    # -- waiting requests ------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """From the head of the queue until something does not fit."""
        waiting, kv = self.waiting, self.kv
        gave_way = {key for key, _ in self._preempted} if self._preempted else ()
        while waiting:
            row = waiting[0]
            num_blocks = self.reserved_blocks or kv.blocks_for(row.num_tokens)
            if self._is_too_long(row):
                self._reject("prompt_too_long")
                self._ignored = True
                continue
            hopeless = "" if self.faithful or row.id in gave_way else self._why_never(row, num_blocks)
            if hopeless:
                self._reject(hopeless)
                continue
            count = self._chunk_tokens(row)
            self._blocked_by = self._obstacle(row, count, num_blocks)
            if self._blocked_by:
                return
            self._check_chunk(row, count)
            waiting.popleft()
            self.enter(row)
            self._joins.append((row.id, kv.open(row.id, num_blocks)))
            self._compute(row, count)

    def _is_too_long(self, row: Row) -> bool:
        """True for more than the model takes, and for a prompt that leaves no room for an output token."""
        if row.prompt_tokens >= self.max_model_len:
            return True
        return self.scheduler == "vllm" and row.num_tokens > self.max_num_batched_tokens

    def _why_never(self, row: Row, num_blocks: int) -> str:
        """Why a request could not run even alone; empty if it could. The real engine waits for ever."""
        return "kv_capacity" if num_blocks > self.kv.num_blocks - self.watermark_blocks else ""

    def _obstacle(self, row: Row, count: int, num_blocks: int) -> str:
        """What keeps ``count`` tokens and ``num_blocks`` blocks of a request out of this step; empty if nothing.

        Blocks come last, since in a quiet run only they change: what is named first stays so until its end."""
        if len(self.running) >= self.max_num_seqs:
            return "max_num_seqs"
        if self._is_nothing(count) or (self.scheduler == "vllm" and self._charge(row) > self.max_num_batched_tokens):
            return "token_budget"
        return "kv_blocks" if self.kv.num_free - num_blocks < self.watermark_blocks else ""

    def _charge(self, row: Row) -> int:
        """Tokens that a step of whole prompts is charged with if the row joins it."""
        return self._num_tokens + row.num_tokens

    def _reject(self, reason: str) -> None:
        row = self.waiting.popleft()
        self._rejected.append(Finish(row.id, reason, row.num_tokens - row.prompt_tokens))

    # -- views -----------------------------------------------------------------------------------------------

    def batch_order(self) -> list[BatchRow]:
        """Prompts (half-prefilled, then new) and decodes, each in order of arrival."""
        prompts = [BatchRow(chunk.id, chunk.num_tokens, chunk.start, chunk.emits) for chunk in self._chunks]
        decodes: list[BatchRow] = []
        if self._decode_runs:
            context = self.decode.num_tokens
            decodes = [
                BatchRow(row.id, 1, context(row) - 1, True) for row in self.running.values() if row.is_decoding
            ]
        return prompts + decodes if self.prompts_lead else decodes + prompts

    def queues(self) -> Queues:
        """As everywhere; after a mixed step those that were decoding stand first, then those that were half
        prefilled, then new ones. The next step has them in order of arrival again."""
        queues = super().queues()
        if self._alternates or not self._begun:
            return queues
        later = dict.fromkeys(self._begun, 1) | {key: 2 for key, _ in self._joins}
        return queues._replace(running=tuple(sorted(queues.running, key=lambda key: later.get(key, 0))))
