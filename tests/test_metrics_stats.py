"""Percentiles equal numpy's over the repeated samples; buckets stay within their width."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.records import known
from traces.metrics.pool import BUCKET_WIDTH, PairPool
from traces.metrics.stats import describe, describe_weighted
from traces.workload.quantiles import quantile

Pairs = list[tuple[float, int]]

VALUES = st.floats(1e-6, 1e4)
PAIRS = st.lists(st.tuples(VALUES, st.integers(0, 40)), min_size=1, max_size=60)
MARKS = [50, 90, 95, 99]


def split(pairs: Pairs) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    values, counts = zip(*pairs, strict=True)
    return np.array(values), np.array(counts, np.int64)


@given(PAIRS)
def test_weighted_statistics_equal_those_of_the_repeated_samples(pairs: Pairs) -> None:
    values, counts = split(pairs)
    repeated = np.repeat(values, counts)
    stats = describe_weighted(values, counts)
    if not len(repeated):
        assert stats is None
        return
    assert stats is not None
    assert stats.n == len(repeated)
    assert stats.mean == pytest.approx(repeated.mean(), rel=1e-12)
    assert list(stats[2:]) == list(np.percentile(repeated, MARKS))


@given(st.lists(VALUES, min_size=1, max_size=80))
def test_statistics_equal_numpys(values: list[float]) -> None:
    samples = np.array(values)
    stats = known(describe(samples))
    assert list(stats[2:]) == list(np.percentile(samples, MARKS))
    assert stats.mean == pytest.approx(samples.mean(), rel=1e-12)


@given(st.lists(VALUES, min_size=1, max_size=80), st.floats(0.0, 1.0))
def test_every_quantile_is_numpys(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == np.quantile(values, share)


def test_quantiles_of_values_that_end_in_infinity() -> None:
    waits = [1.0, 3.0, float("inf"), float("inf")]
    assert [quantile(waits, share) for share in (0.0, 0.25, 0.34, 1.0)] == [1.0, 2.5, float("inf"), float("inf")]


def test_no_samples_have_no_statistics() -> None:
    assert describe(np.empty(0)) is None
    assert PairPool().stats() is None


def test_hand_computed_percentiles() -> None:
    # Samples 1, 1, 1, 5: p50 = 1; p90 at position 2.7 = 1 + 0.7 * 4.
    stats = known(describe_weighted(*split([(5.0, 1), (1.0, 3)])))
    assert stats == pytest.approx((4, 2.0, 1.0, 3.8, 4.4, 4.88))


@given(PAIRS)
def test_bucketed_quantiles_are_within_a_tenth_of_a_percent(pairs: Pairs) -> None:
    values, counts = split(pairs)
    pool = PairPool(max_exact_pairs=0)
    pool.add(values, counts)
    exact = describe_weighted(values, counts)
    if exact is None:
        assert pool.stats() is None
        return
    stats = known(pool.stats())
    assert not pool.is_exact
    assert stats.n == exact.n
    assert stats.mean == pytest.approx(exact.mean, rel=1e-12)
    assert list(stats[2:]) == pytest.approx(list(exact[2:]), rel=BUCKET_WIDTH)


@given(PAIRS, st.randoms(use_true_random=False), st.integers(0, 20))
def test_quantiles_depend_neither_on_order_nor_on_batches(pairs: Pairs, random: Random, limit: int) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)
    one, many = PairPool(limit), PairPool(limit)
    one.add(*split(pairs))
    for pair in shuffled:
        many.add(*split([pair]))
    first, second = one.stats(), many.stats()
    assert one.is_exact == many.is_exact
    assert (first and first[2:]) == (second and second[2:])


def test_gaps_of_zero_stay_zero_in_buckets() -> None:
    pool = PairPool(max_exact_pairs=0)
    pool.add(np.array([0.0, 2.0]), np.array([99, 1]))
    stats = known(pool.stats())
    assert stats.p50 == stats.p95 == 0.0
    assert stats.mean == pytest.approx(0.02)
