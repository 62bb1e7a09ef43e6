"""Bracketing: the load between one that is carried and one that is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple


class Bracket(NamedTuple):
    """``low`` is carried and ``high`` is not; ``low`` is 0 where not even the least load is, ``high`` infinite where
    the most that was allowed still is."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric middle; an end where the other one is open."""
        if self.low <= 0.0:
            return 0.0
        return self.low if math.isinf(self.high) else math.sqrt(self.low * self.high)


def bracket(
    carried: Callable[[float], bool], start: float, *, factor: float, tolerance: float, least: float, most: float
) -> Bracket:
    """From ``start`` outwards by ``factor`` until both ends are known, then halved in the logarithm until they are
    within ``tolerance`` of each other."""
    low, high = 0.0, math.inf
    load = min(max(start, least), most)
    while True:
        if carried(load):
            low = load
            if load >= most:
                return Bracket(low, high)
            load = min(load * factor, most)
        else:
            high = load
            if load <= least:
                return Bracket(low, high)
            load = max(load / factor, least)
        if low > 0.0 and not math.isinf(high):
            break
    while high > low * (1.0 + tolerance):
        middle = math.sqrt(low * high)
        if carried(middle):
            low = middle
        else:
            high = middle
    return Bracket(low, high)


def fewest(carried: Callable[[int], bool], start: int, most: int) -> int | None:
    """The least whole number from 1 on that carries the load, where more of them carry no less; None if not even
    ``most`` do."""
    low, high = 0, min(max(start, 1), most)
    while not carried(high):
        low = high
        if high >= most:
            return None
        high = min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if carried(middle):
            high = middle
        else:
            low = middle
    return high
