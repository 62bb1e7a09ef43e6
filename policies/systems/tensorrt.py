"""In-flight batching after TensorRT-LLM: which requests the KV memory allows, then which of them the tokens of a step.

The two stages are its capacity scheduler and its micro-batch scheduler (capacityScheduler.cpp, microBatchScheduler.cpp
and their Python twins at 002f3cc).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import BatchRow, Chunk, Finish, Grant, Horizon, Idle, PreemptionMode, StepPlan
from policies.core.request import Request, RequestId
from policies.core.rows import Row
from policies.systems.base import BatchingPolicy
from policies.systems.tensorrt_chunks import equal_progress, first_come_first_served

Capacity = Literal["guaranteed_no_evict", "max_utilization", "static_batch"]
Chunking = Literal["first_come_first_served", "equal_progress"]

_CAPACITIES = ("guaranteed_no_evict", "max_utilization", "static_batch")
_RULES: Mapping[str, Callable[[Sequence[int], int, int], list[int]]] = {
    "first_come_first_served": first_come_first_served,
    "equal_progress": equal_progress,
}
_FOREVER = 1 << 40


@mypyc_attr(allow_interpreted_subclasses=True)
class TensorRtLlm(BatchingPolicy):
    """TensorRT-LLM's scheduler; requests stand in order of arrival, those that run and those that wait in one line.

    ``capacity_scheduler_policy``: ``guaranteed_no_evict`` starts a request while the blocks of its prompt and
    ``max_tokens`` (at most ``max_model_len``) fit beside those that the running ones may still need; the first misfit
    stops. ``static_batch`` does so only when nothing generates. ``max_utilization`` asks for the blocks of the next
    step alone, down the line; at a misfit it pauses the last started request from there on, to be computed again, and
    whoever stands behind that one is out for this step. Without one it stops.

    Then, down the line, a generation costs a token and a context its whole length; the first that exceeds
    ``max_num_batched_tokens`` stops. (So whoever generates stands before whoever waits, and always runs.) With
    ``enable_chunked_prefill`` generations come first and contexts share what is left, by ``context_chunking_policy``,
    in pieces of ``block_size`` tokens; the blocks of a prompt are all taken with its first chunk. The batch is
    contexts (unfinished ones first), then generations; ``max_num_seqs`` counts both.

    Where ``faithful``, a request that can never fit waits for ever, and all behind it; otherwise it ends with
    ``kv_capacity`` once nothing runs.
    """

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        capacity_scheduler_policy: Capacity = "guaranteed_no_evict",
        enable_chunked_prefill: bool = False,
        context_chunking_policy: Chunking = "first_come_first_served",
        faithful: bool = False,
    ) -> None:
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        _check("capacity_scheduler_policy", capacity_scheduler_policy, _CAPACITIES)
        _check("context_chunking_policy", context_chunking_policy, tuple(_RULES))
        if enable_chunked_prefill and max_num_batched_tokens < kv.block_size:
            raise ConfigError(
                f"max_num_batched_tokens is {max_num_batched_tokens}; chunks are multiples of block_size ="
                f" {kv.block_size}, so none would fit"
            )
        self.max_num_batched_tokens = max_num_batched_tokens
        self.evicts = capacity_scheduler_policy == "max_utilization"
        self.is_static = capacity_scheduler_policy == "static_batch"
        self.enable_chunked_prefill = enable_chunked_prefill
        self.faithful = faithful
        self._chunk_sizes = _RULES[context_chunking_policy]
        self._reserved_blocks = 0
        self._arrivals = 0
        self._begin()

    def _begin(self) -> None:
        self._new_chunks: list[Chunk] = []
        self._joins: list[Grant] = []
        self._preempted: list[tuple[RequestId, PreemptionMode]] = []
        self._rejected: list[Finish] = []
        self._limit = "arrivals"
        self._stays_blocked = True

    # -- the line ----------------------------------------------------------------------------------------------------

    def refusal(self, request: Request) -> str | None:
        """Too long for the model or, where prompts are not cut, for a step."""
        if not self.enable_chunked_prefill and request.prompt_tokens > self.max_num_batched_tokens:
            return "prompt_too_long"
        return super().refusal(request)

    def on_arrival(self, request: Request) -> None:
        """Queue a request; ``order`` is its place in the line."""
        super().on_arrival(request)
        self._arrivals += 1
        self.waiting[-1].order = self._arrivals

    def enter(self, row: Row) -> None:
        """Put a row into the running list, which keeps the order of the line."""
        running = self.running
        is_last = not running or running[next(reversed(running))].order < row.order
        running[row.id] = row
        if not is_last:
            self.running = {row.id: row for row in sorted(running.values(), key=_place)}
        self._reserved_blocks += self._blocks_to_end(row)

    def detach(self, row: Row) -> None:
        """Take a row off the running list."""
        super().detach(row)
        self._reserved_blocks -= self._blocks_to_end(row)

    def _blocks_to_end(self, row: Row) -> int:
        """All blocks that a request may need, from the first to the last."""
        return self.kv.blocks_for(min(row.prompt_tokens + row.request.max_tokens, self.max_model_len))

    # -- steps -------------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Capacity, then tokens."""
        if not self.waiting and not self.partial and self._all_run():
            self._begin()
            return self.quiet_plan()
        self._begin()
        self._run(self._contexts())
        if not self.decode.rows and not self._new_chunks and not self._preempted:
            return self.idle("blocked" if self.waiting or self.running else "no_requests", rejected=self._rejected)
        return self.make_plan(
            decode=bool(self.decode.rows or self._new_chunks),  # else it only preempts
            chunks=self._new_chunks,
            joins=self._joins,
            grants=self.decode.grant(),
            preempted=self._preempted,
            rejected=self._rejected,
            limited_by=self._limit if self.waiting else "arrivals",
        )

    def _all_run(self) -> bool:
        """True when every generation gets its token and its block."""
        decode = self.decode
        return 0 < len(decode.rows) <= self.max_num_batched_tokens and decode.num_needed <= self.kv.pool.num_free

    def horizon(self) -> Horizon:
        """A head without room stays without in a quiet run, and hides later arrivals."""
        if self._preempted or self._rejected or not self._stays_blocked or not self._decode_runs:
            return Horizon(0, True)
        if self.partial and not self.is_static:
            return Horizon(0, True)
        steps = self.decode.free_steps() if self.evicts else _FOREVER
        return Horizon(steps, not self.waiting)

    # -- capacity ----------------------------------------------------------------------------------------------------

    def _contexts(self) -> list[Row]:
        """Started prompts and requests from the queue that have room in this step, in order."""
        if self.is_static and self.decode.rows:
            self._limit = "batch"
            return []
        started = sorted(self.partial.values(), key=_place)
        if self.evicts and not self._is_in_order():
            return self._walk()
        while True:
            new = self._next_in_line()
            if new or self.running or not self.waiting:
                return started + new
            if self.faithful:
                return []
            self._reject(self.waiting.popleft())

    def _is_in_order(self) -> bool:
        """True when all that run get their blocks and nobody who waits stands before one of them."""
        if self.decode.num_needed > self.kv.pool.num_free:
            return False
        running, waiting = self.running, self.waiting
        return not running or not waiting or running[next(reversed(running))].order < waiting[0].order

    def _next_in_line(self) -> list[Row]:
        """Who may start behind those that run, from the head of the queue to the first misfit."""
        kv = self.kv
        found: list[Row] = []
        free = kv.pool.num_free - self.decode.num_needed if self.evicts else kv.num_blocks - self._reserved_blocks
        places = self.max_num_seqs - len(self.running)
        for row in self.waiting:
            free -= kv.blocks_for(row.num_tokens) if self.evicts else self._blocks_to_end(row)
            if places <= len(found) or free < 0 or self._is_too_long(row):
                self._limit = "max_num_seqs" if places <= len(found) else "kv_blocks"
                break
            found.append(row)
        return found

    def _is_too_long(self, row: Row) -> bool:
        """True for a request to be computed again that has outgrown a step; guarded, since it could never run."""
        too_long = row.num_tokens > self.max_num_batched_tokens
        return too_long and not self.enable_chunked_prefill and not self.faithful and not self.running

    def _walk(self) -> list[Row]:
        """Maximum utilisation down the whole line; pauses who must go and returns the contexts that have room."""
        line = sorted((*self.running.values(), *self.waiting), key=_place)
        free, place, end, contexts = self.kv.pool.num_free, 0, len(line), []
        while place < end:
            row = line[place]
            needed = self._blocks_of_step(row)
            if needed <= free and place < self.max_num_seqs:
                free -= needed
                place += 1
                if not row.is_decoding:
                    contexts.append(row)
                continue
            self._limit = "kv_blocks" if needed > free else "max_num_seqs"
            started = [index for index in range(place, end) if line[index].id in self.running]
            if not started:
                break
            end = started[-1]
            free += len(self.kv.tables[line[end].id])
            self._pause_for_good(line[end])
        return contexts

    def _blocks_of_step(self, row: Row) -> int:
        """Blocks that a request takes in the next step; a started prompt has all of its own."""
        if row.is_decoding:
            return int(self.decode.needs_block(row))
        return 0 if row.id in self.running else self.kv.blocks_for(row.num_tokens)

    def _pause_for_good(self, row: Row) -> None:
        """Give back a started request's blocks; it waits in its place and is computed again."""
        self.remove(row)
        row.num_computed_tokens = 0
        self._preempted.append((row.id, "recompute"))
        if not self.waiting or row.order < self.waiting[0].order:
            self.waiting.appendleft(row)
        else:
            self.waiting = deque(sorted((*self.waiting, row), key=_place))

    def _reject(self, row: Row) -> None:
        self._rejected.append(Finish(row.id, "kv_capacity", row.num_tokens - row.prompt_tokens))

    # -- tokens ------------------------------------------------------------------------------------------------------

    def _run(self, contexts: list[Row]) -> None:
        """Give out the tokens of the step. Generations always fit: each ran as a context of a token or more before."""
        left = self.max_num_batched_tokens - len(self.decode.rows)
        if self.enable_chunked_prefill:
            self._run_in_chunks(contexts, left)
            return
        for row in contexts:
            left -= row.num_tokens
            if left < 0:
                self._lack_tokens()
                return
            self._compute(row, row.num_tokens)

    def _run_in_chunks(self, contexts: list[Row], left: int) -> None:
        rests = [row.num_tokens - row.num_computed_tokens for row in contexts]
        is_cut = sum(rests) > left
        sizes = self._chunk_sizes(rests, left, self.kv.block_size) if is_cut else rests
        chosen = [item for item in zip(contexts, sizes, rests, strict=True) if item[1]]
        chosen.sort(key=lambda item: item[1] == item[2])  # unfinished ones first, otherwise as they stand
        for row, count, _ in chosen:
            self._compute(row, count)
        if len(chosen) < len(contexts):
            self._lack_tokens()

    def _lack_tokens(self) -> None:
        """Somebody with room in memory has no tokens: whoever comes later may need fewer."""
        self._limit = "token_budget"
        self._stays_blocked = False

    def _compute(self, row: Row, count: int) -> None:
        """Book a chunk; the first one takes the blocks of all that is known of the request."""
        if row.id not in self.running:
            self._leave_queue(row)
            self.enter(row)
            self._joins.append((row.id, self.kv.open(row.id, self.kv.blocks_for(row.num_tokens))))
        start = row.num_computed_tokens
        row.num_computed_tokens = end = start + count
        self._new_chunks.append(Chunk(row.id, start, count, end == row.num_tokens))
        if end < row.num_tokens:
            self.partial[row.id] = row

    def _leave_queue(self, row: Row) -> None:
        if self.waiting[0] is row:
            self.waiting.popleft()
        else:
            self.waiting.remove(row)

    # -- views -------------------------------------------------------------------------------------------------------

    def batch_order(self) -> list[BatchRow]:
        """Contexts, then generations."""
        context = self.decode.num_tokens
        rows = self.running.values() if self._decode_runs else ()
        order = [BatchRow(id_, count, start, emits) for id_, start, count, emits in self._chunks]
        return order + [BatchRow(row.id, 1, context(row) - 1, True) for row in rows if row.is_decoding]


def _place(row: Row) -> int:
    return row.order


def _check(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is '{value}'; give one of {', '.join(allowed)}")
