"""Multi-step scheduling after vLLM 0.6.3 (``--num-scheduler-steps``): several decode steps on one plan.

The scheduler is ``policies.systems.paged``; what differs is how far a decode plan reaches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import Blocks, Chunk, Finish, Horizon, Idle, StepPlan, StepResult
from policies.core.protocols import Services
from policies.core.request import RequestId
from policies.core.rows import DecodeSet, Row
from policies.systems.paged import Paged


@mypyc_attr(allow_interpreted_subclasses=True)
class MultiStep(Paged):
    """vLLM V0's default scheduler that plans ``num_scheduler_steps`` decode steps at once, a *group*.

    A decode plan gives each row the blocks for all tokens of the group (the ones past the first are vLLM's lookahead
    slots). For that a row asks for a free block for each block that it will touch: those that hold the tokens made
    since its last plan, even if it has them, and those of the group. Where they are missing, the last of the running
    list gives way. A prompt takes blocks for its own tokens alone, and a prefill plan is one step.

    A row that stops in a group keeps its blocks until the group ends. Then blocks are freed in running order. With 1
    step all is as in ``Paged``.
    """

    def __init__(
        self,
        kv: KvManager,
        *,
        num_scheduler_steps: int,
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
        if num_scheduler_steps < 1:
            raise ConfigError(f"num_scheduler_steps is {num_scheduler_steps} and must be at least 1")
        self.num_scheduler_steps = num_scheduler_steps
        # Blocks come from this class, for a group at a time, not from the set for a step at a time.
        self.decode = DecodeSet(kv, grows=False)
        # The tokens of two plans but one, wherever they begin in a block.
        self._most_touched = (2 * num_scheduler_steps - 3 + kv.block_size) // kv.block_size + 1
        self._seen: dict[RequestId, int] = {}
        self._stopped: list[Row] = []
        self._steps_left = 0

    # -- plans -------------------------------------------------------------------------------------------------------

    def horizon(self) -> Horizon:
        """Each group is planned."""
        return Horizon(0, True)

    def _is_easy(self) -> bool:
        """Whether all rows get their blocks is found out row by row, once a group."""
        return False

    def _make_step(self, *, decode: bool, chunks: list[Chunk]) -> StepPlan | Idle:
        plan = super()._make_step(decode=decode, chunks=chunks)
        self._steps_left = self.num_scheduler_steps if self._decode_runs else 1
        return plan

    def _decode_running(self) -> None:
        self._num_tokens = num_seqs = len(self.decode.rows)
        if num_seqs * self._most_touched <= self.kv.num_free:
            self._grant_all()
            return
        tail = self._unwalked = deque(self.running.values())
        while tail:
            row = tail.popleft()
            if self._make_room(row, self._touched(row), tail):
                self._grant_one(row)

    def _grant_all(self) -> None:
        """Nobody has to give way, as each row touches ``_most_touched`` blocks at most."""
        kv, seen, grants, steps = self.kv, self._seen, self._grants, self.decode.steps
        tables, size, ahead = kv.tables, kv.block_size, self.num_scheduler_steps + kv.block_size - 2
        for row in self.running.values():
            seen[row.id] = num_tokens = row.offset + steps
            missing = (num_tokens + ahead) // size - len(tables[row.id])
            if missing:
                grants.append((row.id, kv.extend(row.id, missing)))

    def _touched(self, row: Row) -> int:
        """Blocks from the first one with a token that the last plan did not know of to the last one of the group."""
        return self._blocks_of_group(self.decode.num_tokens(row)) - self._seen[row.id] // self.kv.block_size

    def _blocks_of_group(self, num_tokens: int) -> int:
        """Blocks for all that a row of that many tokens has stored when a group ends, which is not its last token."""
        return self.kv.blocks_for(num_tokens + self.num_scheduler_steps - 1)

    def _grant_one(self, row: Row) -> None:
        blocks = self._extend(row)
        if blocks:
            self._grants.append((row.id, blocks))

    def _extend(self, row: Row) -> Blocks:
        """Give a decoding row the blocks of a group that it lacks."""
        num_tokens = self.decode.num_tokens(row)
        self._seen[row.id] = num_tokens
        missing = self._blocks_of_group(num_tokens) - len(self.kv.tables[row.id])
        return self.kv.extend(row.id, missing) if missing else ()

    # -- results -----------------------------------------------------------------------------------------------------

    def on_step_end(self, result: StepResult) -> None:
        """One token for each row that goes on; blocks of those that stopped are free after the last step of a group."""
        self._steps_left -= result.steps
        super().on_step_end(result)
        if self._stopped and not self._steps_left:
            for row in sorted(self._stopped, key=lambda row: row.order):
                self.kv.close(row.id)
            self._stopped.clear()

    def _free(self, finished: Sequence[Finish]) -> None:
        for finish in finished:
            row = self.running[finish.id]
            self.detach(row)
            self._seen.pop(row.id)
            self._stopped.append(row)

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request, wherever it is."""
        self._seen.pop(request_id, None)
        return super().on_abort(request_id)

    def _reject(self, row: Row, reason: str) -> None:
        self._seen.pop(row.id, None)
        super()._reject(row, reason)

    # -- waiting and swapped requests --------------------------------------------------------------------------------

    def _start(self, row: Row, count: int, num_blocks: int) -> None:
        super()._start(row, count, num_blocks)
        self._seen[row.id] = row.num_tokens

    def _blocks_touched(self, row: Row, is_prefill: bool) -> int:
        """A request that comes back wants those of a whole group."""
        if row.id in self.swapped:
            return self._blocks_of_group(row.num_tokens)
        return super()._blocks_touched(row, is_prefill)

    def _resume(self, row: Row) -> None:
        super()._resume(row)
        self._extend(row)
        self._joins[-1] = (row.id, tuple(self.kv.tables[row.id]))
