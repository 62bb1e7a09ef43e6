"""Confidence intervals of a run's statistics, and of the difference of two runs on the same requests.

Samples of one run are correlated, so they are cut into 20 windows of neighbours, whose own estimates are nearly
independent (batch means; for quantiles sectioning, S. Asmussen and P. Glynn 2007, III.5): the interval is the estimate
over all samples, plus or minus Student's t times the spread of the windows' estimates around it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NUM_WINDOWS = 20
STUDENT_T = 2.093
"""97.5 % quantile of Student's t with 19 degrees of freedom."""

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], float]


class Interval(NamedTuple):
    """An estimate and half the width of its 95 % interval (None: too few samples)."""

    value: float
    half: float | None

    @property
    def excludes_zero(self) -> bool:
        """True if the interval lies on one side of zero."""
        return self.half is not None and abs(self.value) > self.half


def mean(values: Floats) -> float:
    """Arithmetic mean."""
    return float(np.mean(values))


def p50(values: Floats) -> float:
    """Median."""
    return float(np.quantile(values, 0.5))


def p99(values: Floats) -> float:
    """99th percentile."""
    return float(np.quantile(values, 0.99))


STATISTICS: dict[str, Statistic] = {"mean": mean, "p50": p50, "p99": p99}
LEAST_SAMPLES = {"mean": 100, "p50": 200, "p99": 2000}
"""Fewer samples give no interval: a window then says too little about the statistic."""


def interval(values: Floats, statistic: str) -> Interval:
    """The statistic of values in order of time; at least one value."""
    return paired(values, None, statistic)


def paired(values: Floats, base: Floats | None, statistic: str) -> Interval:
    """Difference of the statistic between ``values`` and ``base``, two results of the same requests, which are in
    order of time; the windows of both hold the same requests. Without ``base`` the statistic of ``values`` itself."""
    of = STATISTICS[statistic]

    def difference(low: int, high: int) -> float:
        return of(values[low:high]) - (0.0 if base is None else of(base[low:high]))

    total = difference(0, len(values))
    if len(values) < LEAST_SAMPLES[statistic]:
        return Interval(total, None)
    edges = np.linspace(0, len(values), NUM_WINDOWS + 1).astype(np.int64).tolist()
    spread = sum((difference(low, high) - total) ** 2 for low, high in pairwise(edges))
    return Interval(total, STUDENT_T * float(np.sqrt(spread / (NUM_WINDOWS * (NUM_WINDOWS - 1)))))
