"""Simulated against measured, figure by figure, beside the noise of the measurement itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sim.latencies import SHOWN

STATISTICS = ("mean", "p50", "p90", "p99")
THROUGHPUT = "output_tokens_per_s"
_LIMITS = {"ttft_s mean": 0.10, "itl_s mean": 0.05, THROUGHPUT: 0.05}
_WITHIN_NOISE = frozenset({"itl_s mean", THROUGHPUT})
"""Of these an error of twice the noise will do, too."""


class Compared(NamedTuple):
    """One figure: medians of the runs, what the simulation says, and how much two runs in succession differ.

    ``limit`` is the largest error it may have; None where nothing is demanded. ``noise`` is the median of the relative
    differences between a run and the next of the same workload; None of a single run.
    """

    figure: str
    measured: float
    simulated: float
    noise: float | None
    limit: float | None

    @property
    def error(self) -> float:
        """Relative error of the simulation."""
        return self.simulated / self.measured - 1 if self.measured else 0.0 if not self.simulated else float("inf")

    @property
    def holds(self) -> bool:
        """Whether the error is within its limit."""
        return self.limit is None or abs(self.error) <= self.limit

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; an infinite error, of what was never measured, is null."""
        error = self.error if math.isfinite(self.error) else None
        return {**self._asdict(), "error": error, "holds": self.holds}


def figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Name and value of everything that is compared."""
    for name in SHOWN:
        for statistic in STATISTICS:
            if name in summary:
                yield f"{name} {statistic}", summary[name][statistic]
    yield THROUGHPUT, summary["throughput"][THROUGHPUT]
    for kind in ("recompute", "swap"):
        yield f"preemptions by {kind}", summary["preemptions"][kind]


def compare(measured: Sequence[Mapping[str, Any]], simulated: Sequence[Mapping[str, Any]]) -> list[Compared]:
    """All figures of a workload that both worlds have: medians of the summaries of its runs and of its simulations."""
    runs, predicted = ([dict(figures(summary)) for summary in summaries] for summaries in (measured, simulated))
    found = []
    for figure in runs[0]:
        values = [run[figure] for run in runs]
        noise = _noise(values)
        if figure in predicted[0]:
            simulation = statistics.median(run[figure] for run in predicted)
            found.append(
                Compared(figure, statistics.median(values), simulation, noise, _limit(figure, noise or 0.0))
            )
    return found


def _noise(values: Sequence[float]) -> float | None:
    pairs = [(one, other) for one, other in pairwise(values) if one]
    return statistics.median(abs(other / one - 1) for one, other in pairs) if pairs else None


def _limit(figure: str, noise: float) -> float | None:
    least = _LIMITS.get(figure)
    return max(least, 2 * noise) if least is not None and figure in _WITHIN_NOISE else least
