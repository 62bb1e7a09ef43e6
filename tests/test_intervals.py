"""Intervals hold the true value about as often as they say, for correlated samples too, and pairing narrows them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from traces.metrics.intervals import LEAST_SAMPLES, Interval, interval, paired

Floats = NDArray[np.float64]


def correlated(generator: np.random.Generator, n: int, memory: float) -> Floats:
    """A Gauss-Markov sequence with mean 0 and variance 1."""
    steps = generator.standard_normal(n) * np.sqrt(1 - memory**2)
    values = np.empty(n)
    now = generator.standard_normal()
    for place, step in enumerate(steps.tolist()):
        now = memory * now + step
        values[place] = now
    return values


@pytest.mark.parametrize(
    ("statistic", "truth", "n"), [("mean", 0.0, 2_000), ("p50", 0.0, 2_000), ("p99", 2.3263, 20_000)]
)
def test_they_cover_the_truth_of_independent_samples(statistic: str, truth: float, n: int) -> None:
    generator = np.random.default_rng(7)
    found = [interval(generator.standard_normal(n), statistic) for _ in range(200)]
    covered = np.mean([abs(each.value - truth) <= (each.half or 0.0) for each in found])
    assert 0.90 <= covered <= 0.99


def test_correlation_widens_them_where_pooling_would_not() -> None:
    generator = np.random.default_rng(11)
    samples = [correlated(generator, 4_000, 0.95) for _ in range(60)]
    covered = np.mean([abs(each.value) <= (each.half or 0.0) for each in (interval(x, "mean") for x in samples)])
    naive = np.mean([abs(float(x.mean())) <= 1.96 * float(x.std()) / np.sqrt(len(x)) for x in samples])
    assert covered >= 0.85
    assert naive <= 0.5


def test_pairs_show_a_difference_that_two_intervals_hide() -> None:
    generator = np.random.default_rng(3)
    requests = generator.exponential(1.0, 2_000)
    slower = requests * 1.001 + 0.002
    alone, other = interval(requests, "mean"), interval(slower, "mean")
    assert alone.half is not None
    assert other.half is not None
    assert abs(other.value - alone.value) < alone.half
    difference = paired(slower, requests, "mean")
    assert difference.excludes_zero
    assert difference.value == pytest.approx(float(np.mean(slower - requests)))
    assert not paired(requests, requests.copy(), "p50").excludes_zero


@pytest.mark.parametrize("statistic", LEAST_SAMPLES)
def test_too_few_samples_give_none(statistic: str) -> None:
    few = np.arange(LEAST_SAMPLES[statistic] - 1, dtype=np.float64)
    assert interval(few, statistic).half is None
    assert interval(np.append(few, 1.0), statistic).half is not None
    assert not Interval(3.0, None).excludes_zero
