"""Trace files, read lazily.

A file is read once from end to end when it is opened, so that whatever is wrong with row 900,000 is said
before a run starts and not in its middle. A small file stays in memory as columns; a large one that is in
order of arrival is read again, block by block, each time its rows are wanted; a large one that is not has to
be held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import le
from sys import maxsize
from typing import NamedTuple, cast

from policies.core.errors import TraceError
from traces.workload.columns import Columns, rows_of, since
from traces.workload.formats import AZURE, Layout, detect
from traces.workload.parse import Block, Parser
from traces.workload.rows import TraceRow
from traces.workload.textfile import Header, line_of_row, read_header, read_lines

HELD_CHARS = 64 * 2**20
"""Files of at most this much text stay in memory."""


class Trace(NamedTuple):
    """An open trace.

    ``rows`` can be iterated any number of times, in order of arrival. ``format`` is ``azure-2023``,
    ``three-column``, ``csv``, ``jsonl`` or ``mooncake``. ``notices`` are one-line remarks about the file.
    ``num_without_max_tokens`` rows say nothing of the user's limit. Without arrivals all times are 0.
    """

    path: str
    format: str
    rows: Iterable[TraceRow]
    num_rows: int
    notices: tuple[str, ...]
    num_without_max_tokens: int
    has_parents: bool
    has_arrivals: bool = True


def open_trace(path: str, held_chars: int = HELD_CHARS) -> Trace:
    """Opens a trace, plain or gzip; raises TraceError. A longer text than ``held_chars`` is not held."""
    header = read_header(path)
    layout = detect(path, header)
    scan = _Scan(path, header, layout, held_chars)
    if scan.columns is None and not scan.in_order:
        scan = _Scan(path, header, layout, maxsize)
    if not scan.num_rows:
        raise TraceError(f"{path}: no rows; give a trace with at least one row")
    scan.arrange()
    disorder = () if scan.in_order else ("rows were not in order of arrival: sorted",)
    return Trace(
        path=path,
        format=layout.format.name,
        rows=_Reread(path, header, layout) if scan.columns is None else scan.columns,
        num_rows=scan.num_rows,
        notices=header.notices + layout.notices + disorder,
        num_without_max_tokens=scan.num_without_max_tokens,
        has_parents=scan.has_parents,
        has_arrivals=layout.has_arrivals,
    )


class _Reread:
    """Rows of a file in order of arrival, parsed again each time."""

    def __init__(self, path: str, header: Header, layout: Layout) -> None:
        self._path, self._header, self._layout = path, header, layout

    def __iter__(self) -> Iterator[TraceRow]:
        origin_s: float | None = None
        for _, block in _blocks(self._path, self._header, self._layout):
            times = block.arrival_s
            if self._layout.format is AZURE:
                origin_s = times[0] if origin_s is None else origin_s
                times = since(times, origin_s)
            yield from rows_of(times, block.prompt_tokens, block.output_tokens, block.extras)


class _Scan:
    """The first pass over a file: checks every row, and holds the columns while the text is short enough."""

    def __init__(self, path: str, header: Header, layout: Layout, held_chars: int) -> None:
        self._path, self._header, self._layout = path, header, layout
        self.columns: Columns | None = Columns()
        self.in_order = True
        self.num_rows = 0
        self.num_without_max_tokens = 0
        self.has_parents = False
        self._last_s = 0.0
        self._orphan: int | None = None
        num_chars = 0
        for num_block_chars, block in _blocks(path, header, layout):
            num_chars += num_block_chars
            if num_chars > held_chars:
                self.columns = None
            self._look_at(block)
            if self.columns is not None:
                self.columns.extend(block)
            elif not self.in_order:
                return

    def _look_at(self, block: Block) -> None:
        times = block.arrival_s
        if self.in_order:
            first = self.num_rows == 0 or self._last_s <= times[0]
            self.in_order = first and all(map(le, times, islice(times, 1, None)))
            self._last_s = times[-1]
        limits = block.extras.get("max_tokens")
        self.num_without_max_tokens += len(times) if limits is None else limits.count(None)
        parents = cast("Sequence[int | None]", block.extras.get("parent_id", ()))
        if self._orphan is None:
            self._orphan = _first_orphan(parents, self.num_rows)
        self.has_parents = self.has_parents or any(parent is not None for parent in parents)
        self.num_rows += len(times)

    def arrange(self) -> None:
        """Brings rows into their final order and times; raises TraceError for a parent that is too late."""
        orphan = self._orphan
        if not self.in_order and self.columns is not None:
            order = self.columns.sort()
            late = _first_orphan(self.columns.parents, 0)
            orphan = None if late is None else order[late]
        if orphan is not None:
            line = line_of_row(self._path, _last_header_line(self._header, self._layout), orphan)
            raise TraceError(
                f"{self._path}, line {line}, column parent_id: names no row that arrives earlier; "
                "give the number of one, the first row of the file being 0"
            )
        if self.columns is not None and self._layout.format is AZURE:
            self.columns.start_at_zero()


def _blocks(path: str, header: Header, layout: Layout) -> Iterator[tuple[int, Block]]:
    """Length of the text and columns of each block of rows."""
    parser = Parser(path, layout)
    for lines in read_lines(path, _last_header_line(header, layout)):
        block = parser.parse(lines)
        if block.arrival_s:
            yield sum(map(len, lines.texts)), block


def _last_header_line(header: Header, layout: Layout) -> int:
    return header.line - 1 if layout.is_json else header.line


def _first_orphan(parents: Sequence[int | None], first_row: int) -> int | None:
    """Number of the first row whose parent is not an earlier one."""
    for row, parent in enumerate(parents, start=first_row):
        if parent is not None and parent >= row:
            return row
    return None
