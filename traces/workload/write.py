"""Rows to a file in one of our own formats, which the reader gives back as the very same rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from policies.core.errors import TraceError
from policies.core.request import Segments
from traces.workload.formats import OPTIONAL, OWN_CSV
from traces.workload.rows import TraceRow

ENDINGS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")


def check_ending(path: str) -> None:
    """Raises TraceError unless the name says which format is wanted."""
    if not path.endswith(ENDINGS):
        raise TraceError(f"{path}: end the name in {', '.join(ENDINGS)}, which says the format")


def write_trace(path: str, rows: Iterable[TraceRow]) -> int:
    """Write rows, which are gone through twice, to a new file; returns how many.

    Optional columns that no row needs are left out. Raises TraceError for a file that exists and for a name that CSV
    cannot hold.
    """
    check_ending(path)
    unused = set(OPTIONAL)
    for row in rows:
        unused -= {name for name in unused if getattr(row, name) != TraceRow._field_defaults[name]}
    names = (*OWN_CSV.required, *(name for name in OPTIONAL if name not in unused))
    with _new_file(path) as stream:
        if path.endswith((".csv", ".csv.gz")):
            return _write_csv(path, stream, names, rows)
        num_rows = 0
        for row in rows:
            values = {name: getattr(row, name) for name in names}
            kept = {name: value for name, value in values.items() if value != TraceRow._field_defaults.get(name)}
            stream.write(json.dumps(kept, ensure_ascii=False) + "\n")
            num_rows += 1
        return num_rows


def _write_csv(path: str, stream: TextIO, names: tuple[str, ...], rows: Iterable[TraceRow]) -> int:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    num_rows = 0
    for row in rows:
        values = [getattr(row, name) for name in names]
        if row.segments:
            values[names.index("segments")] = _segments_text(path, row.segments)
        if any(isinstance(value, str) and ("\n" in value or "\r" in value) for value in values):
            raise TraceError(f"{path}: a name holds a line end; write .jsonl")
        writer.writerow(["" if value is None or value == () else value for value in values])
        num_rows += 1
    return num_rows


def _segments_text(path: str, segments: Segments) -> str:
    if any("|" in key for key, _ in segments):
        raise TraceError(f"{path}: a segment's key holds a bar, which CSV cannot say; write .jsonl")
    return "|".join(f"{key}:{length}" for key, length in segments)


@contextmanager
def _new_file(path: str) -> Iterator[TextIO]:
    """A new text file, which is removed again if writing fails; the same rows give the same bytes, gzip too."""
    from gzip import GzipFile
    from io import TextIOWrapper
    from pathlib import Path

    try:
        raw = Path(path).open("xb")  # noqa: SIM115 (closed below)
    except FileExistsError:
        raise TraceError(f"{path}: exists; name a new file") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror}); name a file that you may write") from None
    try:
        with raw:
            packed = GzipFile("", "wb", fileobj=raw, mtime=0) if path.endswith(".gz") else raw
            with TextIOWrapper(packed, encoding="utf-8", newline="") as stream:
                yield stream
    except BaseException:
        Path(path).unlink()
        raise
