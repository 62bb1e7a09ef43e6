"""The run record as JSON lines, with the standard library alone: for the executor."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from policies.json_text import log_rows
from traces.record.schema import RequestRow, Stall, StepRow

_KINDS: dict[str, type[Any]] = {"step": StepRow, "request": RequestRow, "stall": Stall}


class JsonlSink:
    """A ``RecordSink`` that appends one object a row to ``path``, and flushes after each batch.

    ``row`` says what it is (step, request, stall); the other keys are the columns; a time that never was is
    null.
    """

    def __init__(self, path: Path | str) -> None:
        self._file = Path(path).open("w", encoding="utf-8", newline="\n")  # noqa: SIM115 (close closes it)

    def steps(self, rows: Collection[StepRow]) -> None:
        """Rows of steps."""
        self._write("step", rows)

    def requests(self, rows: Collection[RequestRow]) -> None:
        """Requests, in order of their end."""
        self._write("request", rows)

    def stalls(self, rows: Sequence[Stall]) -> None:
        """Irregular inter-token gaps."""
        self._write("stall", rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, kind: str, rows: Collection[tuple[Any, ...]]) -> None:
        if not rows:
            return
        names = ("row", *_KINDS[kind]._fields)
        for row in rows:
            self._file.write(_line(dict(zip(names, (kind, *row), strict=True))) + "\n")
        self._file.flush()


def read_jsonl(path: Path | str) -> Iterator[StepRow | RequestRow | Stall]:
    """The rows of a record written by ``JsonlSink``; the last one may be cut off by a kill, and is left out then.
    Raises UserError with the line of the first bad one."""
    for _, row in log_rows(path, "row of a run record", _row):
        yield row


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _line(values: dict[str, Any]) -> str:
    try:
        return _encode(values)
    except ValueError:
        return _encode(_without_nan(values))


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value else None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, tuple | list) else value


def _row(values: Any) -> Any:
    """The row of a line: null is NaN and a list is a tuple again."""
    row = _KINDS[values.pop("row")](**values)
    return row._make(float("nan") if value is None else _tuple(value) for value in row)


def _tuple(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(float("nan") if item is None else _tuple(item) for item in value)
    return value
