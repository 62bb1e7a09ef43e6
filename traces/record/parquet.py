"""The run record as Parquet files, for runs that people read with pandas. Needs pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from policies.core.errors import ConfigError, closest
from traces.record.columns import RequestTable, RowsToColumns, StallTable, StepTable, flatten

Level = Literal["requests", "steps", "tokens"]
LEVELS = ("requests", "steps", "tokens")
FILES: dict[str, tuple[str, ...]] = {
    "requests": ("requests",),
    "steps": ("requests", "steps", "stalls"),
    "tokens": ("requests", "steps", "stalls", "segments"),
}
"""Tables of each level."""

_STRINGS = ["limited_by", "reason", "client_id", "cause"]


class ParquetSink(RowsToColumns):
    """Writes ``requests.parquet`` and, by level, ``steps.parquet`` and ``stalls.parquet`` (steps),
    ``segments.parquet`` (tokens: one row a decode segment, with the request's id) into ``folder``; a row
    group a batch. A file has its name when it is complete, and ``.part`` behind it until then.

    Raises ConfigError for an unknown level. A level without rows of a kind leaves out that file.
    """

    def __init__(self, folder: Path | str, level: str = "requests") -> None:
        if level not in LEVELS:
            raise ConfigError(
                f"sim.record = {level!r}: use one of {', '.join(LEVELS)}{closest(level, LEVELS)}"
            )
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files = FILES[level]
        self._writers: dict[str, Any] = {}

    def step_table(self, table: StepTable) -> None:
        """Write a batch of steps."""
        if "steps" in self._files:
            others = {"limited_by": table.limited_by, "residues": table.residues}
            self._write("steps", {**table.numbers, **others})

    def request_table(self, table: RequestTable) -> None:
        """Write a batch of requests."""
        self._write("requests", {**table.numbers, "reason": table.reason, "client_id": table.client_id})
        if "segments" in self._files:
            self._write("segments", segment_columns(table))

    def stall_table(self, table: StallTable) -> None:
        """Write a batch of stalls."""
        if "stalls" in self._files:
            self._write("stalls", {"gap_s": table.gap_s, "num_gaps": table.num_gaps, "cause": table.cause})

    def close(self) -> None:
        """Complete the files."""
        for name, writer in self._writers.items():
            writer.close()
            path = self._folder / f"{name}.parquet"
            _part(path).replace(path)
        self._writers.clear()

    def _write(self, name: str, columns: dict[str, Any]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = [_arrow(pa, column, values) for column, values in columns.items()]
        table = pa.Table.from_arrays(arrays, names=list(columns))
        if name not in self._writers:
            # Times hardly repeat and nobody filters by range: dictionaries and statistics of numbers cost
            # time only.
            strings = [column for column in _STRINGS if column in columns]
            self._writers[name] = pq.ParquetWriter(
                _part(self._folder / f"{name}.parquet"), table.schema, use_dictionary=strings, write_statistics=False
            )
        self._writers[name].write_table(table)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _arrow(pa: Any, column: str, values: Any) -> Any:
    """An Arrow array over the memory of ``values``. Not through ``pa.array``, which imports pandas: half a
    second."""
    if column == "residues":
        flat, lengths = flatten(values)
        parts = [_numbers(pa, flat)]
        return pa.ListArray.from_buffers(
            pa.list_(pa.int32()), len(values), [None, _ends(pa, lengths)], children=parts
        )
    if column in _STRINGS:
        codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
        indices = _numbers(pa, np.fromiter(map(codes.__getitem__, values), np.int32, len(values)))
        return pa.DictionaryArray.from_arrays(indices, _strings(pa, list(codes)))
    return _numbers(pa, np.ascontiguousarray(values))


def _numbers(pa: Any, values: NDArray[Any]) -> Any:
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _strings(pa: Any, values: list[str]) -> Any:
    encoded = [value.encode() for value in values]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return pa.StringArray.from_buffers(len(values), _ends(pa, lengths), pa.py_buffer(b"".join(encoded)))


def _ends(pa: Any, lengths: NDArray[np.int64]) -> Any:
    return pa.py_buffer(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))


def segment_columns(table: RequestTable) -> dict[str, Any]:
    """The decode segments of a batch of requests, one a row: id, first_token_s, step, steps."""
    lengths = np.fromiter(map(len, table.segments), np.int64, len(table))
    rows = [segment for segments in table.segments for segment in segments]
    return {
        "id": np.repeat(table.numbers["id"], lengths),
        "first_token_s": np.array([row[0] for row in rows], np.float64),
        "step": np.array([row[1] for row in rows], np.int64),
        "steps": np.array([row[2] for row in rows], np.int64),
    }
