"""A trace held in memory: 16 bytes a row, and what optional columns need."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from typing import cast

from traces.workload.formats import OPTIONAL
from traces.workload.parse import Block
from traces.workload.rows import TraceRow

_DIGITS = 7
"""Calendar times come in tenths of a microsecond: differences are rounded to these."""


class Columns:
    """Rows in columns; iterating yields TraceRows, any number of times."""

    def __init__(self) -> None:
        self.arrival_s = array("d")
        self._prompt_tokens = array("i")
        self._output_tokens = array("i")
        self._extras: dict[str, list[object]] = {}

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __iter__(self) -> Iterator[TraceRow]:
        return rows_of(self.arrival_s, self._prompt_tokens, self._output_tokens, self._extras)

    @property
    def parents(self) -> list[int | None]:
        """The parent of each row; empty where no row names one."""
        return cast("list[int | None]", self._extras.get("parent_id", []))

    def extend(self, block: Block) -> None:
        """Appends the rows of a block."""
        held, added = len(self), len(block.arrival_s)
        for name in self._extras.keys() | block.extras.keys():
            nothing = TraceRow._field_defaults[name]
            column = self._extras.setdefault(name, [nothing] * held)
            column.extend(block.extras.get(name, repeat(nothing, added)))
        self.arrival_s.fromlist(block.arrival_s)
        self._prompt_tokens.fromlist(block.prompt_tokens)
        self._output_tokens.fromlist(block.output_tokens)

    def sort(self) -> list[int]:
        """Sorts by arrival, equal times as they were; parents follow. Returns the old number of each row."""
        order = sorted(range(len(self)), key=self.arrival_s.__getitem__)
        new_number = dict(zip(order, count(), strict=False))
        self.arrival_s = array("d", map(self.arrival_s.__getitem__, order))
        self._prompt_tokens = array("i", map(self._prompt_tokens.__getitem__, order))
        self._output_tokens = array("i", map(self._output_tokens.__getitem__, order))
        self._extras = {name: list(map(column.__getitem__, order)) for name, column in self._extras.items()}
        if self.parents:
            # A parent beyond the last row stays there, for the caller to find.
            self._extras["parent_id"] = [
                None if parent is None else new_number.get(parent, parent) for parent in self.parents
            ]
        return order

    def start_at_zero(self) -> None:
        """Counts times from the first row."""
        self.arrival_s = array("d", since(self.arrival_s, self.arrival_s[0]))


def since(times_s: Sequence[float], origin_s: float) -> list[float]:
    """Calendar times counted from ``origin_s``."""
    return [round(time - origin_s, _DIGITS) for time in times_s]


def rows_of(
    arrival_s: Sequence[float],
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    extras: Mapping[str, Sequence[object]],
) -> Iterator[TraceRow]:
    """Rows from columns, made by compiled code alone."""
    optional = (extras.get(name) or repeat(TraceRow._field_defaults[name]) for name in OPTIONAL)
    new = partial(tuple.__new__, TraceRow)
    return map(new, zip(arrival_s, prompt_tokens, output_tokens, *optional, strict=False))
