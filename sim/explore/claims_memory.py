"""Claims about memory under pressure: who swaps, whether it is faster, and what a longer limit costs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from policies.catalog import card, model
from sim.costs.load import load_cost_model
from sim.costs.roofline import SMALL_COPY_S
from sim.costs.swap import break_even_bytes_per_s, swap_choice, swap_choice_in_bulk
from sim.explore.claims_case import Audited, Claim, Ruling, Runner
from sim.report.figures import Table
from sim.wording import digits, seconds

_TOKENS = 1_000
_BLOCK = 16


class SwapFigures(NamedTuple):
    """``swaps`` and ``recomputes`` are preemptions of the engines' defaults under pressure, ``preempted_by_tgi`` those
    of them that are TGI's, of either kind; ``swap_wins`` and ``recompute_wins`` are how many of the compared models,
    cards and layouts each is faster in."""

    swaps: int
    recomputes: int
    preempted_by_tgi: int
    swap_wins: int
    recompute_wins: int


def judge_swap(figures: SwapFigures) -> Ruling:
    """False where the engines' defaults swap no more often than they recompute; the second half of the claim is true,
    false, or depends, by who wins where."""
    of = figures
    if of.swap_wins and of.recompute_wins:
        second = f"which is faster depends: swap in {of.swap_wins}, recompute in {of.recompute_wins} of the cases"
    else:
        second = f"{'swap' if of.swap_wins else 'recompute'} is faster in all {of.swap_wins + of.recompute_wins} cases"
    first = f"by default {of.swaps:,} preemptions swapped and {of.recomputes:,} recomputed; TGI preempted"
    first += f" {of.preempted_by_tgi:,} times"
    if not of.swaps + of.recomputes:
        return Ruling("undecidable", "nobody was preempted", "a run under memory pressure")
    if of.swaps > of.recomputes:
        return Ruling("reproduced" if not of.recompute_wins else "false", f"{first}; {second}")
    return Ruling("false", f"{first}; {second}")


_DEFAULTS = ("vllm-0.2.7", "vllm-0.6", "vllm-0.11", "vllm-0.33", "tgi-1.4", "tgi-3")
_PAIRS = (
    ("llama-2-7b", "a100-80gb"),
    ("llama-2-13b", "a100-80gb"),
    ("llama-3-8b", "a100-80gb"),
    ("llama-2-7b", "h100-80gb"),
    ("llama-3-8b", "h200-141gb"),
)


def _audit_swap(run: Runner) -> Audited:
    runs = {name: run(_pressure(name)) for name in _DEFAULTS}
    choices = [_choice(*pair) for pair in _PAIRS]
    wins = [layout.winner for choice in choices for layout in choice.layouts]
    counts = {name: of["preemptions"] for name, of in runs.items()}
    figures = SwapFigures(
        swaps=sum(of["swap"] for of in counts.values()),
        recomputes=sum(of["recompute"] for of in counts.values()),
        preempted_by_tgi=sum(of["swap"] + of["recompute"] for name, of in counts.items() if name.startswith("tgi")),
        swap_wins=wins.count("swap"),
        recompute_wins=wins.count("recompute"),
    )
    kinds = ("swap", "recompute", "recomputed_tokens")
    defaults = [(name, *(f"{of[kind]:,}" for kind in kinds)) for name, of in counts.items()]
    fastest = max(choices, key=lambda of: of.break_even)
    slowest = min(choices, key=lambda of: of.break_even)
    return Audited(
        judge_swap(figures),
        figures._asdict(),
        f"Swap wins above a rate of {digits(slowest.break_even / 1e9)} GB/s ({slowest.name}) to"
        f" {digits(fastest.break_even / 1e9)} GB/s ({fastest.name}), out and back; PCIe 4 moves"
        f" {digits(card('a100-80gb').host_bytes_per_s / 1e9)} GB/s in bulk, {digits((128 << 10) / SMALL_COPY_S / 1e9)}"
        " GB/s in pieces of 128 KiB.",
        [
            Table("Preemptions with each engine's defaults", ("", "by swap", "by recompute", "tokens again"), defaults),
            _choice_table(choices),
        ],
    )


def _pressure(preset: str) -> dict[str, dict[str, object]]:
    """Requests that outgrow a pool of 4,800 tokens."""
    return {
        "workload": {
            **{"generator": "poisson", "rate_per_s": 5, "num_requests": 150},
            "prompt": {"dist": "uniform", "low": 100, "high": 300},
            "output": {"dist": "uniform", "low": 200, "high": 600},
        },
        "engine": {"preset": preset, "num_gpu_blocks": 300},
    }


class Choice(NamedTuple):
    """A sequence of 1,000 tokens of one model on one card: the break-even rate, and swap against recompute where KV is
    moved layer by layer, block by block, and as one piece."""

    name: str
    break_even: float
    recompute_s: float
    layouts: Sequence[Any]


def _choice(model_name: str, card_name: str) -> Choice:
    costs = load_cost_model(model(model_name), card(card_name))
    layouts = (
        swap_choice(costs, _TOKENS, _BLOCK),
        swap_choice(costs, _TOKENS, _BLOCK, 1),
        swap_choice_in_bulk(costs, _TOKENS),
    )
    name = f"{model_name} on {card_name}"
    return Choice(name, break_even_bytes_per_s(costs, _TOKENS), costs.recompute_time_s(_TOKENS, 0), layouts)


def _choice_table(choices: Sequence[Choice]) -> Table:
    rows = [
        (
            of.name,
            f"{digits(of.break_even / 1e9)} GB/s",
            seconds(of.recompute_s),
            *(f"{seconds(layout.out_and_back_s)} ({layout.winner})" for layout in of.layouts),
        )
        for of in choices
    ]
    header = ("1,000 tokens", "break-even", "recompute", "swap, by layers", "swap, whole blocks", "swap, one piece")
    return Table("Swap out and back against computing again, and which is faster", header, rows)


class LimitFigures(NamedTuple):
    """Of one value of max_model_len: tokens of the KV pool, bytes set aside for activations, preemptions under the same
    requests."""

    max_model_len: int
    pool_tokens: int
    activation_bytes: int
    preemptions: int


def judge_limit(points: Sequence[LimitFigures]) -> Ruling:
    """False where a longer limit never leaves a larger pool; reproduced where it always does."""
    pools = [of.pool_tokens for of in points]
    pairs = list(pairwise(pools))
    change = f"from {points[0].max_model_len:,} to {points[-1].max_model_len:,} the KV pool goes from {pools[0]:,} to"
    change += f" {pools[-1]:,} tokens, preemptions from {points[0].preemptions:,} to {points[-1].preemptions:,}"
    if all(after <= before for before, after in pairs):
        return Ruling("false", f"it makes memory scarcer: {change}")
    if all(after > before for before, after in pairs):
        return Ruling("reproduced", change)
    return Ruling("baseline-dependent", f"it depends on the step: {change}")


_LIMITS = (4_096, 16_384, 32_768, 65_536, 131_072)


def _audit_limit(run: Runner) -> Audited:
    points = [_limit_point(run, limit) for limit in _LIMITS]
    rows = [
        (f"{of.max_model_len:,}", f"{of.activation_bytes / 1e9:.2f} GB", f"{of.pool_tokens:,}", f"{of.preemptions:,}")
        for of in points
    ]
    header = ("max_model_len", "activations", "KV pool, tokens", "preemptions")
    return Audited(
        judge_limit(points),
        {f"pool_tokens_at_{of.max_model_len}": of.pool_tokens for of in points},
        "Memory is weights, activations, reserve and KV pool: what the widest step needs more, the pool has less.",
        [Table("The same requests under longer limits", header, rows)],
        notes=[
            "activations are assumed from the width of the widest step (docs/costs.md), which without chunks must take"
            " the longest prompt; with chunked prefill the limit does not change them"
        ],
    )


def _limit_point(run: Runner, limit: int) -> LimitFigures:
    from policies.presets import preset, resolve
    from sim.costs.pool import activation_bytes

    tables: dict[str, dict[str, object]] = {
        "workload": {
            **{"generator": "poisson", "rate_per_s": 12, "num_requests": 500},
            "prompt": {"dist": "uniform", "low": 200, "high": 1_000},
            "output": {"dist": "uniform", "low": 400, "high": 2_000},
        },
        "engine": {"preset": "vllm-0.6", "max_model_len": limit},
        "model": {"name": "llama-3.1-8b"},
        "hardware": {"name": "a100-40gb"},
    }
    summary = run(tables)
    shape = model("llama-3.1-8b")
    parameters = resolve(preset("vllm-0.6"), {"max_model_len": limit}, max_model_len=shape.max_model_len)
    activation = activation_bytes(shape, parameters.max_num_batched_tokens, parameters.max_num_seqs)
    counts, kv = summary["preemptions"], summary["kv"]
    pool = kv["num_gpu_blocks"] * kv["block_size"]
    return LimitFigures(limit, pool, activation, counts["recompute"] + counts["swap"])


MEMORY_CLAIMS = (
    Claim(
        "swap-default",
        "vLLM and TGI primarily use swap, and swap is faster than recompute.",
        (
            ("Runs", "Llama-2-7B on A100-80GB, 4,800 tokens of KV pool, 5 requests/s; every engine's own defaults"),
            ("Costs", "a sequence of 1,000 tokens, of several models on several cards, moved or computed again"),
        ),
        "By default more preemptions recompute than swap, and TGI preempts nobody: the first half is false, and so the"
        " claim; the second half depends where both win somewhere.",
        _audit_swap,
    ),
    Claim(
        "longer-max-len",
        "Raising max_model_len can help against running out of memory.",
        (
            ("Model and card", "Llama-3.1-8B on one A100 40 GB, vllm-0.6"),
            ("Runs", "500 requests at 12/s under limits of 4,096 to 131,072 tokens"),
        ),
        "The KV pool never grows with the limit: false; it always does: reproduced.",
        _audit_limit,
    ),
)
