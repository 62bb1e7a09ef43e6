"""Batches of record rows as the bytes that numpy reads, written field by field while a run goes on.

Compiled, a field costs a store; as a list of Python numbers it would be made, kept, converted and freed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, get_type_hints

from traces.record.live import Live
from traces.record.schema import RequestRow, StepRow

try:
    from librt.strings import BytesWriter, write_f64_le, write_i64_le
except ImportError:
    from traces.record.bytes_writer import BytesWriter, write_f64_le, write_i64_le  # type: ignore[assignment]

STEP_NUMBERS: Final = tuple(name for name in StepRow._fields if name not in ("limited_by", "residues"))
REQUEST_NUMBERS: Final = tuple(name for name in RequestRow._fields if name not in ("reason", "client_id", "segments"))
"""The columns that are packed, in order: int64 and float64, little-endian."""

_FORMATS: Final = {int: "q", float: "d"}


def _struct(row: type, names: tuple[str, ...]) -> struct.Struct:
    hints = get_type_hints(row)
    return struct.Struct("<" + "".join([_FORMATS[hints[name]] for name in names]))


_STEP: Final = _struct(StepRow, STEP_NUMBERS)
_REQUEST: Final = _struct(RequestRow, REQUEST_NUMBERS)


class StepRows:
    """A batch of ``StepRow``: ``packed`` numbers, and lists with one entry a row. Iterating makes the rows."""

    def __init__(self, packed: bytes, limited_by: list[str], residues: list[tuple[int, ...]]) -> None:
        self.packed, self.limited_by, self.residues = packed, limited_by, residues

    def __len__(self) -> int:
        return len(self.limited_by)

    def __contains__(self, row: object) -> bool:
        return row in list(self)

    def __iter__(self) -> Iterator[StepRow]:
        rows: list[StepRow] = []
        for place, numbers in enumerate(_STEP.iter_unpack(self.packed)):
            values: dict[str, Any] = dict(zip(STEP_NUMBERS, numbers, strict=True))
            rows.append(StepRow(limited_by=self.limited_by[place], residues=self.residues[place], **values))
        return iter(rows)


class RequestRows:
    """A batch of ``RequestRow``, likewise."""

    def __init__(
        self, packed: bytes, reason: list[str], client_id: list[str], segments: list[tuple[tuple[float, int, int], ...]]
    ) -> None:
        self.packed, self.reason, self.client_id, self.segments = packed, reason, client_id, segments

    def __len__(self) -> int:
        return len(self.reason)

    def __contains__(self, row: object) -> bool:
        return row in list(self)

    def __iter__(self) -> Iterator[RequestRow]:
        rows: list[RequestRow] = []
        for place, numbers in enumerate(_REQUEST.iter_unpack(self.packed)):
            values: dict[str, Any] = dict(zip(REQUEST_NUMBERS, numbers, strict=True))
            reason, client_id, segments = self.reason[place], self.client_id[place], self.segments[place]
            rows.append(RequestRow(reason=reason, client_id=client_id, segments=segments, **values))
        return iter(rows)


class StepPacker:
    """Rows of steps; the last one may still grow, in ``steps`` and ``end_s``."""

    def __init__(self) -> None:
        self._writer = BytesWriter()
        self._limited_by: list[str] = []
        self._residues: list[tuple[int, ...]] = []
        self._is_open = False
        self.num_closed = 0
        self.step = self.steps = 0
        self.start_s = self.end_s = 0.0
        self.first = -1
        self.anchor_s = self.base_s = self.slope_s = 0.0
        self.anchor_context = self.num_seqs = self.num_tokens = self.sum_context = 0
        self.emitting = self.irregular = self.chunk_emits = self.chunk_tokens = 0
        self.previous_emit_s = 0.0
        self.waiting = self.running = self.swapped = self.free_blocks = self.stored_tokens = self.moved_bytes = 0
        self.limited_by = ""
        self.phase = 0
        self.residues: tuple[int, ...] = ()

    def begin(self) -> None:
        """What the fields hold is a whole row, and from now on they are those of the next one."""
        if self._is_open:
            self._close()
        self._is_open = True

    def take(self, *, last: bool) -> StepRows:
        """The rows there are, and forget them; the one that may still grow only if it is the ``last``."""
        if last and self._is_open:
            self._close()
            self._is_open = False
        rows = StepRows(self._writer.getvalue(), self._limited_by, self._residues)
        self._writer, self._limited_by, self._residues = BytesWriter(), [], []
        self.num_closed = 0
        return rows

    def _close(self) -> None:
        """Write the fields in the order of ``STEP_NUMBERS``."""
        to = self._writer
        write_i64_le(to, self.step)
        write_i64_le(to, self.steps)
        write_f64_le(to, self.start_s)
        write_f64_le(to, self.end_s)
        write_i64_le(to, self.first)
        write_f64_le(to, self.anchor_s)
        write_f64_le(to, self.base_s)
        write_f64_le(to, self.slope_s)
        write_i64_le(to, self.anchor_context)
        write_i64_le(to, self.num_seqs)
        write_i64_le(to, self.num_tokens)
        write_i64_le(to, self.sum_context)
        write_i64_le(to, self.emitting)
        write_i64_le(to, self.irregular)
        write_i64_le(to, self.chunk_emits)
        write_i64_le(to, self.chunk_tokens)
        write_f64_le(to, self.previous_emit_s)
        write_i64_le(to, self.waiting)
        write_i64_le(to, self.running)
        write_i64_le(to, self.swapped)
        write_i64_le(to, self.free_blocks)
        write_i64_le(to, self.stored_tokens)
        write_i64_le(to, self.moved_bytes)
        write_i64_le(to, self.phase)
        self._limited_by.append(self.limited_by)
        self._residues.append(self.residues)
        self.num_closed += 1


class RequestPacker:
    """Rows of requests that have ended."""

    def __init__(self) -> None:
        self._writer = BytesWriter()
        self._reason: list[str] = []
        self._client_id: list[str] = []
        self._segments: list[tuple[tuple[float, int, int], ...]] = []
        self.num_rows = 0

    def add(self, live: Live, finish_s: float, reason: str, output_tokens: int) -> None:
        """The account of a request is complete."""
        to = self._writer
        request_id, arrival_s, prompt_tokens, _, priority, client_id = live.request[:6]
        write_i64_le(to, request_id)
        write_f64_le(to, arrival_s)
        write_f64_le(to, live.first_scheduled_s)
        write_f64_le(to, live.first_token_s)
        write_f64_le(to, finish_s)
        write_i64_le(to, prompt_tokens)
        write_i64_le(to, output_tokens)
        write_i64_le(to, priority)
        write_i64_le(to, live.recomputes)
        write_i64_le(to, live.swaps)
        write_i64_le(to, live.recomputed)
        write_f64_le(to, live.waited_s)
        write_i64_le(to, live.hit_new)
        write_i64_le(to, live.hit_resumed)
        self._reason.append(reason)
        self._client_id.append(client_id)
        self._segments.append(live.segments)
        self.num_rows += 1

    def take(self) -> RequestRows:
        """The rows there are, and forget them."""
        rows = RequestRows(self._writer.getvalue(), self._reason, self._client_id, self._segments)
        self._writer, self._reason, self._client_id, self._segments = BytesWriter(), [], [], []
        self.num_rows = 0
        return rows
