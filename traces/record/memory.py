"""The run record kept in memory, for runs that write no folder. Needs pandas when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from traces.record.columns import RequestTable, RowsToColumns, StallTable, StepTable
from traces.record.parquet import FILES, segment_columns
from traces.record.read import RunRecord

if TYPE_CHECKING:
    import pandas as pd


class MemorySink(RowsToColumns):
    """A ``RecordSink`` (and ``TableSink``) that keeps what ``ParquetSink`` would write at that level: about 130 bytes a
    request, and 200 a row of steps."""

    def __init__(self, level: str = "requests") -> None:
        self._tables: dict[str, list[dict[str, Any]]] = {name: [] for name in FILES[level]}

    def step_table(self, table: StepTable) -> None:
        """Keep a batch of steps."""
        if "steps" in self._tables:
            others = {"limited_by": table.limited_by, "residues": table.residues}
            self._tables["steps"].append({**table.numbers, **others})

    def request_table(self, table: RequestTable) -> None:
        """Keep a batch of requests."""
        columns = {**table.numbers, "reason": table.reason, "client_id": table.client_id}
        self._tables["requests"].append(columns)
        if "segments" in self._tables:
            self._tables["segments"].append(segment_columns(table))

    def stall_table(self, table: StallTable) -> None:
        """Keep a batch of stalls."""
        if "stalls" in self._tables:
            self._tables["stalls"].append({"gap_s": table.gap_s, "num_gaps": table.num_gaps, "cause": table.cause})

    def close(self) -> None:
        """Nothing is held open."""

    def record(self, summary: dict[str, Any]) -> RunRecord:
        """The tables, as ``read_run`` would give them."""
        frames = {name: _frame(parts) for name, parts in self._tables.items()}
        requests = frames["requests"]
        if requests is None:
            requests = _frame([_no_requests()])
        assert requests is not None
        steps, stalls, segments = (frames.get(name) for name in ("steps", "stalls", "segments"))
        return RunRecord(requests, steps, stalls, segments, summary)


def _no_requests() -> dict[str, Any]:
    table = RequestTable.of([])
    return {**table.numbers, "reason": [], "client_id": []}


def _frame(parts: Sequence[dict[str, Any]]) -> pd.DataFrame | None:
    """One table of the batches; None where there are none."""
    import pandas as pd

    if not parts:
        return None
    return pd.DataFrame({name: _joined([part[name] for part in parts]) for name in parts[0]})


def _joined(batches: list[Any]) -> Any:
    if isinstance(batches[0], np.ndarray):
        return np.concatenate(batches)
    return [value for batch in batches for value in batch]
