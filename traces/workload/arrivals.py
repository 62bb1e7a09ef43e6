"""When requests are sent: endless, increasing times in seconds.

Times are drawn for one request a second and divided by the rate, so that every rate sees the same gaps,
scaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from math import log
from random import Random

from traces.workload.quantiles import QuantileTable


def poisson_arrivals(rate_per_s: float, random_stream: Random) -> Iterator[float]:
    """A Poisson process that is observed from time 0."""
    draw, time = random_stream.random, 0.0
    while True:
        time -= log(1.0 - draw())
        yield time / rate_per_s


def gamma_arrivals(rate_per_s: float, cv: float, random_stream: Random) -> Iterator[float]:
    """Independent Gamma gaps with coefficient of variation ``cv``; 1 gives ``poisson_arrivals``."""
    draw, variance, time = random_stream.gammavariate, cv * cv, 0.0
    shape = 1.0 / variance
    while True:
        time += draw(shape, variance)
        yield time / rate_per_s


def constant_arrivals(rate_per_s: float) -> Iterator[float]:
    """One request each ``1 / rate_per_s`` seconds, the first at 0."""
    for number in count():
        yield number / rate_per_s


def shaped_arrivals(
    rate_per_s: float, gaps: QuantileTable, relative_rate: Sequence[float], slot_requests: float, random_stream: Random
) -> Iterator[float]:
    """Independent gaps out of a table of mean 1, at a rate that changes from slot to slot.

    ``relative_rate`` is the rate of each slot over the mean rate; the slots, each as long as ``slot_requests``
    requests take at the mean rate, come round again.
    """
    draw, gap_at = random_stream.random, gaps.at
    passed, time = 0, 0.0
    relative = relative_rate[0]
    left = relative * slot_requests
    while True:
        gap = gap_at(draw())
        while gap > left:
            gap -= left
            passed += 1
            relative = relative_rate[passed % len(relative_rate)]
            left = relative * slot_requests
        left -= gap
        # Counted from the end of the slot, so that nothing drifts; a slot of rate 0 has no room for a gap above 0.
        since_start = slot_requests - left / relative if relative else 0.0
        time = max(time, passed * slot_requests + since_start)
        yield time / rate_per_s
