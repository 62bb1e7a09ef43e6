"""Batches of record rows as numpy columns, converted once for every sink that wants columns."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, starmap
from typing import Any, Protocol, get_type_hints

import numpy as np
from numpy.typing import NDArray

from policies.core.native import mypyc_attr
from traces.record.packed import REQUEST_NUMBERS, STEP_NUMBERS, RequestRows, StepRows
from traces.record.schema import RequestRow, Stall, StepRow

Numbers = Mapping[str, NDArray[Any]]
"""The numeric columns by name, int64 or float64."""

_TYPES = {int: "<i8", float: "<f8"}


class _Layout:
    """The numeric columns of one kind of row, packed one row after the other."""

    def __init__(self, row: type, names: Sequence[str]) -> None:
        hints = get_type_hints(row)
        self._names = names
        self._dtype = np.dtype([(name, _TYPES[hints[name]]) for name in names])

    def of_packed(self, packed: bytes) -> dict[str, NDArray[Any]]:
        """The columns of packed rows."""
        return self._columns(np.frombuffer(packed, self._dtype))

    def of_rows(self, rows: Collection[Any]) -> dict[str, NDArray[Any]]:
        """The columns of ``rows``."""
        picked = [tuple([getattr(row, name) for name in self._names]) for row in rows]
        return self._columns(np.array(picked, self._dtype))

    def _columns(self, table: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {name: table[name] for name in self._names}


_STEP, _REQUEST = _Layout(StepRow, STEP_NUMBERS), _Layout(RequestRow, REQUEST_NUMBERS)


@dataclass(frozen=True)
class StepTable:
    """A batch of ``StepRow``: its numeric columns, and lists with one entry a row."""

    numbers: Numbers
    limited_by: list[str]
    residues: list[tuple[int, ...]]

    @classmethod
    def of(cls, rows: Collection[StepRow]) -> StepTable:
        """Columns of ``rows``."""
        if isinstance(rows, StepRows):
            return cls(_STEP.of_packed(rows.packed), rows.limited_by, rows.residues)
        return cls(_STEP.of_rows(rows), [row.limited_by for row in rows], [row.residues for row in rows])

    def __getitem__(self, part: slice) -> StepTable:
        numbers = {name: column[part] for name, column in self.numbers.items()}
        return StepTable(numbers, self.limited_by[part], self.residues[part])

    def __len__(self) -> int:
        return len(self.limited_by)


@dataclass(frozen=True)
class RequestTable:
    """A batch of ``RequestRow``, likewise."""

    numbers: Numbers
    reason: list[str]
    client_id: list[str]
    segments: list[tuple[tuple[float, int, int], ...]]

    @classmethod
    def of(cls, rows: Collection[RequestRow]) -> RequestTable:
        """Columns of ``rows``."""
        if isinstance(rows, RequestRows):
            return cls(_REQUEST.of_packed(rows.packed), rows.reason, rows.client_id, rows.segments)
        others = ([row.reason for row in rows], [row.client_id for row in rows], [row.segments for row in rows])
        return cls(_REQUEST.of_rows(rows), *others)

    def __len__(self) -> int:
        return len(self.reason)


@dataclass(frozen=True)
class StallTable:
    """A batch of ``Stall``: ``gap_s`` float64, ``num_gaps`` int64, ``cause`` a list."""

    gap_s: NDArray[np.float64]
    num_gaps: NDArray[np.int64]
    cause: list[str]

    @classmethod
    def of(cls, rows: Sequence[Stall]) -> StallTable:
        """Columns of ``rows``."""
        gaps = np.fromiter((row[0] for row in rows), np.float64, len(rows))
        return cls(gaps, np.fromiter((row[1] for row in rows), np.int64, len(rows)), [row[2] for row in rows])


def flatten(tuples: Sequence[tuple[int, ...]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """All numbers of the tuples in one array, and the length of each tuple."""
    lengths = np.fromiter(map(len, tuples), np.int64, len(tuples))
    if len(lengths) and lengths.min() == lengths.max():
        # The usual case, tuples of one length (the block size), costs one C call a tuple.
        packed = b"".join(starmap(struct.Struct(f"{lengths[0]}i").pack, tuples))
        return np.frombuffer(packed, np.int32), lengths
    return np.fromiter(chain.from_iterable(tuples), np.int32, int(lengths.sum())), lengths


class TableSink(Protocol):
    """A sink that works on columns."""

    def step_table(self, table: StepTable) -> None:
        """A batch of steps."""

    def request_table(self, table: RequestTable) -> None:
        """A batch of requests."""

    def stall_table(self, table: StallTable) -> None:
        """A batch of stalls."""

    def close(self) -> None:
        """The run is over."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RowsToColumns:
    """Base of a ``TableSink`` that also takes rows, as a ``RecordSink``; a batch without rows never reaches it."""

    @abstractmethod
    def step_table(self, table: StepTable) -> None:
        """A batch of steps."""

    @abstractmethod
    def request_table(self, table: RequestTable) -> None:
        """A batch of requests."""

    @abstractmethod
    def stall_table(self, table: StallTable) -> None:
        """A batch of stalls."""

    def steps(self, rows: Collection[StepRow]) -> None:
        """Rows of steps."""
        if len(rows):
            self.step_table(StepTable.of(rows))

    def requests(self, rows: Collection[RequestRow]) -> None:
        """Requests, in order of their end."""
        if len(rows):
            self.request_table(RequestTable.of(rows))

    def stalls(self, rows: Sequence[Stall]) -> None:
        """Irregular inter-token gaps."""
        if rows:
            self.stall_table(StallTable.of(rows))


class Columns(RowsToColumns):
    """Converts each batch once and hands the columns to every one of its sinks."""

    def __init__(self, *sinks: TableSink) -> None:
        self._sinks = sinks

    def step_table(self, table: StepTable) -> None:
        """A batch of steps."""
        for sink in self._sinks:
            sink.step_table(table)

    def request_table(self, table: RequestTable) -> None:
        """A batch of requests."""
        for sink in self._sinks:
            sink.request_table(table)

    def stall_table(self, table: StallTable) -> None:
        """A batch of stalls."""
        for sink in self._sinks:
            sink.stall_table(table)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()
