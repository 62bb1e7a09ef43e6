"""Blocks of lines to columns: whole columns at a time, and row by row where a block has something out of the
way.

The quick way either gives the columns or an exception that says nothing; the careful way then finds the row
and column to blame, or finds that all is well (blank lines, ``12.0`` for 12) and gives the columns itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan
from typing import NamedTuple, cast

from policies.core.errors import TraceError
from policies.core.request import Segments
from traces.workload import fields
from traces.workload.clock import Clock
from traces.workload.formats import AZURE, MOONCAKE, OPTIONAL, Layout
from traces.workload.lengths import MAX_TOKENS
from traces.workload.textfile import Lines

_OPTIONAL_CONVERTERS: dict[str, fields.Converter] = {
    "max_tokens": fields.optional_tokens,
    "priority": fields.priority,
    "client_id": fields.name,
    "session_id": fields.name,
    "parent_id": fields.parent,
    "segments": fields.segments,
    "hash_ids": fields.hash_ids,
    "abort_after_s": fields.patience,
    "slo_ttft_s": fields.limit,
    "slo_tpot_s": fields.limit,
}

_LOOK_CLOSER = (ValueError, TypeError, IndexError, KeyError, OverflowError, AttributeError, RecursionError)
"""What the quick way may raise on a value that is no text or number as it should be."""


class Block(NamedTuple):
    """Columns of consecutive rows, equally long; ``extras`` holds the optional ones that the rows have."""

    arrival_s: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    extras: dict[str, list[object]]


class Parser:
    """Parses the rows of one file, in one pass: Azure times count from the first minute seen."""

    def __init__(self, path: str, layout: Layout) -> None:
        self._path = path
        self._layout = layout
        self._clock = Clock() if layout.format is AZURE else None
        self._in_milliseconds = layout.format is MOONCAKE
        times = fields.milliseconds if self._in_milliseconds else fields.seconds
        arrival, *lengths = layout.format.required
        required: dict[str, fields.Converter] = dict.fromkeys(lengths, fields.tokens)
        if layout.has_arrivals:
            required = {arrival: times if self._clock is None else self._clock.one, **required}
        self._required = required
        optional = {name: _OPTIONAL_CONVERTERS[name] for name in layout.format.optional}
        self._converters: dict[str, fields.Converter] = {**required, **optional}

    def parse(self, lines: Lines) -> Block:
        """The columns of the rows in ``lines``; raises TraceError that names the line, column and value."""
        try:
            texts = lines.texts
            return self._quick(_json_columns(texts) if self._layout.is_json else self._csv_columns(texts))
        except _LOOK_CLOSER:
            return self._careful(lines)

    def _csv_columns(self, texts: list[str]) -> dict[str, Sequence[object]]:
        width, places = self._layout.width, self._layout.places
        text = "".join(texts)
        if '"' not in text:
            # Line ends become cells of their own: where every one is in its place, every row has its width.
            # This is three times as fast as the csv module, and as right where nothing is quoted.
            cells = text.removesuffix("\n").replace("\n", ",\n,").split(",")
            if (
                cells[width :: width + 1].count("\n") == len(texts) - 1
                and len(cells) == (width + 1) * len(texts) - 1
            ):
                return {name: cells[place :: width + 1] for name, place in places.items()}
        return self._quoted_columns(texts)

    def _quoted_columns(self, texts: list[str]) -> dict[str, Sequence[object]]:
        import csv

        try:
            rows = list(csv.reader(texts, strict=True))
        except csv.Error:
            raise ValueError from None
        if len(rows) != len(texts):  # a quoted line end
            raise ValueError
        columns = list(zip(*rows, strict=True))
        if len(columns) != self._layout.width:
            raise ValueError
        return {name: columns[place] for name, place in self._layout.places.items()}

    def _quick(self, columns: Mapping[str, Sequence[object]]) -> Block:
        arrival, prompt, output = self._layout.format.required
        prompt_tokens = _tokens(columns[prompt])
        if not self._layout.has_arrivals and arrival in columns:
            raise ValueError
        arrival_s = self._times(columns[arrival]) if self._layout.has_arrivals else [0.0] * len(prompt_tokens)
        extras = {
            name: list(map(self._converters[name], columns[name]))
            for name in self._layout.format.optional
            if name in columns
        }
        for parts, num_tokens in zip(extras.get("segments", ()), prompt_tokens, strict=False):
            fields.check_segments(cast(Segments, parts), num_tokens)
        if "hash_ids" in extras:
            ids = cast("Iterable[tuple[int, ...]]", extras.pop("hash_ids"))
            extras["segments"] = list(map(fields.block_segments, ids, prompt_tokens))
        return Block(arrival_s, prompt_tokens, _tokens(columns[output]), extras)

    def _times(self, values: Sequence[object]) -> list[float]:
        if self._clock is not None:
            return self._clock.many(cast("Sequence[str]", values))
        times = _seconds(values)
        return [time / 1e3 for time in times] if self._in_milliseconds else times

    def _careful(self, lines: Lines) -> Block:
        rows = [self._converted(number, row) for number, row in self._rows(lines)]
        arrival, prompt, output = ([row.get(name, 0.0) for row in rows] for name in self._layout.format.required)
        present = [name for name in OPTIONAL if any(name in row for row in rows)]
        extras = {name: [row.get(name, _OPTIONAL_CONVERTERS[name](None)) for row in rows] for name in present}
        return Block(
            cast("list[float]", arrival), cast("list[int]", prompt), cast("list[int]", output), extras
        )

    def _rows(self, lines: Lines) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Line number and raw values of each row, blank lines left out."""
        for number, text in enumerate(lines.texts, start=lines.first):
            if text.strip():
                is_json = self._layout.is_json
                yield (
                    number,
                    json_object(self._path, number, text) if is_json else self._csv_row(number, text),
                )

    def _csv_row(self, number: int, text: str) -> Mapping[str, object]:
        import csv

        try:
            row = next(csv.reader([text], strict=True))
        except csv.Error as error:
            raise TraceError(f"{self._path}, line {number}: no valid CSV ({error}); mend the line") from None
        if len(row) != self._layout.width:
            raise TraceError(
                f"{self._path}, line {number}: {len(row)} fields where the header has {self._layout.width}; "
                "mend the line (the file may be cut off)"
            )
        return {name: row[place] for name, place in self._layout.places.items()}

    def _converted(self, number: int, row: Mapping[str, object]) -> dict[str, object]:
        """The values of one row; raises TraceError for the first that is wrong."""
        values: dict[str, object] = {}
        arrival = self._layout.format.required[0]
        if arrival in row and not self._layout.has_arrivals:
            raise TraceError(
                f"{self._path}, line {number}: has {arrival}, which the first row lacks; give it to all rows or to none"
            )
        for name, convert in self._converters.items():
            if name not in row:
                if name in self._required:
                    raise TraceError(
                        f"{self._path}, line {number}: column {name} is missing; add it to the line"
                    )
                continue
            try:
                values[name] = value = convert(row[name])
                prompt_tokens = cast(int, values.get(self._layout.format.required[1]))
                if name == "segments":
                    fields.check_segments(cast(Segments, value), prompt_tokens)
                if name == "hash_ids":
                    values["segments"] = fields.block_segments(cast("tuple[int, ...]", value), prompt_tokens)
            except ValueError as error:
                raise TraceError(
                    f"{self._path}, line {number}, column {name}: {_shown(row[name])} {error}"
                ) from None
        return values


def json_object(path: str, number: int, text: str) -> dict[str, object]:
    """The object on one line of a JSON lines file; raises TraceError."""
    from policies.json_text import parse_json

    try:
        value = parse_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise TraceError(
            f"{path}, line {number}: no JSON object; write one object a line (the file may be cut off)"
        )
    return value


def _json_columns(texts: list[str]) -> dict[str, Sequence[object]]:
    """Columns by name; None where a row lacks one that another row has."""
    import json

    rows = list(map(json.loads, texts))
    names = set().union(*rows)
    return {name: [row.get(name) for row in rows] for name in names}


def _seconds(values: Sequence[object]) -> list[float]:
    """Quick form of ``fields.seconds`` for a column; raises any of _LOOK_CLOSER."""
    if not set(map(type, values)) <= {str, int, float}:
        raise ValueError
    times = list(map(float, cast("Sequence[str]", values)))
    if min(times) < 0 or not max(times) <= fields.MAX_SECONDS or isnan(sum(times)):  # the sum of any nan is nan
        raise ValueError
    return times


def _tokens(values: Sequence[object]) -> list[int]:
    """Quick form of ``fields.tokens`` for a column; raises any of _LOOK_CLOSER."""
    # int() would cut a JSON number such as 3.7 and take true for 1.
    if not set(map(type, values)) <= {str, int}:
        raise ValueError
    counts = list(map(int, cast("Sequence[str]", values)))
    if min(counts) < 1 or max(counts) > MAX_TOKENS:
        raise ValueError
    return counts


def _shown(value: object) -> str:
    """A value in a message, of a reasonable length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
