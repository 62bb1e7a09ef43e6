"""Tokens delivered between the first completion and the last arrival, counted while the run goes on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_PENDING = 4_000_000


class TokenTimeline:
    """Counts tokens by their own time in the window (first completion, last arrival].

    Neither end is known when a token comes, so tokens wait until an arrival after them is known. If more than
    ``max_pending`` steps wait (a queue that grows all the time), neighbours are merged, each group at its
    last time.
    """

    def __init__(self, max_pending: int = MAX_PENDING) -> None:
        self._max_pending = max_pending
        self._times: list[NDArray[np.float64]] = []
        self._tokens: list[NDArray[np.int64]] = []
        self._num_pending = 0
        self._counted = 0
        self._first_completion_s = np.inf
        self._last_arrival_s = -np.inf

    def add(self, times_s: NDArray[np.float64], tokens: NDArray[np.int64]) -> None:
        """Tokens delivered at these times; batches come in order."""
        self._times.append(times_s)
        self._tokens.append(tokens.astype(np.int32))
        self._num_pending += len(times_s)
        if self._num_pending > self._max_pending:
            self._merge_neighbours()

    def note(self, first_completion_s: float, last_arrival_s: float) -> None:
        """Earliest completion and latest arrival of a batch of requests; batches come in order of
        completion."""
        self._first_completion_s = min(self._first_completion_s, first_completion_s)
        self._last_arrival_s = max(self._last_arrival_s, last_arrival_s)
        if self._first_completion_s == np.inf:
            return
        while self._times and self._times[0][-1] <= self._last_arrival_s:
            times_s = self._times.pop(0)
            self._num_pending -= len(times_s)
            self._counted += int(self._tokens.pop(0)[times_s > self._first_completion_s].sum())

    def output_tokens_per_s(self) -> float | None:
        """Rate in the window; None where no arrival follows the first completion."""
        window_s = self._last_arrival_s - self._first_completion_s
        if not 0.0 < window_s < np.inf:
            return None
        counted = self._counted
        for times_s, tokens in zip(self._times, self._tokens, strict=True):
            inside = (times_s > self._first_completion_s) & (times_s <= self._last_arrival_s)
            counted += int(tokens[inside].sum())
        return counted / window_s

    def _merge_neighbours(self) -> None:
        times_s, tokens = np.concatenate(self._times), np.concatenate(self._tokens)
        groups = np.arange(0, len(tokens), 2)
        self._times = [times_s[np.minimum(groups + 1, len(times_s) - 1)]]
        self._tokens = [np.add.reduceat(tokens, groups)]
        self._num_pending = len(groups)
