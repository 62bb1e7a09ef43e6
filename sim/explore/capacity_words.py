"""What a capacity search found, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.explore.levers import CHUNK, Lever, chunk_step_s
from sim.explore.limits import Limit
from sim.explore.loads import Probe
from sim.explore.rates import Cause, RateResult
from sim.explore.replicas import MOST, least_replicas
from sim.wording import digits, percent, seconds

if TYPE_CHECKING:
    from sim.explore.capacity_result import CapacityResult


def headline(result: CapacityResult) -> str:
    """The answer in a line."""
    limits = " and ".join(limit.in_words() for limit in result.loads.limits)
    if not result.feasible:
        return f"infeasible: {limits}"
    if result.rate is not None:
        found = result.rate
        on = f" on {result.loads.replicas} replicas" if result.loads.replicas > 1 else ""
        between = f"(95 % interval {digits(found.low)} to {digits(found.high)})"
        return f"{digits(found.rate_per_s)} requests a second {between}{on} with {limits}"
    assert result.replicas is not None
    number = result.replicas.replicas
    what = f"{number} {'replica' if number == 1 else 'replicas'}"
    if result.card is not None:
        what += f" on {result.card.name}, {digits(result.card.usd_per_hour or 0.0)} USD an hour,"
    spread = "" if result.replicas.low == result.replicas.high else f" (samples need {result.replicas.low} to {number})"
    return f"{what}{spread} for {digits(result.for_rate_per_s or 0.0)} requests a second with {limits}"


def finding(result: CapacityResult) -> list[str]:
    """The answer, what stops more, how it was checked, what would change it."""
    sentences = [f"{headline(result)[0].upper()}{headline(result)[1:]}."]
    if result.rate is not None:
        sentences += _of_rate(result, result.rate)
    elif result.replicas is not None:
        sentences += [refusal.in_words() for refusal in result.replicas.refused]
        sentences += _too_many(result) + _checked_replicas(result)
    point = result.at_rate
    if point is not None and (cost := result.cost_of(point)):
        sentences.append(
            f"At that rate a million output tokens cost {digits(cost['usd_per_million_output_tokens'])} USD, a million"
            f" of prompts and answers {digits(cost['usd_per_million_total_tokens'])}, a request"
            f" {cost['usd_per_request']:.3g} USD."
        )
    whole = result.loads.source.setup().parameters.delivery == "batch_end"
    if whole and any(limit.latency == "itl" for limit in result.loads.limits):
        sentences.append(
            "Answers come whole, at the end of a batch: no gap between tokens is seen, and ITL limits nothing."
        )
    if result.loads.left_out:
        share = result.loads.left_out / result.loads.offered
        sentences.append(
            f"{result.loads.left_out:,} of {result.loads.offered:,} requests ({percent(share)}) are left out, as the"
            " model's length refuses them at any rate."
        )
    return sentences


def _of_rate(result: CapacityResult, found: RateResult) -> list[str]:
    if found.refused:
        return [refusal.in_words() for refusal in found.refused]
    if not found.feasible:
        names = " and ".join(_stop(cause) for cause in found.causes)
        return [
            "A request alone meets the limits, but requests that come so rarely that the server is busy for 1 % of the"
            f" time do not: {names}."
        ]
    sentences = []
    if found.capped and (not found.confirmed or found.confirmed[0].verdict.met):
        sentences.append("No limit stops it up to the hardware bound for these lengths, beyond which nothing is tried.")
    elif found.capped:
        sentences.append("No limit stops samples of this length; longer ones it does.")
    elif found.causes:
        sentences.append(f"What stops it there: {'; '.join(_stop(cause) for cause in found.causes)}.")
    sentences += _checked(found.confirmed, found.is_confirmed) + _too_short(result, found)
    return sentences + _chunk(result, found)


def _stop(cause: Cause) -> str:
    often = "" if cause.share == 1.0 else f" in {percent(cause.share)} of the samples"
    if cause.limit is None:
        return f"the queue grows{often}"
    return f"{_named(cause.limit)} is {seconds(cause.value_s or 0.0)} just above it{often}"


def _named(limit: Limit) -> str:
    return limit.in_words().replace("<=", "(limit", 1) + ")"


def _checked(probes: Sequence[Probe], agreed: bool) -> list[str]:
    """The longer runs."""
    if not probes:
        return []
    words = []
    for probe in probes:
        known = [(reading.limit, reading.value_s) for reading in probe.verdict.readings if reading.value_s is not None]
        readings = ", ".join(f"{limit.title} {seconds(value_s)}" for limit, value_s in known)
        kept = "kept" if probe.verdict.met else "not kept"
        words.append(f"at {digits(probe.rate_per_s)}/s the limits are {kept} ({readings})")
    verdict = "confirm" if agreed else "do not confirm"
    return [f"Longer runs of other requests {verdict} it: {'; '.join(words)}."]


def _too_short(result: CapacityResult, found: RateResult) -> list[str]:
    """What to make of an answer that longer runs do not confirm."""
    if not found.confirmed or found.is_confirmed:
        return []
    if found.confirmed[0].verdict.met:
        return ["The highest rate may lie above this interval."]
    more = "give more (--requests)" if result.loads.source.has_seeds else "give a longer trace, or fewer --samples"
    return [
        f"The highest rate lies below this interval: samples of {result.loads.num_requests:,} requests end before the"
        f" server has filled up; {more}."
    ]


def _too_many(result: CapacityResult) -> list[str]:
    """Where no number of replicas was enough."""
    assert result.replicas is not None
    if result.replicas.replicas is not None or result.replicas.refused:
        return []
    rate = result.for_rate_per_s or 0.0
    return [
        f"{MOST:,} replicas, the most that are tried, do not carry {digits(rate)} requests a second: by the hardware"
        f" bound alone that takes {least_replicas(result.loads, rate):,}."
    ]


def _checked_replicas(result: CapacityResult) -> list[str]:
    assert result.replicas is not None
    words = []
    for probe in result.replicas.confirmed:
        one = probe.replicas == 1
        kept = "keeps" if one else "keep"
        lost = "does not keep" if one else "do not keep"
        words.append(f"{probe.replicas} {kept if probe.verdict.met else lost} the limits")
    return [f"In a longer run of other requests {', '.join(words)}."] if words else []


def _chunk(result: CapacityResult, found: RateResult) -> list[str]:
    """Where token latencies stop it, how long a whole chunk takes, and what smaller ones give."""
    step = chunk_step_s(result.loads)
    sentences = []
    if step is not None and any(cause.limit is not None and cause.limit.latency != "e2e" for cause in found.causes):
        sentences.append(
            f"A step with a whole chunk of {step[0]:,} tokens ({CHUNK}) takes {seconds(step[1])}, which every running"
            " request waits for."
        )
    pulled = [lever for lever in result.levers if lever.result is not None]
    if pulled:
        words = "; ".join(f"{lever.title} gives {lever_words(lever)}" for lever in pulled)
        sentences.append(f"Other settings: {words}.")
    return sentences


def lever_words(lever: Lever) -> str:
    """What a setting gives."""
    if lever.result is None:
        return lever.message
    if not lever.result.feasible:
        return "no rate"
    stops = ", ".join("the queue" if cause.limit is None else cause.limit.title for cause in lever.result.causes)
    return f"{digits(lever.result.rate_per_s)}/s (stopped by {stops or 'nothing'})"
