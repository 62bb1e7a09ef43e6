"""The highest rate that meets stated limits, with an interval from independent samples."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from sim.explore.bounds import Refusal, refusals
from sim.explore.bracket import Bracket, bracket
from sim.explore.limits import Limit
from sim.explore.loads import Loads, Probe
from sim.explore.seeds import half_width

TOLERANCE = 0.01
"""Of a rate: its two sides are this close."""
LONGER = 4
"""The run that checks the answer has so many times the requests of a sample."""
_IDLE = 0.01
"""The least rate that is tried: requests alone would keep the server busy for this share of the time."""


class Cause(NamedTuple):
    """What stops a higher load: a limit with its statistic just above the rate (mean over the samples), or the queue
    (``limit`` None); ``share`` of the samples in which it does."""

    limit: Limit | None
    value_s: float | None
    share: float


class RateResult(NamedTuple):
    """The highest rate. ``low`` to ``high`` is its 95 % interval, from the critical rates of independent samples
    (``rates``). ``causes`` stop a higher one. ``refused`` are limits that no rate can meet: then the rate is 0.

    ``confirmed`` are the longer runs at both ends of the interval: the lower one is to keep the limits, the upper one
    not. ``capped`` says that the hardware bound was reached before any limit.
    """

    rate_per_s: float
    low: float
    high: float
    rates: tuple[float, ...]
    causes: tuple[Cause, ...]
    refused: tuple[Refusal, ...] = ()
    confirmed: tuple[Probe, ...] = ()
    capped: bool = False

    @property
    def feasible(self) -> bool:
        """Whether any rate meets the limits."""
        return self.rate_per_s > 0.0

    @property
    def is_confirmed(self) -> bool:
        """Whether the longer runs agree with the interval."""
        return bool(self.confirmed) and self.confirmed[0].verdict.met and not self.confirmed[-1].verdict.met


def find_rate(
    loads: Loads, *, start: float | None = None, tolerance: float = TOLERANCE, confirm: bool = True
) -> RateResult:
    """The highest rate that these loads carry."""
    refused = tuple(refusals(loads, loads.limits))
    if refused:
        return RateResult(0.0, 0.0, 0.0, (), (), refused)
    least = _IDLE / loads.alone_s
    most = loads.most_per_s * loads.replicas
    guess, factor, found = start or 0.25 * most, 2.0, []
    for place in range(len(loads.draws)):

        def carried(rate: float, place: int = place) -> bool:
            return loads.probe(place, rate).verdict.met

        found.append(bracket(carried, guess, factor=factor, tolerance=tolerance, least=least, most=most))
        if found[-1].middle > 0.0:
            # The next sample has its critical rate near this one's.
            guess, factor = found[-1].middle, 1.1
    rates = tuple(one.middle for one in found)
    if not all(rates):
        return RateResult(0.0, 0.0, 0.0, rates, _causes(loads, found))
    rate, half = fmean(rates), half_width(rates) or 0.0
    low, high = max(rate - half, least), min(rate + half, most)
    # The bisection itself leaves so much open.
    low, high = min(low, rate / (1 + tolerance / 2)), max(high, rate * (1 + tolerance / 2))
    confirmed: tuple[Probe, ...] = ()
    if confirm:
        longer = loads.more(LONGER)
        confirmed = (loads.run(longer, low), loads.run(longer, high))
    return RateResult(
        rate, low, high, rates, _causes(loads, found), (), confirmed, all(one.high > most for one in found)
    )


def _causes(loads: Loads, found: Sequence[Bracket]) -> tuple[Cause, ...]:
    """What is broken at the least rate that each sample does not carry, the most frequent first."""
    probes = [loads.probe(place, one.high) for place, one in enumerate(found) if one.high < float("inf")]
    if not probes:
        return ()
    causes = []
    for number, limit in enumerate(loads.limits):
        values = [probe.verdict.readings[number].value_s for probe in probes]
        known = [value for value in values if value is not None]
        share = sum(not probe.verdict.readings[number].met for probe in probes) / len(probes)
        causes.append(Cause(limit, fmean(known) if known else None, share))
    unstable = sum(probe.verdict.unstable or bool(probe.verdict.message) for probe in probes) / len(probes)
    causes.append(Cause(None, None, unstable))
    return tuple(sorted((cause for cause in causes if cause.share > 0.0), key=lambda cause: -cause.share))
