"""Requests in the order of their rank, such as their priority."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable

from policies.core.request import RequestId
from policies.core.rows import Row

Rank = tuple[float, float, RequestId]
"""Place of a request among all, small ones first: what its policy values, then who came first."""


def rank(row: Row) -> Rank:
    """By priority: small ``priority`` first, then who came first."""
    return row.request.priority, row.request.arrival_s, row.id


class RankedQueue(deque[Row]):
    """Waiting requests in the order of ``key``, whichever end they are put in at. The key of a row does not change
    while it waits."""

    def __init__(self, key: Callable[[Row], Rank] = rank) -> None:
        super().__init__()
        self._key = key

    def append(self, row: Row) -> None:
        """Put a request in its place."""
        insort(self, row, key=self._key)

    appendleft = append

    def extendleft(self, rows: Iterable[Row]) -> None:
        """Put requests in their places."""
        for row in rows:
            self.append(row)
