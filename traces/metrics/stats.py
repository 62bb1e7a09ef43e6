"""Statistics of one quantity: mean and percentiles by linear interpolation, with the number of samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traces.workload.quantiles import between, quantile

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
    return Stats(len(ordered), float(np.mean(ordered)), *(quantile(ordered, q) for q in QUANTILES))


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
        marks.append(between(float(ordered[places[0]]), float(ordered[places[1]]), fraction))
    return marks
