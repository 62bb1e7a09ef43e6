"""Exact means. Rates and loads are per second, times in seconds; ``length`` is the mean number of steps a request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mm1_time(load: float) -> float:
    """Time in system of M/M/1, in units of the mean service time (Kleinrock, Queueing Systems I, 3.2)."""
    return 1.0 / (1.0 - load)


def pollaczek_khinchine_wait(load: float, second_moment: float) -> float:
    """Wait of M/G/1 in units of the mean service time, the second moment in units of its square."""
    return load * second_moment / (2.0 * (1.0 - load))


def product_form_time_s(rate: float, length: float, base_s: float, per_row_s: float) -> float:
    """E2E of decode-only continuous batching without a limit on rows, a step taking ``base_s + per_row_s * rows``.

    As a network of symmetric queues (Kelly, Reversibility and Stochastic Networks, 3.3) it depends on the lengths
    through their mean alone: with n requests each is served at rate 1 / (base_s + per_row_s * n), so that the number
    in the system is negative binomial. ``base_s`` = 0 is processor sharing, E S / (1 - load).
    """
    return length * (base_s + per_row_s) / (1.0 - rate * length * per_row_s)


def birth_death_time_s(rate: float, length: float, base_s: float, per_row_s: float, max_rows: int) -> float:
    """E2E with at most ``max_rows`` rows and geometric lengths: from state n one leaves at the rate
    ``min(n, max_rows) / (length * (base_s + per_row_s * min(n, max_rows)))``; mean number over rate (Little)."""
    rows = np.minimum(np.arange(1, 20_000), max_rows)
    ratios = rate * length * (base_s + per_row_s * rows) / rows
    weights = np.exp(np.concatenate(([0.0], np.cumsum(np.log(ratios)))))
    return float(np.sum(weights * np.arange(len(weights))) / np.sum(weights) / rate)


def stepwise_time_s(
    rate: float, length: float, base_s: float, per_row_s: float, max_rows: int, max_present: int = 150
) -> float:
    """E2E of the same system with geometric lengths, exact in that it knows steps: what comes within a step waits for
    its end, and rows leave only there.

    n, the number present at the start of a step, is a Markov chain: binomial departures, Poisson arrivals during the
    step. Its stationary law, weighted by the time of each step, gives the mean number present, hence (Little) the
    time. ``max_present`` cuts the chain where nobody ever is.
    """
    present = np.arange(max_present + 1)
    rows = np.minimum(present, max_rows)
    step_s = base_s + per_row_s * rows
    chain = np.zeros((len(present), len(present)))
    chain[0, 1] = 1.0
    for n in present[1:]:
        stay = _binomial(rows[n], 1.0 - 1.0 / length)
        law = np.convolve(np.concatenate((np.zeros(n - rows[n]), stay)), _poisson(rate * step_s[n], max_present))
        chain[n] = law[: len(present)] / law[: len(present)].sum()
    balance = np.vstack((chain.T - np.eye(len(present)), np.ones(len(present))))
    shares = np.linalg.lstsq(balance, np.append(np.zeros(len(present)), 1.0))[0]
    time_s = np.where(present > 0, step_s, 1.0 / rate)
    present_s = present * time_s + np.where(present > 0, rate * step_s**2 / 2.0, 0.0)
    return float(np.sum(shares * present_s) / np.sum(shares * time_s) / rate)


def _binomial(n: int, chance: float) -> NDArray[np.float64]:
    """Probabilities of 0 to n successes."""
    law = np.ones(1)
    for _ in range(n):
        law = np.convolve(law, [1.0 - chance, chance])
    return law


def _poisson(mean: float, last: int) -> NDArray[np.float64]:
    """Probabilities of 0 to ``last`` events."""
    ratios = np.concatenate(([1.0], mean / np.arange(1, last + 1)))
    law: NDArray[np.float64] = np.exp(-mean) * np.cumprod(ratios)
    return law
