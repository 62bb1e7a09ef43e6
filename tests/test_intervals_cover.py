"""Intervals of paired differences hold zero about as often as they say where there is no difference, and not always."""

from __future__ import annotations

import numpy as np
import pytest

from traces.metrics.intervals import Floats, paired

PAIRS = 200


def waits(gaps: Floats, services: Floats) -> Floats:
    """Waiting times of a queue with one server (Lindley), which are correlated as those of a run are."""
    steps = np.concatenate(([0.0], np.cumsum(services[:-1] - gaps[1:])))
    return steps - np.minimum.accumulate(steps)


def share_of_zero(statistic: str, load: float, num_requests: int, faster: float = 1.0) -> float:
    """Share of pairs whose interval holds zero; both serve the same arrivals, one of them ``faster``."""
    draws = np.random.default_rng(7)
    holds = 0
    for _ in range(PAIRS):
        gaps = draws.exponential(1.0, num_requests)
        base, other = (waits(gaps, draws.exponential(load, num_requests) / speed) for speed in (1.0, faster))
        holds += not paired(other, base, statistic).excludes_zero
    return holds / PAIRS


@pytest.mark.parametrize(
    ("statistic", "load", "num_requests", "least"),
    [
        ("mean", 0.5, 200, 0.90),
        ("mean", 0.7, 300, 0.90),
        ("mean", 0.7, 2_000, 0.91),
        ("p50", 0.7, 300, 0.91),
        ("p50", 0.7, 2_000, 0.91),
        ("p99", 0.5, 5_000, 0.90),
        ("p99", 0.7, 5_000, 0.88),
    ],
)
def test_pairs_without_a_difference(statistic: str, load: float, num_requests: int, least: float) -> None:
    assert share_of_zero(statistic, load, num_requests) >= least


@pytest.mark.parametrize(("statistic", "num_requests"), [("mean", 2_000), ("p50", 2_000), ("p99", 20_000)])
def test_a_server_that_is_a_third_faster_is_seen(statistic: str, num_requests: int) -> None:
    assert share_of_zero(statistic, 0.7, num_requests, faster=1.35) <= 0.1
