"""Intervals of means over independent seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean


def half_width(values: Sequence[float], confidence: float = 0.95) -> float | None:
    """Half of the interval of the mean of independent values, by Student's t; None with fewer than two."""
    if len(values) < 2:
        return None
    middle = fmean(values)
    variance = math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)
    return student_t(len(values) - 1, confidence) * math.sqrt(variance / len(values))


def student_t(freedom: int, confidence: float = 0.95) -> float:
    """The two-sided quantile of Student's t with that many degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + confidence / 2.0))
