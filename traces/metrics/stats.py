"""Statistics of one quantity: mean and percentiles by linear interpolation, with the number of samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.5, 0.9, 0.95, 0.99)


class Stats(NamedTuple):
    """Summary of ``n`` samples, in the unit of the samples."""

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def describe(values: NDArray[np.float64]) -> Stats | None:
    """Statistics of the samples; None without any."""
    if not len(values):
        return None
    ordered = np.sort(values)
    marks = [_interpolate(ordered, len(ordered), q) for q in QUANTILES]
    return Stats(len(ordered), float(np.mean(ordered)), *marks)


def describe_weighted(values: NDArray[np.float64], counts: NDArray[np.int64]) -> Stats | None:
    """Statistics of the samples in which ``values[i]`` occurs ``counts[i]`` times, without repeating them."""
    total = int(counts.sum())
    if not total:
        return None
    order = np.argsort(values, kind="stable")
    ordered, until = values[order], np.cumsum(counts[order])
    mean = float(np.sum(ordered * counts[order])) / total
    return Stats(total, mean, *weighted_quantiles(ordered, until))


def weighted_quantiles(ordered: NDArray[np.float64], until: NDArray[np.int64]) -> list[float]:
    """The quantiles of ascending values; ``until[i]`` is how many samples are at most the i-th value."""
    total = int(until[-1])
    marks = []
    for q in QUANTILES:
        low, fraction = divmod(q * (total - 1), 1.0)
        places = np.searchsorted(until, [low, min(low + 1, total - 1)], side="right")
        marks.append(_lerp(float(ordered[places[0]]), float(ordered[places[1]]), fraction))
    return marks


def _interpolate(ordered: NDArray[np.float64], n: int, q: float) -> float:
    low, fraction = divmod(q * (n - 1), 1.0)
    return _lerp(float(ordered[int(low)]), float(ordered[min(int(low) + 1, n - 1)]), fraction)


def _lerp(a: float, b: float, fraction: float) -> float:
    # From the nearer end, as numpy does, so that the result never leaves [a, b].
    return a + (b - a) * fraction if fraction < 0.5 else b - (b - a) * (1.0 - fraction)
