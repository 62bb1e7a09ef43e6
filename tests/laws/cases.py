"""The laws as cases: what comes in, what serves it, the exact mean, and how far the simulated one may be off.

Tolerances are for 400,000 requests and doubled for fewer. ``BATCHSCOPE_LAWS_REQUESTS`` says how many are measured
(default 40,000); a twentieth as many before them warm the system up, and a hundredth after them keep it loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sim.world.replica import StepCosts
from tests.laws.costs import AffineCosts, ScriptedCosts
from tests.laws.draws import Floats, Law, always, bimodal, exponential, geometric, spread, two_phase
from tests.laws.formulas import (
    birth_death_time_s,
    mm1_time,
    pollaczek_khinchine_wait,
    product_form_time_s,
    stepwise_time_s,
)
from tests.laws.replica import UNLIMITED

NUM_REQUESTS = int(os.environ.get("BATCHSCOPE_LAWS_REQUESTS", "40000"))
FULL_SIZE = 400_000
SEED = 1
NUM_WINDOWS = 20


@dataclass(frozen=True)
class Input:
    """Requests of one run: ``measured`` are those that count."""

    arrivals_s: Floats
    sizes: Floats
    measured: slice


@dataclass(frozen=True)
class Case:
    """One system under one load. ``sizes`` is the law of service times (``scripted``) or output lengths.

    ``exact`` maps a name of a law to its mean and tolerance; ``measure`` says of what: ``e2e_s`` or ``queue_s``.
    """

    name: str
    rate_per_s: float
    sizes: Law
    exact: Mapping[str, tuple[float, float]]
    measure: str = "e2e_s"
    max_num_seqs: int = UNLIMITED
    scripted: bool = False
    affine: tuple[float, float] = field(default=(0.0, 0.0))

    def input(self, num_requests: int = NUM_REQUESTS) -> Input:
        """The requests; every case sees the same uniform numbers."""
        generator = np.random.default_rng(SEED)
        parts = [num_requests // 20, num_requests, num_requests // 100]
        gaps = np.concatenate([spread(part, generator) for part in parts])
        sizes = np.concatenate([spread(part, generator) for part in parts])
        arrivals_s = np.cumsum(exponential(gaps)) / self.rate_per_s
        return Input(arrivals_s, self.sizes(sizes), slice(parts[0], parts[0] + num_requests))

    def costs(self, given: Input) -> StepCosts:
        """The cost model that serves this input."""
        return ScriptedCosts(given.sizes.tolist()) if self.scripted else AffineCosts(*self.affine)

    def output_tokens(self, given: Input) -> Floats:
        """Tokens of each request; a scripted service is one step."""
        return np.ones(len(given.sizes)) if self.scripted else given.sizes


def _scripted(name: str, law: Law, measure: str, exact: float, load: float) -> Case:
    return Case(name, load, law, {"exact": (exact, 0.04)}, measure, max_num_seqs=1, scripted=True)


def _lengths(mean: float) -> dict[str, Callable[[Floats], Floats]]:
    """Three laws of output lengths with one mean: variances 0, mean^2, and 2.56 mean^2."""
    return {
        "constant": always(mean),
        "geometric": geometric(mean),
        "bimodal": bimodal(0.2 * mean, 4.2 * mean, 0.8),
    }


def _batching(name: str, rate: float, base_s: float, per_row_s: float, tolerance: float) -> list[Case]:
    """Without a limit on rows; the law holds whatever the lengths, the chain of steps for geometric ones."""
    exact = product_form_time_s(rate, 100.0, base_s, per_row_s)
    found = []
    for lengths, law in _lengths(100.0).items():
        laws = {"exact": (exact, tolerance)}
        if lengths == "geometric":
            laws["stepwise"] = (stepwise_time_s(rate, 100.0, base_s, per_row_s, UNLIMITED, 100), tolerance / 2.0)
        found.append(Case(f"{name}, {lengths}", rate, law, laws, affine=(base_s, per_row_s)))
    return found


def _limited(rate: float, base_s: float, per_row_s: float, max_rows: int) -> Case:
    system = (rate, 100.0, base_s, per_row_s, max_rows)
    laws = {"exact": (birth_death_time_s(*system), 0.03), "stepwise": (stepwise_time_s(*system), 0.015)}
    name = f"at most {max_rows} rows, geometric"
    return Case(name, rate, geometric(100.0), laws, max_num_seqs=max_rows, affine=(base_s, per_row_s))


CASES = [
    _scripted("M/M/1, time", exponential, "e2e_s", mm1_time(0.8), 0.8),
    _scripted("M/D/1, wait", always(1.0), "queue_s", pollaczek_khinchine_wait(0.8, 1.0), 0.8),
    _scripted("M/H2/1, wait", two_phase, "queue_s", pollaczek_khinchine_wait(0.8, 4.0), 0.8),
    *_batching("continuous batching", 2.0, 0.0094, 0.0003, 0.015),
    _limited(4.0, 0.0094, 0.0003, 8),
    *_batching("processor sharing", 2.0, 0.0, 0.003, 0.02),
]
