"""Quantile tables: how profiles keep a distribution in a few numbers, and how it is drawn from again."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple, Protocol

GRID = (
    *(0.0, 0.001, 0.005, 0.01, 0.02),
    *(step / 20 for step in range(1, 20)),
    *(0.98, 0.99, 0.995, 0.999, 1.0),
)
"""The shares at which all tables of a profile are kept."""


class QuantileTable(NamedTuple):
    """``values``, not decreasing, at the shares of ``GRID``; between two of them the distribution is uniform."""

    values: tuple[float, ...]

    def at(self, share: float) -> float:
        """The quantile at ``share`` in [0, 1)."""
        place = bisect_right(GRID, share) - 1
        low, values = GRID[place], self.values
        return values[place] + (values[place + 1] - values[place]) * (share - low) / (GRID[place + 1] - low)

    def mean(self) -> float:
        """The mean of what is drawn."""
        parts = zip(GRID, GRID[1:], self.values, self.values[1:], strict=False)
        return sum((high - low) * (left + right) / 2 for low, high, left, right in parts)

    def cv(self) -> float:
        """Coefficient of variation of what is drawn; 0 if all is 0."""
        mean = self.mean()
        parts = zip(GRID, GRID[1:], self.values, self.values[1:], strict=False)
        square = sum((high - low) * (a * a + a * b + b * b) / 3 for low, high, a, b in parts)
        return float(max(0.0, square - mean * mean) ** 0.5 / mean) if mean else 0.0

    def scaled(self, factor: float) -> QuantileTable:
        """Every value times ``factor``."""
        return QuantileTable(tuple(value * factor for value in self.values))


class Ordered(Protocol):
    """Ascending values: a sequence or an array of numpy."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> float: ...


def table_of(ordered: Ordered) -> QuantileTable:
    """The table of at least one value, sorted."""
    return QuantileTable(tuple(quantile(ordered, share) for share in GRID))


def quantile(ordered: Ordered, share: float) -> float:
    """Quantile of at least one value by linear interpolation, to the last bit numpy's default; unlike there, the
    largest values may be infinite."""
    position = share * (len(ordered) - 1)
    place = math.floor(position)
    return between(float(ordered[place]), float(ordered[math.ceil(position)]), position - place)


def between(low: float, high: float, fraction: float) -> float:
    """The value at ``fraction`` of the way from ``low`` to ``high``; from the nearer end, as numpy does, so that it
    never leaves [low, high]."""
    if low == high or math.isinf(high):
        return high
    return low + (high - low) * fraction if fraction < 0.5 else high - (high - low) * (1.0 - fraction)
