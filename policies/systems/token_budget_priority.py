"""vLLM V1's token budget with a choice of the order: first come, first served, or by priority (0.11.2)."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from policies.core.errors import ConfigError, closest
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import Horizon
from policies.core.request import RequestId
from policies.core.rows import Row
from policies.systems.ranked import RankedQueue, rank
from policies.systems.token_budget import TokenBudget

SchedulingPolicy = Literal["fcfs", "priority"]


@mypyc_attr(allow_interpreted_subclasses=True)
class PriorityTokenBudget(TokenBudget):
    """vLLM V1's scheduler with ``scheduling_policy``.

    By ``priority`` the queue is in the order of ``rank``. An arrival never pushes a running request out; a running one
    that needs a block does: the worst of the running list gives way, even if this step has scheduled it already,
    which is then undone.
    """

    own_end_ends_walk: ClassVar[bool] = True
    """A request that is its own victim ends the walk over the running list."""

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        scheduling_policy: SchedulingPolicy = "priority",
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        faithful: bool = False,
    ) -> None:
        super().__init__(
            kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=enable_chunked_prefill,
            long_prefill_token_threshold=long_prefill_token_threshold,
            faithful=faithful,
        )
        if scheduling_policy not in get_args(SchedulingPolicy):
            hint = closest(scheduling_policy, get_args(SchedulingPolicy))
            raise ConfigError(f"scheduling_policy is '{scheduling_policy}'; it must be fcfs or priority{hint}")
        self.by_priority = scheduling_policy == "priority"
        if self.by_priority:
            self.waiting = RankedQueue()
        self._scheduled: dict[RequestId, int] = {}

    def horizon(self) -> Horizon:
        """As everywhere, but an arrival may stand before a blocked head."""
        horizon = super().horizon()
        if self.by_priority and len(self.running) < self.max_num_seqs:
            return Horizon(horizon.steps, True)
        return horizon

    # -- running requests --------------------------------------------------------------------------------------------

    def _walk_running(self) -> None:
        """vLLM's walk, row by row: a victim gives way when a block is missing, scheduled already or not."""
        self._grants = []
        self.decode.granted_elsewhere()
        self._scheduled = scheduled = {}
        for row in list(self.running.values()):
            if row.id not in self.running:
                continue
            count = min(self._tokens_left(row), self.chunk_limit, self._budget)
            if count == 0:
                continue
            if not self._make_room(row, count):
                if self.own_end_ends_walk or not self.by_priority:
                    break
                continue
            scheduled[row.id] = count
            if row.is_decoding:
                self._budget -= 1
                self._grant_one(row)
            else:
                self._continue_chunk(row, count)
        for row in [row for row in self.decode.rows.values() if row.id not in scheduled]:
            self.pause(row)

    def _make_room(self, row: Row, count: int) -> bool:
        """Preempt the worst until the row's blocks fit; False if the row itself had to go."""
        short = self._blocks_short(row, count)
        while short > self.kv.pool.num_free:
            victim = self._victim()
            if victim is row and len(self.running) == 1:
                self._outgrown(row)
                return False
            if victim.id in self._scheduled:
                self._take_back(victim)
            self._preempt(victim)
            if victim is row:
                return False
        return True

    def _victim(self) -> Row:
        if self.by_priority:
            return max(self.running.values(), key=rank)
        return self.running[next(reversed(self.running))]

    def _take_back(self, row: Row) -> None:
        """Undo what this step has scheduled of a row. Blocks that it would have filled stay in the prefix cache."""
        self._budget += self._scheduled.pop(row.id)
        self._grants = [grant for grant in self._grants if grant[0] != row.id]
        self._new_chunks = [chunk for chunk in self._new_chunks if chunk.id != row.id]
        if row.is_decoding and row.content is None and self.kv.prefix_cache is not None:
            self._hash(row, self.decode.num_tokens(row))
