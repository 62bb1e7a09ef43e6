"""Who sends requests in real time: the rows of a workload at their times, or clients that wait for their answers."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

from policies.core.request import RequestId
from traces.workload.rows import TraceRow
from traces.workload.sending import Followers
from traces.workload.source import Workload

_GIVES_UP: Final = 0
_SENDS: Final = 1


class Send(NamedTuple):
    """Row ``number`` of the workload is sent; it is the request of that number."""

    time_s: float
    number: int
    row: TraceRow


class GiveUp(NamedTuple):
    """The client of a request goes away."""

    time_s: float
    number: int


class Traffic:
    """What comes in, in order of time; at one instant who goes away comes before who comes.

    In open loop each row is sent at its time, or when the row that it follows has been answered, if that is later.
    With ``concurrency`` that many clients take the rows in turn, each ``think_time_s`` after its last answer.
    ``unanswered`` are the requests without an end.
    """

    def __init__(
        self, rows: Iterator[TraceRow], *, concurrency: int | None = None, think_time_s: float = 0.0
    ) -> None:
        self.unanswered: set[RequestId] = set()
        self._rows = enumerate(rows)
        self._closed, self._think_time_s = concurrency is not None, think_time_s
        self._events: list[tuple[float, int, int, TraceRow | None]] = []
        self._followers = Followers(self.unanswered)
        for _ in range(concurrency or 1):
            self._take_row(0.0)

    @classmethod
    def of(cls, workload: Workload) -> Traffic:
        """What a workload sends, as it says."""
        return cls(workload.rows(), concurrency=workload.concurrency, think_time_s=workload.think_time_s)

    @property
    def next_s(self) -> float | None:
        """When the next thing comes in; None if nothing will unless somebody is answered."""
        return self._events[0][0] if self._events else None

    def due(self, now_s: float) -> Iterator[Send | GiveUp]:
        """What has come in by ``now_s``."""
        while self._events and self._events[0][0] <= now_s:
            time_s, kind, number, row = heappop(self._events)
            if kind == _GIVES_UP:
                if number in self.unanswered:
                    yield GiveUp(time_s, number)
                continue
            assert row is not None
            if not self._followers.let_go(number) and not self._closed:
                self._take_row(time_s)
                if self._followers.hold(number, row):
                    continue
            self.unanswered.add(number)
            if row.abort_after_s is not None:
                heappush(self._events, (time_s + row.abort_after_s, _GIVES_UP, number, None))
            yield Send(time_s, number, row)

    def answered(self, request_id: RequestId, now_s: float) -> None:
        """A request ended and its client knows."""
        self.unanswered.discard(request_id)
        if self._closed:
            self._take_row(now_s + self._think_time_s)
        for number, row in self._followers.of(request_id):
            heappush(self._events, (now_s, _SENDS, number, row))

    def _take_row(self, at_s: float) -> None:
        """Let the next row come at its time, or at ``at_s`` if later."""
        item = next(self._rows, None)
        if item is not None:
            number, row = item
            heappush(self._events, (max(at_s, row.arrival_s), _SENDS, number, row))
