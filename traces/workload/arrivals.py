"""When requests are sent: endless, increasing times in seconds.

Times are drawn for one request a second and divided by the rate, so that every rate sees the same gaps,
scaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import log
from random import Random


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
    return (number / rate_per_s for number in count())
