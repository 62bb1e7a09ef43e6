"""Claims about slots of static batches: arithmetic, and the same by simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from sim.explore.claims_case import (
    Audited,
    Claim,
    Drawing,
    Ruling,
    Runner,
    Tables,
    at_once,
    executed,
    fixed,
    times,
    trace_of,
)
from sim.report.charts import Figure, axis, base_layout, line
from sim.report.figures import Table
from sim.report.palette import policy_colour
from sim.wording import percent

_PROMPT = 16
_ROUNDING = 0.005
"""A share that is stated in whole percent may be off by half a percent."""

_NO_HOST: Mapping[str, object] = {"host_term": False}
"""One of the two has none measured."""

STATIC, CONTINUOUS = "ft-static", "vllm-0.11"


class SlotFigures(NamedTuple):
    """Of one static batch: the share of slot-steps after the end of their answers (``wasted``), by simulation and by
    arithmetic; the share of steps in which one sequence alone lives (``alone``); ``short_wait``, how many times their
    own steps the short answers take; ``gain``, steps of static over continuous batching of many such batches with the
    same slots, and the most that it can be, ``most``."""

    wasted: float
    arithmetic: float
    alone: float
    short_wait: float
    gain: float
    most: float


Judge = Callable[[SlotFigures, float], Ruling]
"""From figures and the claimed share to a verdict."""


def judge_short_wait(figures: SlotFigures, claimed_wasted: float) -> Ruling:
    """Reproduced where the short answers come with the long one, as often later as it is longer, and the claimed share
    of slots is wasted; false otherwise. A gain beyond the bound is impossible."""
    if figures.gain > figures.most * (1 + 1e-9):
        return Ruling("impossible", f"a gain of {times(figures.gain)} exceeds the bound of {times(figures.most)}")
    off = abs(figures.wasted - claimed_wasted)
    if figures.short_wait > 1.5 and off <= _ROUNDING:
        return Ruling(
            "reproduced",
            f"short answers take {times(figures.short_wait)} their own steps; {percent(figures.wasted)} of the"
            f" slot-steps are wasted, so that continuous batching can gain {times(figures.most)} at most"
            f" ({times(figures.gain)} in these runs)",
        )
    return Ruling("false", f"{percent(figures.wasted)} of the slot-steps are wasted, {100 * off:.1f} points off")


def judge_wasted(figures: SlotFigures, claimed_wasted: float) -> Ruling:
    """Reproduced where the share of slot-steps that is wasted rounds to the claim; else false, by how many points, and
    whether the claim is another share."""
    off = claimed_wasted - figures.wasted
    if abs(off) <= _ROUNDING:
        return Ruling("reproduced", f"{percent(figures.wasted)} of the slot-steps are wasted")
    why = f"{percent(figures.wasted)} of the slot-steps are wasted, {abs(100 * off):.1f} points off"
    if abs(claimed_wasted - figures.alone) <= _ROUNDING:
        why += f"; {percent(figures.alone)} is the share of the time in which one sequence is alone"
    return Ruling("false", why)


def _slots(run: Runner, outputs: Sequence[int], batches: int) -> SlotFigures:
    """Figures of one batch with these output lengths, the last the longest, and of several such batches."""
    with trace_of([(_PROMPT, length) for length in outputs]) as path:
        one = run(_batch(path, len(outputs), STATIC))
    rows = [(_PROMPT, length) for length in outputs] * batches
    with trace_of(rows) as path:
        static = run(_batch(path, len(outputs), STATIC))
    # Continuous batching starts the long ones early if it may, which no queue promises: the order is drawn.
    Random(0).shuffle(rows)
    with trace_of(rows) as path:
        continuous = run(_batch(path, len(outputs), CONTINUOUS))
    useful, longest = sum(outputs), max(outputs)
    second = sorted(outputs)[-2]
    return SlotFigures(
        wasted=one["steps"]["slot_waste"],
        arithmetic=1 - useful / (longest * len(outputs)),
        alone=(longest - second) / longest,
        short_wait=one["e2e_s"]["p50"] / one["e2e_s"]["p99"] * longest / min(outputs),
        gain=static["steps"]["count"] / continuous["steps"]["count"],
        most=longest * len(outputs) / useful,
    )


def _batch(path: str, slots: int, preset: str) -> Tables:
    engine = {"preset": preset, "max_num_seqs": slots, "max_model_len": 2_048}
    return {"workload": {"trace": path}, "engine": engine, "hardware": _NO_HOST}


def _slot_table(figures: SlotFigures, outputs: Sequence[int], batches: int, how: str) -> Table:
    useful, all_of_them = sum(outputs), max(outputs) * len(outputs)
    rows = [
        ("slot-steps that made a token, of all", f"{useful:,} of {all_of_them:,}"),
        ("wasted, by arithmetic", percent(figures.arithmetic)),
        (f"wasted, {how}", percent(figures.wasted)),
        ("steps with one live sequence", percent(figures.alone)),
        ("short answers take, of their own steps", times(figures.short_wait)),
        (f"{batches} batches, steps of static over continuous", times(figures.gain)),
        ("the most it can be", times(figures.most)),
    ]
    return Table(f"Slots of the batch of {len(outputs)}", ("", "value"), rows)


def _audit_slots(run: Runner, outputs: Sequence[int], claimed: float, judge: Judge, batches: int = 40) -> Audited:
    figures = _slots(run, outputs, batches)
    how = "executed" if run is executed else "simulated"
    return Audited(
        judge(figures, claimed),
        figures._asdict(),
        f"Slots are used up when every step makes a token in each: {times(figures.most)} static batching at most.",
        [_slot_table(figures, outputs, batches, how)],
        setup=_executed_setup(len(outputs), batches) if run is executed else (),
    )


def _executed_setup(slots: int, batches: int) -> Sequence[tuple[str, str]]:
    runs = f"one batch of {slots} under {STATIC}; {batches} such batches under {STATIC} and {CONTINUOUS}, {slots} slots"
    return (("Model and device", "the executor, its smallest model; slots do not depend on it"), ("Runs", runs))


EIGHT = (*(20,) * 7, 500)
THIRTY_TWO = (*(100,) * 31, 2_000)


class SpreadPoint(NamedTuple):
    """Of one law of answer lengths: coefficient of variation, mean over mean longest of a batch (arithmetic), and what
    continuous batching gains, in steps (each counts one) and in output tokens a second (by the cost model)."""

    cv: float
    arithmetic: float
    gain_steps: float
    gain_rate: float


def judge_spread(points: Sequence[SpreadPoint]) -> Ruling:
    """Reproduced where gains at spreads from 0.3 to 1 (coefficient of variation) overlap 2 to 3 times, and some spread
    gains 10 times within a factor of two; false where no spread does."""
    typical = [point.gain_rate for point in points if 0.3 <= point.cv <= 1.0]
    most = max(points, key=lambda point: point.gain_rate)
    low, high = min(typical), max(typical)
    curve = f"{times(low)} to {times(high)} at spreads of 0.3 to 1, up to {times(most.gain_rate)} at {most.cv:g}"
    if most.gain_rate < 5.0:
        return Ruling("false", f"no spread gains 10x: {curve}")
    if low > 3.0 or high < 2.0:
        return Ruling("baseline-dependent", f"the typical gain is not 2-3x: {curve}")
    return Ruling("reproduced", f"the order of magnitude is right: {curve}")


_SPREADS = (0.0, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
_SLOTS, _MEAN, _LONGEST = 32, 60, 1_900


def _audit_spread(run: Runner) -> Audited:
    points = [_spread_point(run, cv) for cv in _SPREADS]
    rows = [
        (f"{of.cv:g}", times(of.arithmetic), times(of.gain_steps), times(of.gain_rate)) for of in points
    ]
    header = ("coefficient of variation", "by arithmetic", "simulated, steps", "simulated, tokens/s")
    return Audited(
        judge_spread(points),
        {f"gain_rate_at_cv_{of.cv:g}": of.gain_rate for of in points},
        f"A step makes 1 to {_SLOTS} tokens: {_SLOTS}x at most, for one endless answer among empty ones.",
        [Table(f"What continuous batching gains over static batching with the same {_SLOTS} slots", header, rows)],
        [_spread_drawing(points)],
    )


def _spread_point(run: Runner, cv: float) -> SpreadPoint:
    law = fixed(_MEAN) if cv == 0 else {"dist": "lognormal", "mean": _MEAN, "cv": cv, "cap": _LONGEST}
    workload = at_once(1_280, fixed(32), law)
    engine = {"max_num_seqs": _SLOTS, "max_model_len": 2_048}
    tables: dict[str, Mapping[str, object]] = {"workload": workload, "hardware": _NO_HOST}
    static, continuous = (run({**tables, "engine": {"preset": name, **engine}}) for name in (STATIC, CONTINUOUS))
    rates = [of["throughput"]["output_tokens_per_s"] for of in (static, continuous)]
    return SpreadPoint(
        cv,
        1.0 / (1.0 - static["steps"]["slot_waste"]),
        static["steps"]["count"] / continuous["steps"]["count"],
        rates[1] / rates[0],
    )


def _spread_drawing(points: Sequence[SpreadPoint]) -> Drawing:
    cvs = [of.cv for of in points]
    curves = (
        ("slots alone (arithmetic)", [of.arithmetic for of in points], policy_colour(STATIC), "dash"),
        ("simulated, output tokens a second", [of.gain_rate for of in points], policy_colour(CONTINUOUS), "solid"),
    )
    traces = [
        line(cvs, [round(gain, 3) for gain in gains], name, colour, dash, hover=f"{name}: %{{y:.3g}}x at %{{x}}")
        for name, gains, colour, dash in curves
    ]
    layout = base_layout(320)
    layout["xaxis"] = axis("coefficient of variation of the answers' lengths")
    layout["yaxis"] = axis("continuous over static, x")
    caption = "How many times as fast continuous batching is as static batching, against the spread of answer lengths."
    return Drawing("Gain against spread", caption, Figure(traces, layout))


_SLOT_RULE = (
    "Simulated share of slot-steps after the end of an answer; the prefill, which gives token 1, is one slot-step."
    " Within half a percent of the claim: reproduced, else false by the difference."
)
_ANY_CARD = ("Model and card", "Llama-2-7B on A100-80GB, no host time; slots do not depend on it")

SLOT_CLAIMS = (
    Claim(
        "slots-8",
        "In a batch of 8, 7 answers of 20 tokens wait for one of 500: 84 % of the slots' time is wasted.",
        (
            _ANY_CARD,
            ("Runs", f"one batch of 8 under {STATIC}; 40 such batches under {STATIC} and {CONTINUOUS}, 8 slots"),
        ),
        _SLOT_RULE + " The short answers must come when the long one ends.",
        lambda run: _audit_slots(run, EIGHT, 0.84, judge_short_wait),
        lambda run: _audit_slots(run, EIGHT, 0.84, judge_short_wait, batches=2),
    ),
    Claim(
        "slots-32",
        "In a batch of 32 with one answer of 2,000 tokens and 31 of 100, 95 % is wasted.",
        (
            _ANY_CARD,
            ("Runs", f"one batch of 32 under {STATIC}; 40 such batches under {STATIC} and {CONTINUOUS}, 32 slots"),
        ),
        _SLOT_RULE,
        lambda run: _audit_slots(run, THIRTY_TWO, 0.95, judge_wasted),
        lambda run: _audit_slots(run, THIRTY_TWO, 0.95, judge_wasted, batches=2),
    ),
)

SPREAD_CLAIM = Claim(
    "variable-10x",
    "Continuous batching is 2-3x as fast as static batching, and up to 10x with variable lengths.",
    (
        _ANY_CARD,
        ("Requests", f"1,280 at once, prompts of 32 tokens, answers lognormal with mean {_MEAN}, at most {_LONGEST:,}"),
        ("Runs", f"{STATIC} and {CONTINUOUS} with {_SLOTS} slots each, at {len(_SPREADS)} spreads of lengths"),
    ),
    "Gains at typical spreads (0.3 to 1) overlap 2x to 3x, and some spread gains 5x or more: reproduced; no spread"
    " gains 5x: false.",
    _audit_spread,
)
