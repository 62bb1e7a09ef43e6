"""Reads a run folder back: pandas tables, the steps of quiet runs, and the time of every token. Needs
pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from policies.core.errors import UserError
from policies.json_text import read_json
from traces.record.columns import StepTable
from traces.record.expand import blocks_taken, expand
from traces.record.jsonl import read_jsonl
from traces.record.schema import RequestRow, Stall, StepRow

if TYPE_CHECKING:
    import pandas as pd

JSONL_NAME = "record.jsonl"
_SEGMENT_COLUMNS = ("id", "first_token_s", "step", "steps")
_TABLES: dict[str, tuple[str, ...]] = {
    "requests": tuple(name for name in RequestRow._fields if name != "segments"),
    "steps": StepRow._fields,
    "stalls": Stall._fields,
    "segments": _SEGMENT_COLUMNS,
}
"""Columns of each Parquet file."""

_NO_NUMBERS = ("reason", "client_id", "limited_by", "cause", "residues")


@dataclass(frozen=True)
class RunRecord:
    """Tables of one run, with the columns of traces/record/schema.py; None for a table the record level left
    out.

    ``segments`` has one row a decode segment (id, first_token_s, step, steps). ``summary`` is summary.json,
    if there.
    """

    requests: pd.DataFrame
    steps: pd.DataFrame | None
    stalls: pd.DataFrame | None
    segments: pd.DataFrame | None
    summary: dict[str, Any] | None

    @cached_property
    def decode_ends_s(self) -> NDArray[np.float64]:
        """End of each step in which decoding rows gained tokens; its place is the step's decode ordinal."""
        if self.steps is None:
            raise UserError("this record has no steps; run again with sim.record = tokens")
        table = expand_steps(self.steps)
        ends_s: NDArray[np.float64] = table["end_s"].to_numpy()[table["emitting"].to_numpy() > 0]
        return ends_s


def read_run(folder: Path | str) -> RunRecord:
    """Read what ``ParquetSink`` or ``JsonlSink`` (as ``record.jsonl``) left in a folder.

    Raises UserError where there is no record, or a file of it is damaged.
    """
    folder = Path(folder)
    summary_path = folder / "summary.json"
    summary = read_part(summary_path) if summary_path.exists() else None
    if (folder / "requests.parquet").exists():
        tables = [_parquet(folder / f"{name}.parquet", columns) for name, columns in _TABLES.items()]
    elif (folder / JSONL_NAME).exists():
        tables = _jsonl_tables(folder / JSONL_NAME)
    elif (folder / "requests.parquet.part").exists():
        raise UserError(f"{folder}: the run that writes it has not ended, or was killed; its tables are not complete")
    elif _is_empty(summary):
        raise UserError(f"{folder}: no request arrived before this run ended, so that there is nothing to show")
    else:
        raise UserError(
            f"{folder}: no requests.parquet and no {JSONL_NAME}; give a folder that --out has written"
        )
    requests, steps, stalls, segments = tables
    assert requests is not None
    return RunRecord(requests, steps, stalls, segments, summary)


def read_part(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run folder. Raises UserError if it is none, and OSError."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise damaged(path, str(error)) from None
    if not isinstance(content, dict):
        raise damaged(path, "no JSON object")
    return content


def damaged(path: Path, why: str) -> UserError:
    """Says that a file of a run folder is not what a run of this version leaves."""
    return UserError(f"{path}: not as a run of this version writes it ({why}); run again")


def _is_empty(summary: dict[str, Any] | None) -> bool:
    counts = None if summary is None else summary.get("requests")
    return isinstance(counts, dict) and counts.get("offered") == 0


def expand_steps(rows: pd.DataFrame | Sequence[StepRow]) -> pd.DataFrame:
    """One row a step. ``sum_context``, ``free_blocks`` and ``stored_tokens`` are those of each step, the
    chunks' emissions and tokens belong to the last step of a row, the bytes moved to its first."""
    import pandas as pd

    table = step_table(rows)
    steps = expand(table.numbers)
    index, last = steps.index, steps.is_last
    of_row = {name: steps.each(column) for name, column in table.numbers.items()}
    columns = {
        "step": of_row["step"] + index,
        "start_s": steps.start_s,
        "end_s": steps.end_s,
        **{name: of_row[name] for name in ("num_seqs", "num_tokens")},
        "sum_context": of_row["sum_context"] + index * of_row["num_seqs"],
        "emitting": of_row["emitting"],
        **{name: np.where(last, of_row[name], 0) for name in ("chunk_emits", "chunk_tokens")},
        **{name: of_row[name] for name in ("waiting", "running", "swapped")},
        "free_blocks": of_row["free_blocks"] - blocks_taken(table, steps),
        "stored_tokens": of_row["stored_tokens"] + index * of_row["emitting"],
        "moved_bytes": np.where(index == 0, of_row["moved_bytes"], 0),
        "limited_by": steps.each(np.array(table.limited_by, dtype=object)),
    }
    return pd.DataFrame(columns)


def token_times(record: RunRecord, request_id: int) -> NDArray[np.float64]:
    """Time at which each token of a request was computed, ascending. Needs a record at level tokens.

    Raises UserError where the record has no segments or does not know the request.
    """
    if record.segments is None:
        raise UserError("this record has no token times; run again with sim.record = tokens")
    if not (record.requests["id"] == request_id).any():
        raise UserError(
            f"request {request_id} is not in this record; ids are in the column id of its requests"
        )
    ends_s = record.decode_ends_s
    times: list[NDArray[np.float64]] = [np.empty(0)]
    mine = record.segments[record.segments["id"] == request_id]
    for first_token_s, step, steps in zip(mine["first_token_s"], mine["step"], mine["steps"], strict=True):
        # A segment that goes on after a swap or a pause has no token of its own.
        times += [np.array([first_token_s]), ends_s[step : step + steps]]
    joined = np.concatenate(times)
    return joined[~np.isnan(joined)]


def step_table(rows: pd.DataFrame | Sequence[StepRow]) -> StepTable:
    """Rows of steps as the columns that sinks take."""
    if isinstance(rows, Sequence):
        return StepTable.of(rows)
    others = ("limited_by", "residues")
    numbers = {str(name): rows[name].to_numpy() for name in rows.columns if name not in others}
    return StepTable(numbers, rows["limited_by"].tolist(), [tuple(row) for row in rows["residues"]])


def _parquet(path: Path, columns: Sequence[str]) -> pd.DataFrame | None:
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    if not path.exists():
        return None
    try:
        table = pd.read_parquet(path)
    except (ValueError, OSError):  # Arrow's own errors are among these
        raise damaged(path, "no Parquet file, or cut off") from None
    for name in columns:
        if name not in table:
            raise damaged(path, f"no column {name}")
        if name not in _NO_NUMBERS and not is_numeric_dtype(table[name]):
            raise damaged(path, f"column {name} holds no numbers")
    return table


def _jsonl_tables(path: Path) -> list[pd.DataFrame | None]:
    import pandas as pd

    rows: dict[type, list[Any]] = {RequestRow: [], StepRow: [], Stall: []}
    for row in read_jsonl(path):
        rows[type(row)].append(row)
    segments = [(row.id, *segment) for row in rows[RequestRow] for segment in row.segments]
    requests = pd.DataFrame(rows[RequestRow], columns=list(RequestRow._fields)).drop(columns="segments")
    others = [pd.DataFrame(rows[kind], columns=list(kind._fields)) for kind in (StepRow, Stall)]
    return [requests, *others, pd.DataFrame(segments, columns=list(_SEGMENT_COLUMNS))]
