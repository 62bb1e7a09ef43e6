"""Gathers rows that come one at a time into batches, for sinks whose cost is per batch."""

from __future__ import annotations

from collections.abc import Collection

from traces.record.schema import RecordSink, RequestRow, Stall, StepRow


class BatchedSink:
    """A ``RecordSink`` before another one, which gets ``size`` rows of steps at a time, or all that is left."""

    def __init__(self, sink: RecordSink, size: int = 4096) -> None:
        self._sink, self._size = sink, size
        self._steps: list[StepRow] = []
        self._requests: list[RequestRow] = []
        self._stalls: list[Stall] = []

    def steps(self, rows: Collection[StepRow]) -> None:
        """Rows of steps."""
        self._steps += rows
        if len(self._steps) >= self._size:
            self._pass_on()

    def requests(self, rows: Collection[RequestRow]) -> None:
        """Requests, in order of their end."""
        self._requests += rows

    def stalls(self, rows: Collection[Stall]) -> None:
        """Irregular inter-token gaps."""
        self._stalls += rows

    def close(self) -> None:
        """Pass on the rest and close."""
        self._pass_on()
        self._sink.close()

    def _pass_on(self) -> None:
        self._sink.steps(self._steps)
        self._sink.requests(self._requests)
        self._sink.stalls(self._stalls)
        self._steps, self._requests, self._stalls = [], [], []
