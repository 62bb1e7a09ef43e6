"""Schedulers from the literature that differ in whom they serve first, on the engine of vLLM V1 (0.11.2)."""

from __future__ import annotations

from typing import get_args

from policies.core.errors import ConfigError, closest
from policies.core.kv import KvManager
from policies.core.plan import Horizon
from policies.core.protocols import Services
from policies.core.request import Request
from policies.core.rows import Row
from policies.systems.length_predictor import LengthPredictor, Source
from policies.systems.ranked import Rank, RankedQueue
from policies.systems.rankings import (
    ByPriority,
    EarliestDeadline,
    LeastLaxity,
    Order,
    RankedRow,
    Ranking,
    ShortestJob,
    ShortestRemaining,
    Targets,
)
from policies.systems.token_budget_priority import PriorityTokenBudget


class RankedBudget(PriorityTokenBudget):
    """vLLM V1's token budget, prompt chunks and prefix cache, with another ``order`` of requests:

    ``priority``      static priorities, pre-emptive (any textbook)
    ``sjf``           shortest predicted job first, as in SSJF (Qiu et al. 2024)
    ``srtf``          shortest predicted remaining time first, pre-emptive, as in TRAIL (Shahout et al. 2024)
    ``edf``           earliest deadline of the next token (Liu and Layland 1973)
    ``least-laxity``  least time to spare before the next token must be begun (Mok 1983)

    What differs from the papers: everybody in the batch decodes in every step, since a decoding row costs little beside
    others; the order decides who is admitted, and who gives way. Prompts under way are computed in the order in which
    they began. A row without a block lets the worst of the running list give way, as in vLLM.

    ``evict_running``: a waiting request may take the place of running ones with a larger value that keep it out, the
    worst of them first; it starts in the next step, they are computed again later. No request is evicted so more than
    ``preemption_cap`` times (0: no limit).
    """

    own_end_ends_walk = False

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        order: Order,
        enable_chunked_prefill: bool = True,
        evict_running: bool = False,
        preemption_cap: int = 0,
        ageing_per_s: float = 0.0,
        length_predictor: Source = "oracle",
        predictor_sigma: float = 0.0,
        predictor_seed: int = 0,
        ttft_target_s: float = 1.0,
        tpot_target_s: float = 0.1,
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
        self.evict_running = evict_running
        self.preemption_cap = preemption_cap
        self.ranking = _ranking(
            order,
            services,
            ageing_per_s=ageing_per_s,
            predictor=(length_predictor, predictor_sigma, predictor_seed),
            targets=Targets(ttft_target_s, tpot_target_s),
        )
        self.waiting = RankedQueue(self._rank_waiting)

    # -- ranks -------------------------------------------------------------------------------------------------------

    def new_row(self, request: Request) -> Row:
        """State of a new request, what its ranking needs included."""
        plain = super().new_row(request)
        row = RankedRow(request)
        row.content = plain.content
        self.ranking.note(row)
        return row

    def _rank_waiting(self, row: Row) -> Rank:
        value = self.ranking.value(_ranked(row), row.num_tokens, waits=True)
        return value, row.request.arrival_s, row.id

    def _rank_running(self, row: Row) -> Rank:
        value = self.ranking.value(_ranked(row), self.decode.num_tokens(row), waits=False)
        return value, row.request.arrival_s, row.id

    def _victim(self) -> Row:
        """The worst of the running list."""
        return max(self.running.values(), key=self._rank_running)

    # -- eviction ----------------------------------------------------------------------------------------------------

    def horizon(self) -> Horizon:
        """Blocks and places only become fewer in a quiet run, so a head that evicts nobody now will not do so later,
        unless those that run fall back."""
        steps, arrivals_matter = super().horizon()
        if self.evict_running and self.waiting and self.ranking.worsens:
            return Horizon(0, True)
        return Horizon(steps, arrivals_matter or self.evict_running)

    def _schedule_running(self) -> None:
        if self.evict_running and self.waiting and self.running:
            self._evict()
        super()._schedule_running()

    def _evict(self) -> None:
        """Let worse requests give way to the head of the queue, if that is enough to let it in."""
        head = self.waiting[0]
        worse = self._worse_than(self._rank_waiting(head))
        if not worse:
            return
        blocks = self._blocks_to_start(head)
        tokens = 1 if self.enable_chunked_prefill else head.num_tokens
        free = self.kv.num_free - self._blocks_due()
        leaving: list[Row] = []
        num_seqs = len(self.running)
        while num_seqs >= self.max_num_seqs or num_seqs + tokens > self.max_num_batched_tokens or free < blocks:
            if not worse:
                return
            leaving.append(row := worse.pop())
            num_seqs -= 1
            free += len(self.kv.tables[row.id]) + self._blocks_due_to(row)
        for row in leaving:
            _ranked(row).evictions += 1
            self._preempt(row)

    def _worse_than(self, limit: Rank) -> list[Row]:
        """Running requests behind ``limit`` that may still be evicted, the worst last."""
        cap, ranks = self.preemption_cap, self._rank_running
        worse = [row for row in self.running.values() if ranks(row) > limit]
        if cap:
            worse = [row for row in worse if _ranked(row).evictions < cap]
        return sorted(worse, key=ranks)

    def _blocks_to_start(self, row: Row) -> int:
        """Blocks that all a waiting request knows takes from the free ones, cached ones among them."""
        kv = self.kv
        blocks = kv.blocks_for(row.num_tokens)
        hits = kv.lookup(row.content, row.num_tokens)
        if hits and kv.prefix_cache is not None:
            blocks += kv.prefix_cache.count_free(hits) - len(hits)
        return blocks

    def _blocks_due(self) -> int:
        """Blocks that running rows are sure to take in this step."""
        return self.decode.num_needed + sum(map(self._blocks_due_to, self.partial.values()))

    def _blocks_due_to(self, row: Row) -> int:
        if row.is_decoding:
            return int(self.decode.needs_block(row))
        rest = min(row.num_tokens - row.num_computed_tokens, self.max_num_batched_tokens)
        return max(0, self.kv.blocks_for(row.num_computed_tokens + rest) - len(self.kv.tables[row.id]))


def _ranked(row: Row) -> RankedRow:
    assert isinstance(row, RankedRow)
    return row


def _ranking(
    order: Order,
    services: Services | None,
    *,
    ageing_per_s: float,
    predictor: tuple[Source, float, int],
    targets: Targets,
) -> Ranking:
    if order == "priority":
        return ByPriority(ageing_per_s)
    if order == "edf":
        return EarliestDeadline(targets)
    if order == "least-laxity":
        if services is None:
            raise ConfigError("order 'least-laxity' needs a cost model that says how long prompts take")
        return LeastLaxity(services, targets)
    if order in ("sjf", "srtf"):
        source, sigma, seed = predictor
        lengths = LengthPredictor(services, source=source, sigma=sigma, seed=seed)
        return (ShortestJob if order == "sjf" else ShortestRemaining)(lengths, ageing_per_s)
    raise ConfigError(f"order is '{order}'; give one of {', '.join(get_args(Order))}{closest(order, get_args(Order))}")
