"""How slow the machine was at every moment of an executed run, from steps that were timed between its own."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

_AROUND = 4
"""Neighbours on each side of a timed step, in the order of time, that count as much as the step itself."""


class Pace:
    """``slowness[i]``, how many times as long as usual a step took that was timed at second ``times_s[i]`` of a run,
    smoothed; between two of them that of the nearer one. Without any the machine was as usual."""

    def __init__(self, times_s: Sequence[float], slowness: Sequence[float]) -> None:
        self.mean = statistics.fmean(slowness) if slowness else 1.0
        self._ends_s = [(one_s + next_s) / 2 for one_s, next_s in pairwise(times_s)]
        self._smooth = [
            statistics.fmean(slowness[max(0, place - _AROUND) : place + _AROUND + 1]) for place in range(len(slowness))
        ] or [1.0]

    def __call__(self, now_s: float) -> float:
        """How slow the machine was then."""
        return self._smooth[bisect_right(self._ends_s, now_s)]
