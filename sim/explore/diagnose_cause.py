"""What limits a run, by rules over its evidence."""

from __future__ import annotations

from typing import NamedTuple

from policies.core.plan import Chunk
from sim.costs.model import CostModel
from sim.explore.diagnose_evidence import Evidence

HEALTHY = "arrivals"
"""The cause of a run that nothing holds back: only more requests would make it do more."""


class Cause(NamedTuple):
    """What may limit a run: its title, what it means, and the metric that suffers from it, as (metric, statistic)."""

    title: str
    meaning: str
    metric: tuple[str, str]


CAUSES: dict[str, Cause] = {
    HEALTHY: Cause(
        "arrivals: the run is healthy",
        "requests are served as they come; only more of them would make the engine do more",
        ("ttft_s", "mean"),
    ),
    "slots": Cause(
        "slots (max_num_seqs)",
        "requests wait because the batch has as many as it may have",
        ("ttft_s", "mean"),
    ),
    "token_budget": Cause(
        "token budget (max_num_batched_tokens)",
        "prompts wait because a step may compute only so many tokens, fewer than the card computes well",
        ("ttft_s", "mean"),
    ),
    "kv_pool": Cause(
        "KV pool",
        "requests wait, or are pushed out, because the memory for their KV cache is taken",
        ("e2e_s", "mean"),
    ),
    "prefill": Cause(
        "prefill interference",
        "answers pause while prompts of other requests are computed in the same or an intermediate step",
        ("itl_s", "p99"),
    ),
    "swap_link": Cause(
        "swap link",
        "steps wait for KV blocks that move between the card and the host",
        ("e2e_s", "mean"),
    ),
    "host": Cause(
        "host",
        "steps wait for the CPU: scheduling, preparing inputs, handling outputs; the card idles meanwhile",
        ("tpot_s", "mean"),
    ),
    "batch": Cause(
        "batches that run to their end",
        "requests wait because nobody may join the batch in progress",
        ("ttft_s", "mean"),
    ),
    "card": Cause(
        "the card itself",
        "the steps compute as many tokens as the card computes well, and the requests ask for more",
        ("ttft_s", "mean"),
    ),
}
"""All causes by name."""

LEAST_SHARE = {
    "slots": 0.1,
    "token_budget": 0.1,
    "kv_pool": 0.1,
    "prefill": 0.15,
    "swap_link": 0.1,
    "host": 0.25,
    "batch": 0.1,
    "card": 0.1,
}
"""Share of the requests' time from which a cause limits a run. A quarter of each step on the host is usual."""

LONG_GAP = 3.0
"""Prompts disturb answers where 99 % of the gaps beside them exceed a plain decode step this many times."""

WIDER, WORTH = 4, 1.15
"""A token budget is too small where a step this many times as wide computes a token this much cheaper."""

_MET = 0.99


class Verdict(NamedTuple):
    """``cause`` limits the run; ``shares`` are those of the requests' time that each cause takes, largest first, and
    ``others`` the further causes above their thresholds. ``metric`` and its statistic suffer from it."""

    cause: str
    shares: dict[str, float]
    metric: tuple[str, str]
    others: tuple[str, ...] = ()


def find_cause(figures: Evidence, *, budget_is_small: bool) -> Verdict:
    """The cause with the largest share of the requests' time among those above their thresholds (``LEAST_SHARE``).

    A run that serves its requests within all stated limits is healthy, as is one in which no cause reaches its
    threshold. One that is starved of KV cache is limited by that, whatever else there is. Without any cause above its
    threshold, one that does not keep up is limited by the card, and so is one that misses its limits: there the limit
    that is met least often says what suffers.
    """
    shares = cause_shares(figures, budget_is_small=budget_is_small)
    over = [name for name, share in shares.items() if share >= LEAST_SHARE[name]]
    if "prefill" in over and not _is_long(figures):
        over.remove("prefill")
    keeps_up = figures.keeps_up is not False and figures.served >= _MET
    if keeps_up and figures.attainment is not None and figures.attainment >= _MET:
        return Verdict(HEALTHY, shares, CAUSES[HEALTHY].metric)
    if figures.starved:
        rest = tuple(name for name in over if name != "kv_pool")
        return Verdict("kv_pool", shares, CAUSES["kv_pool"].metric, rest)
    if over:
        return Verdict(over[0], shares, CAUSES[over[0]].metric, tuple(over[1:]))
    if not keeps_up:
        return Verdict("card", shares, CAUSES["card"].metric)
    if figures.attainment is not None and figures.attainment < _MET:
        least = min(figures.within, key=lambda name: figures.within[name], default="ttft_s")
        return Verdict("card", shares, ("tpot_s" if least == "itl_s" else least, "mean"))
    return Verdict(HEALTHY, shares, CAUSES[HEALTHY].metric)


def cause_shares(figures: Evidence, *, budget_is_small: bool) -> dict[str, float]:
    """Share of the requests' time that each cause takes, largest first.

    Who waits for a token budget that the card could not use better waits for the card.
    """
    life = figures.life
    budget = life.get("wait.token_budget", 0.0)
    shares = {
        "slots": life.get("wait.max_num_seqs", 0.0),
        "token_budget": budget if budget_is_small else 0.0,
        "kv_pool": sum(life.get(name, 0.0) for name in ("wait.kv_blocks", "wait.swapped", "swapped")),
        "prefill": life.get("prefill", 0.0),
        "swap_link": life.get("link", 0.0),
        "host": life.get("host", 0.0),
        "batch": life.get("wait.batch", 0.0),
        "card": 0.0 if budget_is_small else budget,
    }
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _is_long(figures: Evidence) -> bool:
    gaps = figures.gaps
    return "prefill" in gaps and "decode" in gaps and gaps["prefill"].p99_s >= LONG_GAP * gaps["decode"].p50_s


def budget_is_small(costs: CostModel, max_num_batched_tokens: int) -> bool:
    """Whether a wider step would compute prompt tokens ``WORTH`` times as cheaply."""
    wide = WIDER * max_num_batched_tokens
    return _token_s(costs, max_num_batched_tokens) >= WORTH * _token_s(costs, wide)


def _token_s(costs: CostModel, num_tokens: int) -> float:
    """Time of a prompt token in a step of many prompts of 256 tokens, whose attention is cheap."""
    whole, rest = divmod(num_tokens, 256)
    chunks = [Chunk(0, 0, 256, True)] * whole + ([Chunk(0, 0, rest, True)] if rest else [])
    return costs.step_time_s(num_tokens, 0, 0, 0, chunks) / num_tokens
