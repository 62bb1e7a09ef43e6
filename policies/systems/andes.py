"""Andes: the batch is chosen by what each request gains in quality of experience per block of KV memory."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.plan import Horizon, Idle, StepPlan
from policies.core.protocols import Services
from policies.core.request import Request
from policies.core.rows import Row
from policies.systems.rankings import RankedRow, Targets
from policies.systems.token_budget import TokenBudget

_LEAST_STEP_S = 1e-6
"""For worlds in which steps take no time."""


class _Choice(NamedTuple):
    """A request as an item of the knapsack. It stays if it may not be evicted (any more)."""

    row: Row
    density: float
    blocks: int
    stays: bool


def _order(choice: _Choice) -> tuple[bool, float, float, int]:
    return not choice.stays, -choice.density, choice.row.request.arrival_s, choice.row.id


class Andes(TokenBudget):
    """Andes (Liu et al., Andes: Defining and Enhancing Quality-of-Experience in LLM-Based Text Streaming Services,
    2024), on the token budget, chunks and prefix cache of vLLM V1.

    A user expects the first token after the TTFT limit and reads on at a token a TPOT limit. Quality of experience is
    the area under the tokens delivered, as far as they were expected, over the area under those expected. Where the
    head of the queue does not fit, and then every ``replan_steps`` steps, each request is valued by how much more of
    that it would have ``qoe_horizon_s`` from now if it ran than if it did not, per block of its KV memory; the batch is
    filled by falling value until seats and blocks are used up (a greedy knapsack). Running requests that are not chosen
    are preempted and computed again later, each at most ``preemption_cap`` times (0: no limit). The next steps admit
    those that are.

    What differs from the paper: the cap is per request, not on the mean; the speed of the batch is that of the present
    one, not of every batch size in turn; delivered tokens count as read at once when they are due; requests in
    mid-prompt stay.
    """

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        ttft_target_s: float = 1.0,
        tpot_target_s: float = 0.1,
        qoe_horizon_s: float = 5.0,
        replan_steps: int = 64,
        preemption_cap: int = 1,
        enable_chunked_prefill: bool = True,
        services: Services | None = None,
        faithful: bool = False,
    ) -> None:
        super().__init__(
            kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=enable_chunked_prefill,
            faithful=faithful,
        )
        if services is None:
            raise ConfigError("andes needs a cost model that says how long steps take")
        self.targets = Targets(ttft_target_s, tpot_target_s)
        self.qoe_horizon_s = qoe_horizon_s
        self.replan_steps = replan_steps
        self.preemption_cap = preemption_cap
        self._services = services
        self._now_s = 0.0
        self._due = 0

    def new_row(self, request: Request) -> Row:
        """State of a new request."""
        row = RankedRow(request)
        row.content = super().new_row(request).content
        return row

    # -- choice ------------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """As vLLM, on the batch that was chosen."""
        self._now_s = now_s
        return super().schedule(now_s)

    def horizon(self) -> Horizon:
        """Until the next choice."""
        steps, arrivals_matter = super().horizon()
        if self.waiting:
            steps = min(steps, max(0, self._due - self._step - 1))
        return Horizon(steps, arrivals_matter)

    def _schedule_running(self) -> None:
        if self.waiting and self.running and self._step >= self._due and not self._head_fits():
            self._due = self._step + self.replan_steps
            self._choose()
        super()._schedule_running()

    def _head_fits(self) -> bool:
        """True if the head of the queue is sure to start in this step without a choice."""
        free = self.kv.num_free - self.decode.num_needed
        return (
            not self.partial
            and len(self.running) < self.max_num_seqs
            and self.kv.blocks_for(self.waiting[0].num_tokens) <= free
        )

    def _choose(self) -> None:
        """Fill the batch by falling value; preempt those that run and are not chosen, let the others queue in order."""
        step_s = self._step_s()
        choices = [self._running(row, step_s) for row in self.running.values()]
        choices += [self._waiting(row, step_s) for row in self.waiting]
        choices.sort(key=_order)
        seats, blocks = self.max_num_seqs, self.kv.num_blocks
        queue: list[Row] = []
        behind: list[Row] = []
        for choice in choices:
            row, runs = choice.row, choice.row.id in self.running
            if choice.stays or (seats > 0 and choice.blocks <= blocks):
                seats -= 1
                blocks -= choice.blocks
                queue += () if runs else (row,)
            else:
                behind.append(row)
        leaving = [row for row in behind if row.id in self.running]
        for row in leaving:
            assert isinstance(row, RankedRow)
            row.evictions += 1
            self._preempt(row)
        self.waiting = deque([*queue, *behind])

    def _running(self, row: Row, step_s: float) -> _Choice:
        assert isinstance(row, RankedRow)
        blocks = min(len(self.kv.tables[row.id]) + 1, self.kv.num_blocks)
        capped = self.preemption_cap and row.evictions >= self.preemption_cap
        if capped or not row.is_decoding:
            return _Choice(row, 0.0, blocks, stays=True)
        gain = self._gain(row.request, self.decode.num_tokens(row), 0.0, step_s)
        return _Choice(row, gain / blocks, blocks, stays=False)

    def _waiting(self, row: Row, step_s: float) -> _Choice:
        blocks = min(self.kv.blocks_for(row.num_tokens) + 1, self.kv.num_blocks)
        delay_s = self._services.recompute_time_s(row.num_tokens, 0)
        return _Choice(row, self._gain(row.request, row.num_tokens, delay_s, step_s) / blocks, blocks, stays=False)

    def _step_s(self) -> float:
        """Seconds of a step of the present batch."""
        num_seqs, sum_context, max_context = self.decode.totals()
        if not num_seqs:
            num_seqs = sum_context = max_context = 1
        return max(self._services.step_time_s(num_seqs, num_seqs, sum_context, max_context, ()), _LEAST_STEP_S)

    def _gain(self, request: Request, num_tokens: int, delay_s: float, step_s: float) -> float:
        """QoE that a request has at the horizon if it runs, beyond what it has if it does not.

        Up to now both have had the same, so the gain is an area between now and the horizon over the whole area
        expected: where more is expected than was made, the lesser of what is expected and of what running adds, a token
        a step after ``delay_s``.
        """
        made = num_tokens - request.prompt_tokens
        ttft_s, tpot_s = self.targets.of(request)
        first_s, end_s = request.arrival_s + ttft_s, self._now_s + self.qoe_horizon_s
        served_s = self._now_s + delay_s
        begin_s = max(self._now_s, first_s + max(made - 1, 0) * tpot_s, served_s)
        if begin_s >= end_s:
            return 0.0
        whole = (end_s - first_s) * (1.0 + (end_s - first_s) / (2.0 * tpot_s))
        expected = _Line(*(1.0 + (time_s - first_s) / tpot_s - made for time_s in (begin_s, end_s)))
        added = _Line(*((time_s - served_s) / step_s for time_s in (begin_s, end_s)))
        return _area_below_both(expected, added, end_s - begin_s) / whole


class _Line(NamedTuple):
    """A straight line by its values at both ends."""

    low: float
    high: float


def _area_below_both(one: _Line, other: _Line, width: float) -> float:
    """Area below the lower of two lines."""
    gap, end_gap = other.low - one.low, other.high - one.high
    if gap >= 0.0 and end_gap >= 0.0:
        return (one.low + one.high) / 2.0 * width
    if gap <= 0.0 and end_gap <= 0.0:
        return (other.low + other.high) / 2.0 * width
    share = gap / (gap - end_gap)
    middle = one.low + share * (one.high - one.low)
    first, last = (one.low, other.high) if gap > 0.0 else (other.low, one.high)
    return width * (share * (first + middle) + (1.0 - share) * (middle + last)) / 2.0
