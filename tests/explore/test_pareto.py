"""Pareto fronts, knees, brackets and intervals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.explore.bracket import bracket, fewest
from sim.explore.pareto import Candidate, front, knee
from sim.explore.seeds import half_width

points = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20)


@given(points=points)
def test_the_front_is_what_nobody_beats(points: list[tuple[int, int]]) -> None:
    candidates = [Candidate(number, float(x), float(y)) for number, (x, y) in enumerate(points)]
    kept = {(one.latency, one.throughput) for one in front(candidates)}
    unbeaten = {
        (one.latency, one.throughput)
        for one in candidates
        if not any(
            (other.latency <= one.latency and other.throughput > one.throughput)
            or (other.latency < one.latency and other.throughput >= one.throughput)
            for other in candidates
        )
    }
    assert kept == unbeaten


def test_the_knee_is_where_the_front_bends() -> None:
    ordered = [Candidate(0, 1.0, 100.0), Candidate(1, 1.2, 180.0), Candidate(2, 5.0, 200.0)]
    found = knee(ordered)
    assert found is not None
    assert found.number == 1
    assert knee([]) is None


@given(critical=st.floats(0.02, 50.0), start=st.floats(0.01, 100.0))
def test_a_bracket_closes_on_the_critical_load(critical: float, start: float) -> None:
    found = bracket(lambda load: load <= critical, start, factor=2.0, tolerance=0.01, least=0.01, most=100.0)
    assert found.low <= critical < found.high <= found.low * 1.0100001


def test_open_brackets_say_so() -> None:
    more = {"factor": 2.0, "tolerance": 0.01, "least": 0.5, "most": 8.0}
    assert bracket(lambda load: False, 1.0, **more).middle == 0.0
    everything = bracket(lambda load: True, 1.0, **more)
    assert everything.middle == 8.0
    assert math.isinf(everything.high)


@given(needed=st.integers(1, 60), start=st.integers(1, 80))
def test_fewest_finds_the_least_number(needed: int, start: int) -> None:
    assert fewest(lambda number: number >= needed, start, 64) == needed


def test_fewest_gives_up_at_the_most() -> None:
    assert fewest(lambda number: False, 3, 64) is None


def test_the_interval_of_three_seeds_is_students() -> None:
    # 4.3027 is Student's t of 2 degrees of freedom, 97.5 %; the deviation of 1, 2, 3 is 1.
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert half_width([1.0]) is None
