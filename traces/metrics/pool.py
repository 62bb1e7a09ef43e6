"""Pool of (value, count) pairs: exact while few, then fixed logarithmic buckets whose answer needs no
order."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from traces.metrics.stats import Stats, describe_weighted, weighted_quantiles

MAX_EXACT_PAIRS = 5_000_000
BUCKET_WIDTH = 0.001
SMALLEST, LARGEST = 1e-9, 1e9
_LOG_WIDTH = math.log1p(BUCKET_WIDTH)
_NUM_BUCKETS = 2 + math.ceil(math.log(LARGEST / SMALLEST) / _LOG_WIDTH)


class PairPool:
    """Samples given as values with counts. Memory is bounded by ``max_exact_pairs``.

    Above that many pairs all of them go into buckets 0.1 % wide; a quantile is then the geometric middle of
    its bucket, at most 0.05 % off. Values up to 1 ns count as 0. The mean stays exact.
    """

    def __init__(self, max_exact_pairs: int = MAX_EXACT_PAIRS) -> None:
        self._max_exact_pairs = max_exact_pairs
        self._values: list[NDArray[np.float64]] = []
        self._counts: list[NDArray[np.int32]] = []
        self._num_pairs = 0
        self._sum = 0.0
        self._buckets: NDArray[np.int64] | None = None

    @property
    def is_exact(self) -> bool:
        """False once the pairs have become buckets."""
        return self._buckets is None

    def add(self, values: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        """Add samples; pairs with count 0 are dropped."""
        kept = counts > 0
        values, counts = values[kept], counts[kept]
        if not len(values):
            return
        self._num_pairs += len(values)
        self._sum += float(np.sum(values * counts))
        if self._buckets is None:
            self._values.append(values)
            self._counts.append(counts.astype(np.int32))
            if self._num_pairs > self._max_exact_pairs:
                self._to_buckets()
        else:
            self._count_in_buckets(values, counts)

    def stats(self) -> Stats | None:
        """Statistics of all samples so far; None without any."""
        if not self._num_pairs:
            return None
        if self._buckets is None:
            self._values = [np.concatenate(self._values)]
            self._counts = [np.concatenate(self._counts)]
            return describe_weighted(self._values[0], self._counts[0].astype(np.int64))
        total = int(self._buckets.sum())
        return Stats(total, self._sum / total, *weighted_quantiles(_middles(), np.cumsum(self._buckets)))

    def _to_buckets(self) -> None:
        self._buckets = np.zeros(_NUM_BUCKETS, np.int64)
        for values, counts in zip(self._values, self._counts, strict=True):
            self._count_in_buckets(values, counts.astype(np.int64))
        self._values, self._counts = [], []

    def _count_in_buckets(self, values: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        assert self._buckets is not None
        place = np.log(np.clip(values, SMALLEST, LARGEST) / SMALLEST) / _LOG_WIDTH
        index = np.where(values > SMALLEST, place.astype(np.int64) + 1, 0)
        # Sums of counts below 2**53 are exact in float64, so the buckets hold true integers.
        self._buckets += np.bincount(index, counts, _NUM_BUCKETS).astype(np.int64)


def _middles() -> NDArray[np.float64]:
    middles: NDArray[np.float64] = SMALLEST * np.exp((np.arange(_NUM_BUCKETS) - 0.5) * _LOG_WIDTH)
    middles[0] = 0.0
    return middles
