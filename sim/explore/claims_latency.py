"""Claims about throughput at equal latency: the curves of several systems, and their ratio at one level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from policies.core.errors import RunError
from sim.explore.claims_case import Audited, Claim, Drawing, Ruling, Runner, Tables, times
from sim.explore.claims_static import SHAREGPT
from sim.report.charts import Figure, axis, base_layout, line, log_axis
from sim.report.figures import Table
from sim.report.palette import policy_colour
from sim.wording import digits, percent, seconds

Law = Mapping[str, object]


class Point(NamedTuple):
    """A rate of requests, their mean normalized latency (seconds a token of the answer), and the requests a second that
    the hardware bounds them at, with the memory of that system."""

    rate_per_s: float
    latency_s: float
    bound_per_s: float = math.inf


Curve = Sequence[Point]


def rate_at(curve: Curve, level_s: float) -> float | None:
    """The highest rate whose latency stays within a level, between the rates of a curve by logarithms; None where even
    the lowest rate exceeds it, or the highest does not reach it."""
    if curve[0].latency_s > level_s:
        return None
    for low, high in pairwise(curve):
        if high.latency_s > level_s:
            share = math.log(level_s / low.latency_s) / math.log(high.latency_s / low.latency_s)
            return math.exp((1 - share) * math.log(low.rate_per_s) + share * math.log(high.rate_per_s))
    return None


def _point(run: Runner, tables: Tables, rate: float) -> Point:
    """The same requests at another rate."""
    summary = run({**tables, "workload": {**tables["workload"], "rate_per_s": rate}})
    rates, counts = summary["throughput"], summary["requests"]
    tokens = rates["output_tokens_per_s"] * summary["duration_s"] / counts["finished"]
    return Point(rate, summary["normalized_latency_s"]["mean"], rates["bound_output_tokens_per_s"] / tokens)


def _curve(run: Runner, tables: Tables, level_s: float) -> Curve:
    """Latency at rising rates, by factors of the square root of 2, until it exceeds ``level_s``."""
    points = []
    for place in range(_STEPS):
        points.append(_point(run, tables, _LOWEST_PER_S * 2 ** (place / 2)))
        if points[-1].latency_s > level_s:
            break
    return points


def _knee(run: Runner, tables: Tables, start_per_s: float, level_s: float) -> Curve:
    """Latency at rates that close in on a level: doubled or halved from the start until the level lies between two,
    which are then halved twice (by logarithms)."""
    points = [_point(run, tables, start_per_s)]
    factor = 2.0 if points[0].latency_s <= level_s else 0.5
    while (points[-1].latency_s <= level_s) == (factor > 1.0) and len(points) < _STEPS:
        points.append(_point(run, tables, points[-1].rate_per_s * factor))
    low, high = sorted(points[-2:])
    for _ in range(2):
        middle = _point(run, tables, math.sqrt(low.rate_per_s * high.rate_per_s))
        points.append(middle)
        low, high = (middle, high) if middle.latency_s <= level_s else (low, middle)
    return sorted(points)


_STEPS = 18
_LOWEST_PER_S = 0.0625


# -- vllm-2-4x ---------------------------------------------------------------------------------------------------------

_PAGED, _RELEASED = "vllm-0.11", "vllm-0.2.7"
_ORDER = (_PAGED, "orca-oracle", "orca-pow2", "orca-max", "ft-static")
"""All but the last batch iteration by iteration, prompts beside decodes, and differ in memory alone. The vLLM of the
paper's year reads prompts in steps of their own, which has nothing to do with memory; it is shown beside them."""

LEVEL_S = 0.1
"""Seconds a token at which the systems are compared; a reader takes in 4 to 10 tokens a second."""


class CaseFigures(NamedTuple):
    """One model and set of lengths: the rate of each system at the level, in requests a second."""

    name: str
    rates: Mapping[str, float]

    def ratio(self, system: str) -> float:
        """The rate with paged memory over a system's."""
        return self.rates[_PAGED] / self.rates[system]


def judge_equal_latency(cases: Sequence[CaseFigures]) -> Ruling:
    """Reproduced where in every case paged memory is first, Orca with better knowledge of lengths before Orca with
    worse, and FasterTransformer last, and the ratios to Orca's variants overlap 2 to 4; false where it is not first;
    else baseline-dependent."""
    ratios = [case.ratio(system) for case in cases for system in _ORDER[1:4]]
    what = f"{times(min(ratios))} to {times(max(ratios))} Orca, by what it reserves, and"
    static = [case.ratio("ft-static") for case in cases]
    what += f" {times(min(static))} to {times(max(static))} FasterTransformer, at {seconds(LEVEL_S)} a token"
    if any(ratio < 1.0 for ratio in (*ratios, *static)):
        return Ruling("false", f"paged memory is not always first: {what}")
    in_order = all(_is_in_order([case.rates[system] for system in _ORDER]) for case in cases)
    if in_order and min(ratios) <= 4.0 and max(ratios) >= 2.0:
        return Ruling("reproduced", f"in shape: {what}")
    return Ruling("baseline-dependent", what)


def _is_in_order(rates: Sequence[float]) -> bool:
    """Whether they do not rise, within 3 %."""
    return all(after <= 1.03 * before for before, after in pairwise(rates))


ALPACA: tuple[Law, Law] = (
    {"dist": "lognormal", "mean": 19, "cv": 0.8, "cap": 256},
    {"dist": "lognormal", "mean": 58, "cv": 1.2, "cap": 512},
)
"""Means as Kwon et al. (SOSP 2023) state them for Alpaca; law and spread assumed."""

class _Case(NamedTuple):
    name: str
    model: str
    tp: int
    lengths: tuple[Law, Law]
    num_requests: int
    start_per_s: float


_CASES = (
    _Case("OPT-13B, ShareGPT", "opt-13b", 1, SHAREGPT, 500, 1.0),
    _Case("OPT-13B, Alpaca", "opt-13b", 1, ALPACA, 1_000, 16.0),
    _Case("OPT-66B on 4 cards, ShareGPT", "opt-66b", 4, SHAREGPT, 500, 0.5),
)


def _audit_equal_latency(run: Runner) -> Audited:
    cases, drawings, bounds = [], [], []
    for case in _CASES:
        systems = (*_ORDER, _RELEASED)
        curves = {system: _knee(run, _paper(system, case), case.start_per_s, LEVEL_S) for system in systems}
        cases.append(CaseFigures(case.name, {system: _reached(curve) for system, curve in curves.items()}))
        drawings.append(_curves_drawing(f"{case.name}: latency against rate", curves, LEVEL_S))
        bounds.append(_bound_of(case.name, curves[_PAGED], cases[-1].rates[_PAGED]))
    rows = [
        (of.name, *(f"{digits(rate)} ({times(of.ratio(system))})" for system, rate in of.rates.items()))
        for of in cases
    ]
    header = ("", *_ORDER, f"{_RELEASED}, as released")
    caption = f"Requests a second at {seconds(LEVEL_S)} a token, and the rate with paged memory ({_PAGED}) over it"
    return Audited(
        judge_equal_latency(cases),
        {f"{of.name}: paged over {system}": of.ratio(system) for of in cases for system in _ORDER[1:]},
        f"With paged memory, requests a second at the level and at most: {'; '.join(bounds)}.",
        [Table(caption, header, rows)],
        drawings,
        [
            "latency is the mean of (end - arrival) / tokens of the answer, as in the paper",
            *_behind(cases),
        ],
    )


def _bound_of(name: str, curve: Curve, rate_per_s: float) -> str:
    bound = max(point.bound_per_s for point in curve)
    return f"{name} {digits(rate_per_s)} of {digits(bound)} ({percent(rate_per_s / bound)})"


def _behind(cases: Sequence[CaseFigures]) -> Sequence[str]:
    """Where the released engine is behind Orca with true lengths."""
    names = [case.name for case in cases if case.rates[_RELEASED] < case.rates["orca-oracle"]]
    reads = f"{_RELEASED} reads prompts in steps of their own, padded"
    return [f"{reads}, and is behind Orca with true lengths in: {', '.join(names)}"] if names else []


def _reached(curve: Curve) -> float:
    """The rate at the level. Raises a RunError where the curve does not hold it: then nothing is known of the ratio."""
    rate = rate_at(curve, LEVEL_S)
    if rate is None:
        rates = f"{curve[0].rate_per_s:g}/s to {curve[-1].rate_per_s:g}/s"
        raise RunError(f"no rate from {rates} has {LEVEL_S:g} s a token")
    return rate


def _paper(system: str, case: _Case) -> dict[str, dict[str, object]]:
    prompt, output = map(dict, case.lengths)
    lengths = {"prompt": prompt, "output": output}
    return {
        "workload": {"generator": "poisson", "num_requests": case.num_requests, **lengths},
        "engine": {"preset": system},
        "model": {"name": case.model},
        "hardware": {"name": "a100-40gb", "tp": case.tp, "host_term": False},
    }


def _curves_drawing(title: str, curves: Mapping[str, Curve], level_s: float) -> Drawing:
    dashes = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
    traces = [
        line(
            [round(point.rate_per_s, 4) for point in curve],
            [round(point.latency_s, 5) for point in curve],
            system,
            policy_colour(system),
            dash,
            hover=f"{system}: %{{y:.3g}} s a token at %{{x:.3g}} requests a second",
        )
        for (system, curve), dash in zip(curves.items(), dashes, strict=False)
    ]
    layout = base_layout(320)
    rates = [point.rate_per_s for curve in curves.values() for point in curve]
    layout["xaxis"] = log_axis("requests a second", min(rates), max(rates))
    layout["yaxis"] = axis("seconds a token", range=[0, 4 * level_s])
    caption = "Mean normalized latency against the rate of requests: further right is more throughput at equal latency."
    return Drawing(title, caption, Figure(traces, layout))


# -- orca-36.9x --------------------------------------------------------------------------------------------------------

CLAIMED_ORCA = 36.9


class LevelRatio(NamedTuple):
    """A latency level, and Orca's rate over FasterTransformer's there (None: one of them does not get there)."""

    level_s: float
    ratio: float | None


AS_MUCH = 0.8
"""A ratio that is at least this share of the claimed one holds it."""


def judge_level(claimed: float, ratios: Sequence[LevelRatio]) -> Ruling:
    """The claim states no level, so all are looked at: reproduced where the ratio holds it (``AS_MUCH``) at each that
    has one, false where at none; else undecidable without the level at which latencies are equal."""
    known = [(of.ratio, of.level_s) for of in ratios if of.ratio is not None]
    if not known:
        return Ruling("undecidable", "no level is reached by both", "a level that both reach")
    (low, low_s), (high, high_s) = min(known), max(known)
    span = f"{times(low)} at {seconds(low_s)} a token to {times(high)} at {seconds(high_s)}"
    if low >= AS_MUCH * claimed:
        return Ruling("reproduced", span)
    if high < AS_MUCH * claimed:
        return Ruling("false", span)
    missing = "the latency level at which the two are compared, and the lengths of the requests"
    return Ruling("undecidable", f"the ratio depends on the level: {span}", missing)


_ORCA_SYSTEMS = ("orca-max", "ft-static")
_ORCA_LEVELS = (0.045, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


def _audit_orca(run: Runner) -> Audited:
    curves = {system: _curve(run, _orca(system), 1.0) for system in _ORCA_SYSTEMS}
    ratios = []
    for level_s in _ORCA_LEVELS:
        orca, static = (rate_at(curves[system], level_s) for system in _ORCA_SYSTEMS)
        ratios.append(LevelRatio(level_s, orca / static if orca and static else None))
    rows = []
    for level in ratios:
        cells = [rate_at(curves[system], level.level_s) for system in _ORCA_SYSTEMS]
        texts = ["does not get there" if rate is None else digits(rate) for rate in cells]
        rows.append((seconds(level.level_s), *texts, "-" if level.ratio is None else times(level.ratio)))
    header = ("seconds a token", "orca-max, requests/s", "ft-static, requests/s", "ratio")
    return Audited(
        judge_level(CLAIMED_ORCA, ratios),
        {f"ratio_at_{of.level_s:g}_s": of.ratio for of in ratios if of.ratio is not None},
        f"The 8 cards bound such requests at {digits(max(point.bound_per_s for point in curves[_ORCA_SYSTEMS[0]]))} a"
        " second. The ratio has none: near the latency of a static batch that nobody waits for it grows without end.",
        [Table("Requests a second at equal latency", header, rows)],
        [_curves_drawing("GPT-3 175B: latency against rate", curves, 0.25)],
        ["8 A100-80GB in one group stand for the paper's two stages of 8: pipelines are not simulated"],
    )


def _orca(system: str) -> dict[str, dict[str, object]]:
    return {
        "workload": {
            **{"generator": "poisson", "num_requests": 400},
            "prompt": {"dist": "uniform", "low": 32, "high": 512},
            "output": {"dist": "uniform", "low": 1, "high": 128},
        },
        "engine": {"preset": system},
        "model": {"name": "gpt-3-175b"},
        "hardware": {"name": "a100-80gb", "tp": 8, "host_term": False},
    }


ORCA_CLAIM = Claim(
    "orca-36.9x",
    "Orca has 36.9 times the throughput of FasterTransformer at equal latency, GPT-3 175B.",
    (
        ("Model and cards", "GPT-3 175B, 16 bit, on 8 A100-80GB, no host time"),
        ("Requests", "Poisson, prompts of 32 to 512 tokens, answers of 1 to 128 (assumed); 400 at each rate"),
        ("Runs", "orca-max and ft-static at the same rates"),
    ),
    "No level is stated. At least 80 % of 36.9x at every level that both reach: reproduced; at none: false; else"
    " undecidable.",
    _audit_orca,
)

PAGED_CLAIM = Claim(
    "vllm-2-4x",
    "PagedAttention has 2-4 times the throughput of Orca and FasterTransformer at equal latency.",
    (
        ("Models and cards", "OPT-13B on one, OPT-66B on four A100 40 GB, no host time"),
        ("Requests", "Poisson, mean lengths of ShareGPT (161, 338) and Alpaca (19, 58); 500 and 1,000 at each"),
        ("Runs", f"{_PAGED}; Orca that reserves by true lengths, by the next power of two, to the limit; ft-static"),
    ),
    "Paged memory first, Orca in the order of what it knows, FasterTransformer last, and ratios to Orca that overlap 2"
    " to 4: reproduced; paged memory not first: false; else baseline-dependent.",
    _audit_equal_latency,
)
