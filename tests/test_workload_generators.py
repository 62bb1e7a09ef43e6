"""Random streams, arrival processes and length laws."""

from __future__ import annotations

from itertools import islice
from math import exp, sqrt
from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import ConfigError
from traces.workload.arrivals import constant_arrivals, gamma_arrivals, poisson_arrivals
from traces.workload.lengths import (
    Exponential,
    Fixed,
    LengthLaw,
    Lognormal,
    Uniform,
    draw_lengths,
    law_table,
    parse_law,
)
from traces.workload.streams import STREAMS, seed_words, stream


@given(seed=st.integers(0, 2**200), child=st.integers(0, len(STREAMS) - 1), num_words=st.integers(1, 12))
def test_streams_are_seeded_by_the_children_of_numpys_seed_sequence(
    seed: int, child: int, num_words: int
) -> None:
    theirs = np.random.SeedSequence(seed).spawn(child + 1)[child].generate_state(num_words)
    assert seed_words(seed, child, num_words) == theirs.tolist()


def test_every_stream_and_every_seed_has_its_own_numbers() -> None:
    firsts = [stream(seed, name).random() for seed in (0, 1, 2**32, 2**32 + 1) for name in STREAMS]
    assert len(set(firsts)) == len(firsts)
    assert stream(7, "arrivals").random() == stream(7, "arrivals").random()


def test_another_rate_scales_the_same_gaps() -> None:
    slow = list(islice(poisson_arrivals(2.0, stream(3, "arrivals")), 1000))
    fast = list(islice(poisson_arrivals(8.0, stream(3, "arrivals")), 1000))
    assert [time / 4 for time in slow] == fast
    slow = list(islice(gamma_arrivals(2.0, 3.0, stream(3, "arrivals")), 1000))
    fast = list(islice(gamma_arrivals(8.0, 3.0, stream(3, "arrivals")), 1000))
    assert [time / 4 for time in slow] == fast


def test_gamma_with_cv_1_is_poisson() -> None:
    gamma = islice(gamma_arrivals(2.0, 1.0, stream(3, "arrivals")), 100)
    assert list(gamma) == list(islice(poisson_arrivals(2.0, stream(3, "arrivals")), 100))


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gaps_have_the_mean_and_variation_asked_for(cv: float) -> None:
    num, rate = 50_000, 4.0
    times = list(islice(gamma_arrivals(rate, cv, stream(11, "arrivals")), num))
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert min(gaps) >= 0
    # Five standard errors of the mean of a Gamma; the kurtosis of its gaps widens those of the deviation.
    assert fmean(gaps) == pytest.approx(1 / rate, rel=5 * cv / sqrt(num))
    assert stdev(gaps) * rate == pytest.approx(cv, rel=5 * sqrt((2 + 6 * cv * cv) / num) / 2)


def test_constant_arrivals_start_at_zero_and_do_not_drift() -> None:
    times = list(islice(constant_arrivals(10.0), 100_001))
    assert times[:3] == [0.0, 0.1, 0.2]
    assert times[-1] == 10_000.0


def test_uniform_lengths_reach_both_ends_equally_often() -> None:
    drawn = list(islice(draw_lengths(Uniform(50, 53), stream(0, "prompt_lengths")), 40_000))
    counts = [drawn.count(length) for length in range(50, 54)]
    assert sum(counts) == len(drawn)
    assert all(abs(count - 10_000) < 5 * sqrt(10_000 * 0.75) for count in counts)


def test_fixed_lengths() -> None:
    assert list(islice(draw_lengths(Fixed(7), stream(0, "prompt_lengths")), 3)) == [7, 7, 7]
    assert list(islice(draw_lengths(Uniform(7, 7), stream(0, "prompt_lengths")), 3)) == [7, 7, 7]


def test_exponential_with_a_cap_is_the_law_of_redrawing() -> None:
    mean, cap, num = 128.0, 256, 50_000
    drawn = list(islice(draw_lengths(Exponential(mean, cap), stream(5, "output_lengths")), num))
    assert min(drawn) >= 1
    assert max(drawn) == cap
    # Redrawing rounded values until one is at most the cap: P(n) ~ exp(-n/mean) on 0..cap, and 0 becomes 1.
    weights = [exp(-max(n - 0.5, 0) / mean) - exp(-(n + 0.5) / mean) for n in range(cap + 1)]
    total = sum(weights)
    expected = sum(max(n, 1) * weight for n, weight in enumerate(weights)) / total
    assert fmean(drawn) == pytest.approx(expected, abs=5 * stdev(drawn) / sqrt(num))
    half = sum(weights[: cap // 2 + 1]) / total
    assert sum(n <= cap // 2 for n in drawn) / num == pytest.approx(half, abs=2.5 / sqrt(num))


def test_exponential_without_a_cap_keeps_its_mean() -> None:
    drawn = list(islice(draw_lengths(Exponential(200.0), stream(5, "output_lengths")), 50_000))
    assert fmean(drawn) == pytest.approx(200.0, abs=5 * 200 / sqrt(50_000))


def test_a_cap_far_below_the_mean_is_drawn_at_once() -> None:
    drawn = list(islice(draw_lengths(Exponential(1e9, 3), stream(5, "output_lengths")), 3000))
    assert set(drawn) == {1, 2, 3}


def test_one_number_a_request_so_that_another_cap_leaves_the_others_alone() -> None:
    free = list(islice(draw_lengths(Exponential(10.0, 1000), stream(1, "output_lengths")), 500))
    capped = list(islice(draw_lengths(Exponential(10.0, 100), stream(1, "output_lengths")), 500))
    assert sum(abs(one - other) for one, other in zip(free, capped, strict=True)) <= 500 * 0.02


def test_lognormal_lengths_have_the_mean_and_variation_asked_for() -> None:
    num, mean, cv = 50_000, 500.0, 0.8
    drawn = list(islice(draw_lengths(Lognormal(mean, cv), stream(4, "prompt_lengths")), num))
    assert fmean(drawn) == pytest.approx(mean, rel=5 * cv / sqrt(num))
    assert stdev(drawn) / fmean(drawn) == pytest.approx(cv, rel=0.05)
    median = mean / sqrt(1 + cv * cv)
    assert sum(length <= median for length in drawn) / num == pytest.approx(0.5, abs=2.5 / sqrt(num))


def test_lognormal_lengths_with_a_cap_are_those_that_redrawing_gives() -> None:
    free = list(islice(draw_lengths(Lognormal(300.0, 2.0), stream(4, "prompt_lengths")), 60_000))
    kept = sorted(length for length in free if length <= 400)
    capped = sorted(islice(draw_lengths(Lognormal(300.0, 2.0, 400), stream(5, "prompt_lengths")), len(kept)))
    assert capped[-1] <= 400
    assert fmean(capped) == pytest.approx(fmean(kept), abs=7 * stdev(kept) / sqrt(len(kept)))
    for share in (0.1, 0.5, 0.9):
        place = int(share * len(kept))
        assert capped[place] == pytest.approx(kept[place], rel=0.05)


@pytest.mark.parametrize(("mean", "cv", "cap"), [(1e9, 100.0, None), (0.5, 0.001, None), (1e9, 5.0, 2)])
def test_lognormal_lengths_at_the_edges(mean: float, cv: float, cap: int | None) -> None:
    drawn = list(islice(draw_lengths(Lognormal(mean, cv, cap), stream(4, "prompt_lengths")), 2_000))
    assert min(drawn) >= 1
    assert max(drawn) <= (cap or 2**31 - 1)


@pytest.mark.parametrize(
    "law", [Fixed(3), Uniform(1, 9), Exponential(2.5, 8), Exponential(4), Lognormal(9.5, 2.0), Lognormal(9, 2, 99)]
)
def test_laws_and_their_tables(law: LengthLaw) -> None:
    assert parse_law(law_table(law), "workload.prompt") == law


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            3,
            'workload.prompt = 3: give a table like {dist = "uniform", low = 50, high = 200}',
        ),
        (
            {"dist": "unifrom", "low": 1, "high": 2},
            "workload.prompt.dist = 'unifrom': unknown; known are fixed, uniform, exponential, lognormal; "
            "did you mean 'uniform'?",
        ),
        (
            {"dist": "uniform", "low": 1, "hihg": 2},
            "workload.prompt (dist = 'uniform'): unknown key 'hihg'; known are low, high; "
            "did you mean 'high'?",
        ),
        (
            {"dist": "uniform", "low": 1},
            "workload.prompt (dist = 'uniform'): 'high' is missing; add high = ...",
        ),
        (
            {"dist": "uniform", "low": 9, "high": 2},
            "workload.prompt: low = 9 is above high = 2; swap them",
        ),
        (
            {"dist": "fixed", "value": 0},
            "workload.prompt.value = 0: give a whole number of tokens, at least 1",
        ),
        (
            {"dist": "fixed", "value": True},
            "workload.prompt.value = True: give a whole number of tokens, at least 1",
        ),
        (
            {"dist": "exponential", "mean": 0, "cap": 5},
            "workload.prompt.mean = 0: give a number of tokens above 0",
        ),
        (
            {"dist": "exponential", "mean": float("nan")},
            "workload.prompt.mean = nan: give a number of tokens above 0",
        ),
        (
            {"dist": "lognormal", "mean": 5, "cv": 0},
            "workload.prompt.cv = 0: give a number from 0.001 to 100",
        ),
        ({"dist": "lognormal", "mean": 5}, "workload.prompt (dist = 'lognormal'): 'cv' is missing; add cv = ..."),
    ],
)
def test_impossible_laws(table: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_law(table, "workload.prompt")
    assert str(error.value) == message
