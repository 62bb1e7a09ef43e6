"""Requests in the order of their priority."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable

from policies.core.request import RequestId
from policies.core.rows import Row


def rank(row: Row) -> tuple[int, float, RequestId]:
    """Place of a request among all: small ``priority`` first, then who came first."""
    return row.request.priority, row.request.arrival_s, row.id


class RankedQueue(deque[Row]):
    """Waiting requests in the order of ``rank``, whichever end they are put in at."""

    def append(self, row: Row) -> None:
        """Put a request in its place."""
        insort(self, row, key=rank)

    appendleft = append

    def extendleft(self, rows: Iterable[Row]) -> None:
        """Put requests in their places."""
        for row in rows:
            self.append(row)
