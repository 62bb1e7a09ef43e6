"""Gaps between tokens by cause, counted in logarithmic buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.record.columns import StallTable, StepTable
from traces.record.expand import Expanded

BUCKET_WIDTH = 0.02
SMALLEST_S, LARGEST_S = 1e-7, 1e7
_LOG_WIDTH = math.log1p(BUCKET_WIDTH)
_NUM_BUCKETS = 2 + math.ceil(math.log(LARGEST_S / SMALLEST_S) / _LOG_WIDTH)


class GapCounts:
    """Counts by cause: ``decode``, ``prefill`` (a prompt was computed in the same step or just before it),
    ``preemption``, ``swap``, and whatever else stalls name. The bucket of a gap is 2 % wide."""

    def __init__(self) -> None:
        self._buckets: dict[str, NDArray[np.int64]] = {}
        self._total_s: dict[str, float] = {}

    def add_steps(self, part: StepTable, steps: Expanded) -> None:
        """Gaps of the rows that decode in step; those that come as stalls are left out."""
        numbers = part.numbers
        after_s, regular = steps.start_s.copy(), steps.each(numbers["emitting"])
        after_s[steps.offset] = numbers["previous_emit_s"]
        regular[steps.offset] -= numbers["irregular"]
        beside_prompt = steps.is_last & steps.each(numbers["chunk_tokens"] > 0)
        prompt = (beside_prompt | (after_s < steps.start_s - 1e-9)) & (regular > 0)
        decode = ~prompt & (regular > 0)
        gap_s = steps.end_s - after_s
        for cause, mine in (("decode", decode), ("prefill", prompt)):
            self._add(cause, gap_s[mine], regular[mine])

    def add_stalls(self, table: StallTable) -> None:
        """Irregular gaps, each with its cause."""
        causes = np.array(table.cause)
        for cause in dict.fromkeys(table.cause):
            mine = causes == cause
            self._add(cause, table.gap_s[mine], table.num_gaps[mine])

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Middles of the buckets that hold something, ascending, with counts, and the sum of the gaps, by cause."""
        middles = SMALLEST_S * np.exp((np.arange(_NUM_BUCKETS) - 0.5) * _LOG_WIDTH)
        middles[0] = 0.0
        return {
            cause: {
                "gap_s": _rounded(middles[counts > 0]),
                "counts": counts[counts > 0].tolist(),
                "total_s": self._total_s[cause],
            }
            for cause, counts in sorted(self._buckets.items())
        }

    def _add(self, cause: str, gap_s: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        if not len(gap_s):
            return
        known = self._buckets.setdefault(cause, np.zeros(_NUM_BUCKETS, np.int64))
        place = np.log(np.clip(gap_s, SMALLEST_S, LARGEST_S) / SMALLEST_S) / _LOG_WIDTH
        index = np.where(gap_s > SMALLEST_S, place.astype(np.int64) + 1, 0)
        # Sums of counts below 2**53 are exact in float64, so the buckets hold true integers.
        known += np.bincount(index, counts, _NUM_BUCKETS).astype(np.int64)
        self._total_s[cause] = self._total_s.get(cause, 0.0) + float(np.sum(gap_s * counts))


def _rounded(values: NDArray[np.float64]) -> Sequence[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
