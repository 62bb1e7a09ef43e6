"""Requests in the system over time: whether the run is stable, and Little's law as a check of the
bookkeeping."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NUM_WINDOWS = 20
MIN_BATCH_TIMES = 3.0
_MAX_CORRELATION = 0.9

Floats = NDArray[np.float64]


class Stability(NamedTuple):
    """Verdict over the second half of the arrivals. ``queue_slope_per_s``: requests in the system gained per
    second, beyond those that a system of endless capacity gains while it fills up."""

    stable: bool
    queue_slope_per_s: float
    standard_error_per_s: float
    arrivals_per_s: float


def stability(arrival_s: Floats, end_s: Floats, batch_s: Floats) -> Stability | None:
    """Verdict from the arrivals and ends of all requests (NaN: still there), and ``batch_s``, the times that the
    finished ones spent in the batch.

    Unstable: the slope of a line through the means of 20 windows exceeds both twice its standard error and 1
    % of the arrival rate. None, not enough data: nothing finished, fewer than 39 arrivals, or a first half of the
    arrivals shorter than 3 mean times in the batch, in which a system that keeps up still fills up.
    """
    arrivals = np.sort(arrival_s)
    half = arrivals[len(arrivals) // 2 :]
    if len(half) < NUM_WINDOWS or half[-1] <= half[0] or not len(batch_s):
        return None
    mean_s = float(np.mean(batch_s))
    if half[0] - arrivals[0] < MIN_BATCH_TIMES * mean_s:
        return None
    edges = np.linspace(half[0], half[-1], NUM_WINDOWS + 1)
    ends = np.sort(end_s[~np.isnan(end_s)])
    present = np.diff(_waited_until(arrivals, edges) - _waited_until(ends, edges)) / np.diff(edges)
    middles = (edges[1:] + edges[:-1]) / 2.0
    rate = (len(half) - 1) / float(half[-1] - half[0])
    # Without queueing, as many requests are there as arrived within their own time in the batch.
    filling = rate * _mean_up_to(batch_s, middles - arrivals[0])
    window_s = float(edges[1] - edges[0])
    correlation = float(np.exp(-window_s / mean_s)) if mean_s > 0.0 else 0.0
    slope, error = _line(middles, present - filling, correlation)
    return Stability(not (slope > 2.0 * error and slope > 0.01 * rate), slope, error, rate)


def littles_law_error(
    running_s: float,
    arrival_s: Floats,
    end_s: Floats,
    waited_s: Floats,
) -> float | None:
    """Relative difference between two counts of the time that requests spent in the batch, which Little's law (J. D. C.
    Little 1961, as an identity of one run) makes equal: ``running_s``, the number running integrated over the steps,
    and the requests' own ``end_s - arrival_s - waited_s``. None without any time.

    The first comes from steps and the policy's counts, the second from the requests' times, so that a lost, doubled
    or overlapping step, a wrong count, and a wrong or missing request all show.
    """
    total_s = float(np.sum(end_s - arrival_s - waited_s))
    largest_s = max(abs(total_s), running_s)
    return abs(running_s - total_s) / largest_s if largest_s > 0.0 else None


def _waited_until(events_s: Floats, edges_s: Floats) -> Floats:
    """Integral up to each edge of the number of (ascending) events that have happened."""
    happened = np.searchsorted(events_s, edges_s, side="right")
    base_s = events_s[0] if len(events_s) else 0.0
    before: Floats = np.concatenate(([0.0], np.cumsum(events_s - base_s)))[happened]
    result: Floats = happened * (edges_s - base_s) - before
    return result


def _mean_up_to(values: Floats, bounds: Floats) -> Floats:
    """Mean of ``min(value, bound)`` for each bound."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, bounds, side="right")
    sums = np.concatenate(([0.0], np.cumsum(ordered)))[below]
    result: Floats = (sums + (len(ordered) - below) * bounds) / len(ordered)
    return result


def _line(x: Floats, y: Floats, least_correlation: float) -> tuple[float, float]:
    """Slope of the least-squares line and its standard error.

    Neighbouring means are correlated, so the error is that of as many independent ones as ``n (1 - r) / (1 + r)``.
    r is the lag-1 correlation of the residuals, raised by the (2 + 4 r) / n by which taking a line away lowers
    it on average, and at least ``least_correlation``: that of requests which stay an exponential time.
    """
    n = len(x)
    dx = x - x.mean()
    spread = float(np.sum(dx * dx))
    slope = float(np.sum(dx * y) / spread)
    rest = y - y.mean() - slope * dx
    squares = float(np.sum(rest * rest))
    seen = float(np.sum(rest[1:] * rest[:-1])) / squares if squares > 0.0 else 0.0
    r = min(max((n * seen + 2.0) / (n - 4.0), least_correlation, 0.0), _MAX_CORRELATION)
    independent = n * (1.0 - r) / (1.0 + r)
    return slope, float(np.sqrt(squares / max(independent - 2.0, 1.0) / spread))
