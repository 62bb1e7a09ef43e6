"""The formulas agree with each other where they describe one system, and the draws have the moments they promise."""

from __future__ import annotations

import numpy as np
import pytest

from tests.laws.draws import Law, always, bimodal, exponential, geometric, spread, two_phase
from tests.laws.formulas import (
    birth_death_time_s,
    mm1_time,
    pollaczek_khinchine_wait,
    product_form_time_s,
    stepwise_time_s,
)


def test_the_figures_that_the_laws_are_quoted_with() -> None:
    assert mm1_time(0.8) == pytest.approx(5.0)
    assert pollaczek_khinchine_wait(0.8, 1.0) == pytest.approx(2.0)
    assert pollaczek_khinchine_wait(0.8, 4.0) == pytest.approx(8.0)
    assert product_form_time_s(2.0, 100.0, 0.0094, 0.0003) == pytest.approx(1.0319, abs=5e-5)
    assert birth_death_time_s(4.0, 100.0, 0.0094, 0.0003, 8) == pytest.approx(1.138, abs=5e-4)


def test_exponential_service_is_the_general_formula_with_second_moment_2() -> None:
    assert pollaczek_khinchine_wait(0.6, 2.0) + 1.0 == pytest.approx(mm1_time(0.6))


def test_birth_and_death_without_a_limit_is_the_product_form() -> None:
    system = (2.0, 100.0, 0.0094, 0.0003)
    assert birth_death_time_s(*system, 1 << 20) == pytest.approx(product_form_time_s(*system), rel=1e-9)


def test_one_row_of_exponential_length_is_a_single_server() -> None:
    assert birth_death_time_s(0.8, 1.0, 1.0, 0.0, 1) == pytest.approx(mm1_time(0.8), rel=1e-9)


def test_short_steps_bring_the_chain_of_steps_to_the_continuous_law() -> None:
    whole = birth_death_time_s(4.0, 100.0, 0.0094, 0.0003, 8)
    errors = [
        stepwise_time_s(4.0, 100.0 * finer, 0.0094 / finer, 0.0003 / finer, 8) / whole - 1.0 for finer in (1, 4, 16)
    ]
    assert errors[0] == pytest.approx(4.0 * errors[1], rel=0.1)
    assert errors[1] == pytest.approx(4.0 * errors[2], rel=0.1)
    assert errors[2] < 5e-4


@pytest.mark.parametrize(
    ("law", "first", "second"),
    [
        (exponential, 1.0, 2.0),
        (two_phase, 1.0, 4.0),
        (always(100.0), 100.0, 1e4),
        (geometric(100.0), 100.0, 19_900.0),
        (bimodal(20.0, 420.0, 0.8), 100.0, 0.8 * 400.0 + 0.2 * 420.0**2),
    ],
)
def test_moments_of_the_draws(law: Law, first: float, second: float) -> None:
    values = law(spread(100_000, np.random.default_rng(7)))
    assert values.min() > 0.0
    assert np.mean(values) == pytest.approx(first, rel=1e-3)
    assert np.mean(values**2) == pytest.approx(second, rel=1e-2)
