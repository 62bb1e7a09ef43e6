"""Claims held against what the hardware allows: Llama-3-70B on A100, and a closed loop of up to 32 clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from policies.catalog import card, model
from sim.costs.load import load_cost_model
from sim.costs.model import CostModel
from sim.explore.claims_case import Audited, Claim, Drawing, Ruling, Runner, at_once, fixed, times
from sim.report.charts import Figure, axis, base_layout, line
from sim.report.figures import Table
from sim.report.palette import COLOURS
from sim.wording import digits, percent, seconds

# -- llama3-70b --------------------------------------------------------------------------------------------------------

_MODEL_70B, _CARD = "llama-3-70b", "a100-80gb"
_REQUESTS_PER_S, _SHORTEST, _LONGEST_OUTPUT = 42, 50, 500
_MEAN_OUTPUT = (_SHORTEST + _LONGEST_OUTPUT) // 2
_PROMPT_70B = 100
PUBLISHED_PER_S = {8: 4_474.1621}
"""By the number of cards, the most output tokens a second that is published of Llama-3-70B on A100-80GB: prompts and
answers of 128 tokens, TensorRT-LLM 0.14, its performance overview; the highest of 24 rows of that model and card."""

_STREAM_PER_S, _STREAM_BATCH, _TTFT_S = 35.0, 4, 0.05
GROUPS = (2, 4, 8)


class GroupFigures(NamedTuple):
    """A group of ``cards``: seconds to read the weights once, output tokens a second of the hardware bound and of a
    simulated burst, tokens a second of one request in a batch of 4, the longest prompt that is read in 50 ms, and the
    most output tokens a second that is published of such a group (None: nothing is)."""

    cards: int
    weights_s: float
    bound_per_s: float
    simulated_per_s: float
    stream_per_s: float
    prompt_tokens: int
    published_per_s: float | None = None


def judge_70b(claimed_per_s: float, groups: Sequence[GroupFigures]) -> Ruling:
    """Impossible where the claimed output tokens a second exceed the bound of some group, and no other group gets there
    in simulation or in what is published of it; reproduced where a group's simulation does; undecidable where nothing
    is published of a group whose bound allows it, or more than is claimed."""
    reached = [of for of in groups if of.simulated_per_s >= claimed_per_s]
    if reached:
        first = reached[0]
        return Ruling("reproduced", f"{first.cards} cards make {digits(first.simulated_per_s)} tokens a second")
    over = [of for of in groups if claimed_per_s > of.bound_per_s]
    under = [of for of in groups if of not in over]
    if not over:
        most = max(of.simulated_per_s for of in groups)
        return Ruling("false", f"{digits(claimed_per_s)} tokens a second, {digits(most)} simulated")
    largest = over[-1]
    why = (
        f"{digits(claimed_per_s)} output tokens a second are {times(claimed_per_s / largest.bound_per_s)} the hardware"
        f" bound of {largest.cards} cards ({digits(largest.bound_per_s)})"
    )
    for of in under:
        why += f"; {of.cards} cards are bound by {digits(of.bound_per_s)}, make {digits(of.simulated_per_s)} simulated"
        if of.published_per_s is None:
            why += ", and nothing is published of them"
        else:
            why += f" and {digits(of.published_per_s)} in the best published measurement"
    if all(of.published_per_s is not None and of.published_per_s < claimed_per_s for of in under):
        return Ruling("impossible", why + (": not credible" if under else ""))
    return Ruling("undecidable", why, "a measurement of the larger groups")


def _audit_70b(run: Runner) -> Audited:
    groups = [_group(run, tp) for tp in GROUPS]
    claimed = float(_REQUESTS_PER_S * _MEAN_OUTPUT)
    rows = [
        (
            f"{of.cards}",
            seconds(of.weights_s),
            digits(of.bound_per_s),
            f"{digits(of.simulated_per_s)} ({percent(of.simulated_per_s / of.bound_per_s)} of it)",
            times(claimed / of.bound_per_s),
            digits(of.stream_per_s),
            f"{of.prompt_tokens:,}",
        )
        for of in groups
    ]
    header = (
        *("cards", "weights read, a step", "bound, tokens/s", "simulated burst, tokens/s", "claimed / bound"),
        *("one of 4 requests, tokens/s", "prompt read in 50 ms, tokens"),
    )
    four = next(of for of in groups if of.cards == 4)
    weights = model(_MODEL_70B).weight_bytes
    streams = [of.cards for of in groups if of.stream_per_s >= _STREAM_PER_S]
    plausible = f"on {' or '.join(map(str, streams))} cards" if streams else "on none of these"
    notes = [
        f"35 tokens a second for one request are possible {plausible}, in a batch of {_STREAM_BATCH}",
        f"50 ms to the first token are possible for prompts of at most {four.prompt_tokens:,} tokens on 4 cards, in an"
        " empty queue",
        f"42 over 8 requests a second is {times(42 / 8)}, as claimed; neither rate states its number of cards",
        f"prompts are not stated: {_PROMPT_70B} tokens assumed; none at all would raise the bound of 4 cards to"
        f" {digits(_bound_without_prompts(4))}",
    ]
    return Audited(
        judge_70b(claimed, groups),
        {
            "claimed_per_s": claimed,
            **{f"bound_per_s_on_{of.cards}": of.bound_per_s for of in groups},
            **{f"simulated_per_s_on_{of.cards}": of.simulated_per_s for of in groups},
            **{f"published_per_s_on_{cards}": rate for cards, rate in PUBLISHED_PER_S.items()},
        },
        f"{weights / 1e9:.0f} GB of weights need {-(-weights // card(_CARD).memory_bytes)} cards at least; 4 of them"
        f" make at most {digits(four.bound_per_s)} output tokens a second of such requests; {digits(claimed)} are"
        " claimed.",
        [Table("Llama-3-70B, 16 bit, on groups of A100-80GB", header, rows)],
        notes=notes,
    )


def _group(run: Runner, tp: int) -> GroupFigures:
    costs = _costs_70b(tp)
    summary = run(
        {
            "workload": at_once(1_024, fixed(_PROMPT_70B), _uniform(_SHORTEST, _LONGEST_OUTPUT)),
            "engine": {"preset": "vllm-0.11", "max_num_seqs": 512},
            "model": {"name": _MODEL_70B},
            "hardware": {"name": _CARD, "tp": tp, "host_term": False},
        }
    )
    rates = summary["throughput"]
    # Small messages go by vLLM's own all-reduce, which the decode steps of a small batch are made of.
    small = load_cost_model(model(_MODEL_70B).shard(tp), card(_CARD), all_reduce="custom")
    context = _PROMPT_70B + _MEAN_OUTPUT // 2
    step_s = small.step_time_s(_STREAM_BATCH, _STREAM_BATCH, _STREAM_BATCH * context, context, ())
    return GroupFigures(
        cards=tp,
        weights_s=costs.floor.body_read_s + costs.floor.head_read_s,
        bound_per_s=rates["bound_output_tokens_per_s"],
        simulated_per_s=rates["output_tokens_per_s"],
        stream_per_s=1.0 / step_s,
        prompt_tokens=_longest_prompt(costs, _TTFT_S),
        published_per_s=PUBLISHED_PER_S.get(tp),
    )


def _uniform(low: int, high: int) -> dict[str, object]:
    return {"dist": "uniform", "low": low, "high": high}


def _costs_70b(tp: int) -> CostModel:
    return load_cost_model(model(_MODEL_70B).shard(tp), card(_CARD))


def _longest_prompt(costs: CostModel, limit_s: float) -> int:
    """Tokens of the longest prompt that is read within a time, alone in the engine."""
    low, high = 0, 8_192
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if costs.recompute_time_s(middle, 0) <= limit_s else (low, middle)
    return low


def _bound_without_prompts(tp: int) -> float:
    floor = _costs_70b(tp).floor
    return 1.0 / (floor.token_s + floor.head_row_s + floor.pair_s * _MEAN_OUTPUT / 2)


# -- c32 ---------------------------------------------------------------------------------------------------------------

LEVELS = (1, 4, 8, 16, 32)
_PROMPTS, _ANSWERS = (50, 200), (100, 500)
_LONGEST = _PROMPTS[1] + _ANSWERS[1]
"""Tokens of the longest request."""

STABLE = 1.6
"""ITL at most so many times that of one client is "stable or slightly up"."""


class LevelFigures(NamedTuple):
    """A closed loop of so many clients: means in seconds, output tokens a second, preemptions, the floor that no decode
    step of so many sequences undercuts, and the tokens that the KV pool holds."""

    clients: int
    itl_s: float
    ttft_s: float
    output_per_s: float
    preemptions: int
    floor_s: float
    pool_tokens: int = 0


def judge_closed_loop(levels: Sequence[LevelFigures]) -> Ruling:
    """Reproduced where ITL stays within ``STABLE``, TTFT rises from the first to the last level, and throughput rises
    at every one; impossible where a gap undercuts the floor; else false."""
    first, last = levels[0], levels[-1]
    growth = last.itl_s / first.itl_s
    what = (
        f"from {first.clients} to {last.clients} clients ITL goes from {seconds(first.itl_s)} to {seconds(last.itl_s)}"
        f" ({times(growth)}), TTFT from {seconds(first.ttft_s)} to {seconds(last.ttft_s)}, output from"
        f" {digits(first.output_per_s)} to {digits(last.output_per_s)} tokens a second"
        f" ({times(last.output_per_s / first.output_per_s)}), with {sum(of.preemptions for of in levels):,} preemptions"
    )
    if any(of.itl_s < of.floor_s for of in levels):
        return Ruling("impossible", f"a step undercuts the hardware floor: {what}")
    rates = [of.output_per_s for of in levels]
    scales = all(after > before for before, after in pairwise(rates))
    if growth <= STABLE and last.ttft_s > first.ttft_s and scales:
        return Ruling("reproduced", what)
    return Ruling("false", what)


def _audit_closed_loop(run: Runner) -> Audited:
    costs = load_cost_model(model("llama-2-7b"), card(_CARD))
    levels = [_level(run, clients, costs) for clients in LEVELS]
    rows = [
        (
            *(f"{of.clients}", seconds(of.itl_s), seconds(of.floor_s), seconds(of.ttft_s), digits(of.output_per_s)),
            f"{of.preemptions:,}",
        )
        for of in levels
    ]
    header = ("clients", "ITL mean", "floor of a step", "TTFT mean", "output tokens/s", "preemptions")
    floors = ", ".join(f"{1e3 * of.floor_s:.3g}" for of in levels)
    return Audited(
        judge_closed_loop(levels),
        {f"itl_s_at_{of.clients}": of.itl_s for of in levels},
        f"A decode step of {', '.join(map(str, LEVELS))} sequences takes at least {floors} ms.",
        [Table("A closed loop on one card", header, rows)],
        [_level_drawing(levels)],
        [
            f"no host time is in these. {LEVELS[-1]} requests of {_LONGEST} tokens take"
            f" {LEVELS[-1] * _LONGEST:,} tokens of KV at most, of {levels[-1].pool_tokens:,}"
        ],
    )


def closed_loop(clients: int) -> Mapping[str, Mapping[str, object]]:
    """The RUN.toml of one level."""
    return {
        "workload": {
            **{"generator": "closed-loop", "concurrency": clients, "num_requests": max(50, 3 * clients)},
            "prompt": _uniform(*_PROMPTS),
            "output": _uniform(*_ANSWERS),
        },
        "engine": {"preset": "vllm-0.11"},
        "model": {"name": "llama-2-7b"},
        "hardware": {"name": _CARD, "host_term": False},
    }


def _level(run: Runner, clients: int, costs: CostModel) -> LevelFigures:
    summary: Mapping[str, Any] = run(closed_loop(clients))
    counts = summary["preemptions"]
    # At mean lengths, half of the answer made.
    context = clients * (sum(_PROMPTS) // 2 + sum(_ANSWERS) // 4)
    return LevelFigures(
        clients,
        summary["itl_s"]["mean"],
        summary["ttft_s"]["mean"],
        summary["throughput"]["output_tokens_per_s"],
        counts["recompute"] + counts["swap"],
        costs.floor.decode_s(clients, context),
        summary["kv"]["num_gpu_blocks"] * summary["kv"]["block_size"],
    )


def _level_drawing(levels: Sequence[LevelFigures]) -> Drawing:
    clients = [of.clients for of in levels]
    curves = (
        ("ITL, simulated", [of.itl_s for of in levels], COLOURS[0], "solid"),
        ("floor of a decode step", [of.floor_s for of in levels], COLOURS[9], "dash"),
        ("TTFT, simulated", [of.ttft_s for of in levels], COLOURS[1], "dot"),
    )
    traces = [
        line(clients, [round(1e3 * value, 3) for value in values], name, colour, dash, hover=f"{name}: %{{y:.3g}} ms")
        for name, values, colour, dash in curves
    ]
    layout = base_layout(320)
    layout["xaxis"] = axis("clients")
    layout["yaxis"] = axis("milliseconds")
    caption = "Mean gap between tokens and mean time to the first token, against the number of clients."
    return Drawing("Latency against clients", caption, Figure(traces, layout))


BOUND_CLAIM = Claim(
    "llama3-70b",
    "Llama-3-70B on A100-80GB: continuous batching serves 42 requests a second where static batching serves 8, each"
    " with 35 tokens a second in place of 12, the first after 50 ms.",
    (
        ("Model and cards", "Llama-3-70B, 16 bit, on 2, 4 and 8 A100-80GB (NVLink), no host time"),
        ("Requests", f"1,024 at once; prompts of {_PROMPT_70B} tokens (assumed), answers of 50 to 500 (stated)"),
        ("Claimed rate", f"42 requests/s of {_MEAN_OUTPUT} tokens on average are {42 * _MEAN_OUTPUT:,} tokens/s"),
    ),
    "A group reaches the claimed tokens a second in simulation: reproduced. Else impossible if they exceed the bound of"
    " some group, and neither simulation nor the best published measurement of larger ones gets there.",
    _audit_70b,
)

CLOSED_LOOP_CLAIM = Claim(
    "c32",
    "With 1, 4, 8, 16, 32 clients ITL stays stable or rises slightly, TTFT rises, and throughput scales.",
    (
        ("Model and card", "Llama-2-7B on one A100-80GB, vllm-0.11, no host time"),
        ("Requests", "prompts of 50 to 200 tokens, answers of 100 to 500, 50 to 96 a level, closed loop"),
    ),
    f"ITL grows at most {STABLE:g} times, TTFT rises, throughput rises at every level: reproduced; a gap below the"
    " hardware floor: impossible; else false.",
    _audit_closed_loop,
)
