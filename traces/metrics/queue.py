"""Requests in the system over time: whether the run is stable, and Little's law as a check of the
bookkeeping."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NUM_WINDOWS = 20


class Stability(NamedTuple):
    """Verdict over the second half of the arrivals. ``queue_slope_per_s``: requests in the system gained per
    second."""

    stable: bool
    queue_slope_per_s: float
    standard_error_per_s: float
    arrivals_per_s: float


def stability(arrival_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> Stability | None:
    """Verdict from the arrivals and ends of all requests (NaN: still there); None with fewer than 40 arrivals
    or no time between those of the second half.

    Unstable: the slope of a line through the means of 20 windows exceeds both twice its standard error and 1
    % of the arrival rate.
    """
    arrivals = np.sort(arrival_s)
    half = arrivals[len(arrivals) // 2 :]
    if len(half) < NUM_WINDOWS or half[-1] <= half[0]:
        return None
    edges = np.linspace(half[0], half[-1], NUM_WINDOWS + 1)
    ends = np.sort(end_s[~np.isnan(end_s)])
    present = np.diff(_waited_until(arrivals, edges) - _waited_until(ends, edges)) / np.diff(edges)
    slope, error = _line((edges[1:] + edges[:-1]) / 2.0, present)
    rate = (len(half) - 1) / float(half[-1] - half[0])
    return Stability(not (slope > 2.0 * error and slope > 0.01 * rate), slope, error, rate)


def littles_law_error(
    running_s: float,
    arrival_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    waited_s: NDArray[np.float64],
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


def _waited_until(events_s: NDArray[np.float64], edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Integral up to each edge of the number of (ascending) events that have happened."""
    happened = np.searchsorted(events_s, edges_s, side="right")
    base_s = events_s[0] if len(events_s) else 0.0
    before: NDArray[np.float64] = np.concatenate(([0.0], np.cumsum(events_s - base_s)))[happened]
    result: NDArray[np.float64] = happened * (edges_s - base_s) - before
    return result


def _line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Slope of the least-squares line and its standard error."""
    dx = x - x.mean()
    spread = float(np.dot(dx, dx))
    slope = float(np.dot(dx, y) / spread)
    rest = y - y.mean() - slope * dx
    return slope, float(np.sqrt(np.dot(rest, rest) / (len(x) - 2) / spread))
