"""Claims against static baselines: what scheduling and memory give at equal speed, and what a slow baseline adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sim.explore.claims_case import Audited, Claim, Drawing, Ruling, Runner, Tables, at_once, fixed, times
from sim.report.charts import Figure, axis, base_layout
from sim.report.figures import Table
from sim.report.palette import faded, policy_colour
from sim.wording import digits, percent

CLOSE = 0.9
"""A ratio that is simulated at this share of the claimed one, or more, is reproduced."""

NOTHING_GAINED = 1.5
"""A ratio below this leaves nothing of a claim of several times."""

# -- anyscale-23x ------------------------------------------------------------------------------------------------------

CLAIMED, CLAIMED_RESERVED, CLAIMED_KERNELS = 23.0, 8.0, 4.0
"""Times naive static batching: vLLM, continuous batching that reserves, FasterTransformer. The first is judged."""

_PROMPT, _MEAN = 512, 128
_CASES = {32: (16, 8_700), 128: (12, 7_500), 512: (8, 8_100), 1_536: (4, 8_100)}
"""By the cap of the answers: sequences of a static batch, and the token budget of continuous batching."""

_PAGED, _RESERVED, _NAIVE, _STATIC = "vllm-0.2.7", "tgi-1.4", "hf-static", "ft-static"
_NAMES = {
    _NAIVE: "naive static",
    _STATIC: "static (FasterTransformer)",
    _RESERVED: "continuous, reserved",
    _PAGED: "vLLM",
}


class BaselineFigures(NamedTuple):
    """Of the most variable case. Ratios of vLLM to naive static batching: by the cost model's step times
    (``simulated``), where every step counts the same (``equal_steps``), and the most that it can be there
    (``most_equal_steps``: as many sequences as the KV pool holds prompts, over those of the static batch that are
    alive). ``scheduling`` is the part of ``equal_steps`` that comes with the same number of slots, ``memory`` the rest;
    ``reserved`` is the simulated ratio of continuous batching with reservations, ``static_share`` of the hardware bound
    what naive static batching reaches."""

    claimed: float
    simulated: float
    equal_steps: float
    most_equal_steps: float
    scheduling: float
    memory: float
    reserved: float
    static_share: float


def judge_baseline(figures: BaselineFigures) -> Ruling:
    """Reproduced where the simulated ratio is ``CLOSE`` to the claim; false where scheduling and memory gain nearly
    nothing; between them the claim depends on a baseline that is slower than its schedule makes it."""
    of = figures
    if of.simulated >= CLOSE * of.claimed:
        return Ruling("reproduced", f"{times(of.simulated)} simulated at equal kernels")
    if of.equal_steps < NOTHING_GAINED:
        return Ruling("false", f"scheduling and memory give {times(of.equal_steps)} of {times(of.claimed)}")
    return Ruling(
        "baseline-dependent",
        f"scheduling and memory give {times(of.equal_steps)} at equal step time ({times(of.scheduling)} by joining and"
        f" leaving, {times(of.memory)} by holding more sequences; at most {times(of.most_equal_steps)}) and"
        f" {times(of.simulated)} with the steps' own times; the rest of {times(of.claimed)}, a factor of"
        f" {times(of.claimed / of.most_equal_steps)} to {times(of.claimed / of.simulated)}, is a baseline with slower"
        f" kernels. Continuous batching that reserves gives {times(of.reserved)} of its {times(CLAIMED_RESERVED)}; what"
        f" FasterTransformer gains ({times(CLAIMED_KERNELS)}) is kernels alone, which no schedule shows",
    )


def _audit_anyscale(run: Runner) -> Audited:
    runs = {cap: _runs_of(run, cap) for cap in _CASES}
    cap = max(_CASES)
    of = runs[cap]
    slots = run(_anyscale(cap, {"preset": _PAGED, "max_num_seqs": _CASES[cap][0]}))
    figures = _baseline_figures(of, slots, cap)
    rows = []
    for limit, by_name in runs.items():
        base = _rate(by_name[_NAIVE])
        cells = [f"{digits(_rate(one))} ({times(_rate(one) / base)})" for one in by_name.values()]
        rows.append((f"{limit:,}", *cells, times(_count(by_name[_NAIVE]) / _count(by_name[_PAGED]))))
    header = ("answers at most", *(_NAMES[name] for name in of), "vLLM, equal step time")
    table = Table("Tokens a second, prompt and answer, and times that of naive static batching", header, rows)
    paged = of[_PAGED]["throughput"]
    bound = (
        f"With answers of up to {cap:,} tokens the card could make {digits(paged['bound_output_tokens_per_s'])} output"
        f" tokens a second with vLLM's memory; vLLM makes {percent(_of_bound(of[_PAGED]))} of that, and the naive batch"
        f" of {_CASES[cap][0]} {percent(figures.static_share)} of what its memory allows."
    )
    notes = [
        "naive static batching and FasterTransformer differ in their kernels, which no schedule shows: here their steps"
        " take the same time"
    ]
    return Audited(judge_baseline(figures), figures._asdict(), bound, [table], [_bars(runs)], notes)


def _runs_of(run: Runner, cap: int) -> dict[str, dict[str, Any]]:
    batch, budget = _CASES[cap]
    longest = _PROMPT + cap
    static = {"max_num_seqs": batch, "max_model_len": longest}
    reserved = {
        **{"preset": _RESERVED, "max_model_len": longest, "max_input_length": _PROMPT},
        **{"max_batch_total_tokens": budget, "max_concurrent_requests": 10_000},
    }
    engines = ({"preset": _NAIVE, **static}, {"preset": _STATIC, **static}, reserved, {"preset": _PAGED})
    return {str(engine["preset"]): run(_anyscale(cap, engine)) for engine in engines}


def _anyscale(cap: int, engine: Mapping[str, object]) -> Tables:
    output = {"dist": "exponential", "mean": _MEAN, "cap": cap}
    return {
        "workload": {**at_once(1_000, fixed(_PROMPT), output), "max_tokens": cap},
        "engine": engine,
        "model": {"name": "opt-13b"},
        "hardware": {"name": "a100-40gb", "host_term": False},
    }


def _baseline_figures(of: Mapping[str, dict[str, Any]], slots: dict[str, Any], cap: int) -> BaselineFigures:
    naive, paged = of[_NAIVE], of[_PAGED]
    equal = _count(naive) / _count(paged)
    scheduling = _count(naive) / _count(slots)
    pool = paged["kv"]["num_gpu_blocks"] * paged["kv"]["block_size"]
    alive = _CASES[cap][0] * (1 - naive["steps"]["slot_waste"])
    return BaselineFigures(
        claimed=CLAIMED,
        simulated=_rate(paged) / _rate(naive),
        equal_steps=equal,
        most_equal_steps=(pool // _PROMPT) / alive,
        scheduling=scheduling,
        memory=equal / scheduling,
        reserved=_rate(of[_RESERVED]) / _rate(naive),
        static_share=_of_bound(naive),
    )


def _rate(summary: Mapping[str, Any]) -> float:
    rate: float = summary["throughput"]["total_tokens_per_s"]
    return rate


def _count(summary: Mapping[str, Any]) -> int:
    count: int = summary["steps"]["count"]
    return count


def _of_bound(summary: Mapping[str, Any]) -> float:
    rates = summary["throughput"]
    share: float = rates["output_tokens_per_s"] / rates["bound_output_tokens_per_s"]
    return share


def _bars(runs: Mapping[int, Mapping[str, dict[str, Any]]]) -> Drawing:
    """Times naive static batching, by cap and system."""
    traces = []
    for name in (_NAIVE, _RESERVED, _PAGED):
        ratios = [_rate(of[name]) / _rate(of[_NAIVE]) for of in runs.values()]
        colour = policy_colour(name)
        pattern = {_NAIVE: "/", _RESERVED: "x", _PAGED: ""}[name]
        traces.append(
            {
                **{"type": "bar", "x": [f"{cap:,}" for cap in runs], "y": [round(ratio, 3) for ratio in ratios]},
                **{"name": _NAMES[name], "hovertemplate": f"{_NAMES[name]}: %{{y:.3g}}x<extra></extra>"},
                "marker": {
                    **{"color": faded(colour, 0.85), "line": {"color": colour, "width": 2}},
                    "pattern": {"shape": pattern, "fgcolor": colour, "size": 8, "fillmode": "replace"},
                },
            }
        )
    layout = base_layout(320, barmode="group", bargap=0.3)
    layout["xaxis"] = axis("answers of at most so many tokens", type="category")
    layout["yaxis"] = axis("times naive static")
    caption = "Tokens a second over those of naive static batching, at equal kernels: what schedule and memory give."
    return Drawing("Gain over naive static batching", caption, Figure(traces, layout))


# -- vllm-24x ----------------------------------------------------------------------------------------------------------

MEASURED_PER_MIN = {"hf-static": 6.4, "tgi-1.4": 61.8, "vllm-0.2.7": 154.2}
"""Requests a minute as published by vLLM in June 2023: LLaMA-13B, A100 40 GB, ShareGPT lengths."""

SHAREGPT = (
    {"dist": "lognormal", "mean": 161, "cv": 1.5, "cap": 1_024},
    {"dist": "lognormal", "mean": 338, "cv": 1.2, "cap": 1_024},
)
"""Lengths of prompts and answers: means as Kwon et al. (SOSP 2023) state them for ShareGPT; law and spread assumed."""

SLOW = 0.1
"""A baseline that reaches a smaller share of the hardware bound is slow for other reasons than its schedule."""


class LaunchFigures(NamedTuple):
    """Ratios claimed (of requests a minute) and simulated, of vLLM to Hugging Face and to TGI; ``baseline_share`` of
    the hardware bound is what Hugging Face was measured at, ``simulated_share`` what its schedule allows."""

    claimed_hf: float
    claimed_tgi: float
    simulated_hf: float
    simulated_tgi: float
    baseline_share: float
    simulated_share: float


def judge_launch(figures: LaunchFigures) -> Ruling:
    """Reproduced where the simulated ratio to Hugging Face is ``CLOSE`` to the claim. Baseline-dependent where it is
    not, that baseline was measured below ``SLOW`` of the hardware bound, and the ratio to TGI is right within 40 %;
    false otherwise."""
    of = figures
    if of.simulated_hf >= CLOSE * of.claimed_hf:
        return Ruling("reproduced", f"{times(of.simulated_hf)} simulated at equal kernels")
    parts = (
        f"the part of scheduling and memory is {times(of.simulated_tgi)} to TGI ({times(of.claimed_tgi)} claimed) and"
        f" {times(of.simulated_hf)} to Hugging Face; that was measured at {percent(of.baseline_share)} of the hardware"
        f" bound, where its schedule allows {percent(of.simulated_share)}"
    )
    is_right = abs(of.simulated_tgi / of.claimed_tgi - 1) <= 0.4
    if of.baseline_share < SLOW and is_right and of.simulated_hf >= NOTHING_GAINED:
        return Ruling("baseline-dependent", parts)
    return Ruling("false", parts)


def _audit_launch(run: Runner) -> Audited:
    runs = {str(engine["preset"]): run(_launch(engine)) for engine in _LAUNCH_ENGINES}
    per_min = {name: 60 * of["throughput"]["requests_per_s"] for name, of in runs.items()}
    paged = runs["vllm-0.2.7"]["throughput"]
    mean = paged["output_tokens_per_s"] / paged["requests_per_s"]
    bound = 60 * paged["bound_output_tokens_per_s"] / mean
    hf, tgi, vllm = MEASURED_PER_MIN
    figures = LaunchFigures(
        claimed_hf=MEASURED_PER_MIN[vllm] / MEASURED_PER_MIN[hf],
        claimed_tgi=MEASURED_PER_MIN[vllm] / MEASURED_PER_MIN[tgi],
        simulated_hf=per_min[vllm] / per_min[hf],
        simulated_tgi=per_min[vllm] / per_min[tgi],
        baseline_share=MEASURED_PER_MIN[hf] / bound,
        simulated_share=per_min[hf] / bound,
    )
    rows = [
        (name, *(digits(rate) for rate in rates), *(percent(rate / bound) for rate in rates))
        for name, rates in ((name, (MEASURED_PER_MIN[name], rate)) for name, rate in per_min.items())
    ]
    header = ("", "published", "simulated", "published, of the bound", "simulated, of the bound")
    return Audited(
        judge_launch(figures),
        figures._asdict(),
        f"The card could answer {digits(bound)} such requests a minute, as many at once as its memory holds.",
        [Table("Requests a minute", header, rows)],
        notes=[
            "published figures are those of their authors, not measured here; the batch of Hugging Face is assumed:"
            f" {runs[hf]['kv']['num_gpu_blocks']}, what reservations of 2,048 tokens leave room for"
        ],
    )


_LAUNCH_ENGINES: Sequence[Mapping[str, object]] = (
    {"preset": "hf-static"},
    {"preset": "tgi-1.4", "max_concurrent_requests": 10_000},
    {"preset": "vllm-0.2.7"},
)


def _launch(engine: Mapping[str, object]) -> Tables:
    prompt, output = SHAREGPT
    return {
        # Users of TGI state a limit; where it equalled the answer's length, reservations would be perfect.
        "workload": {**at_once(600, prompt, output), "max_tokens": 1_024},
        "engine": engine,
        "model": {"name": "llama-13b"},
        "hardware": {"name": "a100-40gb", "host_term": False},
    }


STATIC_CLAIMS = (
    Claim(
        "anyscale-23x",
        "vLLM is 23 times as fast as naive static batching, continuous batching 8 times, FasterTransformer 4 times.",
        (
            ("Model and card", "OPT-13B, 16 bit, on one A100 40 GB, no host time"),
            ("Requests", "1,000 at once; prompts of 512 tokens; answers exponential (128), cut at 32, 128, 512, 1,536"),
            ("Runs", "static batches of 16, 12, 8, 4; continuous with 8,700, 7,500, 8,100, 8,100 tokens; vLLM 0.2.7"),
            ("Metric", "prompt and output tokens over the whole duration"),
        ),
        "90 % of 23x simulated at equal kernels: reproduced; scheduling and memory below 1.5x: false; between:"
        " baseline-dependent.",
        _audit_anyscale,
    ),
    Claim(
        "vllm-24x",
        "vLLM serves 24 times as many requests as Hugging Face transformers, and 2.5 times as many as TGI.",
        (
            ("Model and card", "LLaMA-13B on one A100 40 GB, no host time"),
            ("Requests", "600 at once; ShareGPT's mean lengths (161 and 338 tokens), lognormal; limit 1,024"),
            ("Runs", "hf-static, tgi-1.4, vllm-0.2.7; published: 6.4, 61.8 and 154.2 requests a minute"),
        ),
        "90 % of 24x simulated at equal kernels: reproduced. Else baseline-dependent if Hugging Face was measured below"
        " 10 % of the hardware bound and the ratio to TGI is right within 40 %; else false.",
        _audit_launch,
    ),
)
