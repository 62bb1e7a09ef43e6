"""The persistent batch table on the host: patched by the deltas of plans, read out as the ragged arrays of a step.

A request keeps one row from its first join to its end, also while it is preempted or swapped out, since its tokens lie
in that row of ``tokens_RP`` on the device. Rows say nothing of the order of the batch, which is the policy's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.core.errors import ContractError
from policies.core.plan import Chunk, Decode, Grant, Idle, StepPlan
from policies.core.request import Request, RequestId

Ints = NDArray[np.int64]
Words = NDArray[np.int32]

PromptOf = Callable[[Request], Ints]
"""The token ids of a request's prompt."""

MOST_BLOCK_TOKENS: Final = 128
"""Tokens of the largest block that the kernels know."""

_NO_INTS: Final[Ints] = np.zeros(0, np.int64)
_NO_TABLES: Final[Words] = np.zeros((0, 0), np.int32)


def physical_block_size(block_size: int) -> int:
    """Tokens of a block in memory: the largest power of two up to 128 that divides the policy's block, so that a slot
    of any length is a run of blocks."""
    return min(block_size & -block_size, MOST_BLOCK_TOKENS)


def columns_for(max_model_len: int, tokens_past_length: int) -> int:
    """P of ``tokens_RP``: every token that a request can have, and a place for what nobody needs."""
    return max_model_len + max(tokens_past_length, 0) + 1


def physical_blocks(blocks: Sequence[int], split: int) -> Ints:
    """The blocks in memory of the policy's blocks, each of which is a run of ``split``."""
    ids = np.array(blocks, np.int64)
    return ids if split == 1 else (ids[:, None] * split + np.arange(split)).ravel()


class StepArrays(NamedTuple):
    """The arrays of a ``StepBatch`` on the host (letters and meanings are its), and the N tokens of prompts that the
    device does not have yet: ``new_ids_N`` go to ``tokens_RP[new_rows_N, new_positions_N]`` before the step.

    ``emit_ids`` names the requests of the E tokens to be sampled.
    """

    rows_T: Ints
    positions_T: Ints
    slots_T: Ints
    emit_E: Ints
    emit_rows_E: Ints
    emit_positions_E: Ints
    new_rows_N: Ints
    new_positions_N: Ints
    new_ids_N: Ints
    tables_BM: Words
    contexts_B: Words
    cu_C1: Words
    starts_C: Words
    chunk_tables_CM: Words
    num_decodes: int
    max_chunk_tokens: int
    emit_ids: Sequence[RequestId]


class _Chunks(NamedTuple):
    """The chunks of a step as arrays over chunks (C) and over their tokens (Q)."""

    rows_Q: Ints
    positions_Q: Ints
    rows_C: Ints
    starts_C: Ints
    ends_C: Ints
    cu_C1: Ints
    emitting: Ints


_NO_CHUNKS: Final = _Chunks(_NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, np.zeros(1, np.int64), _NO_INTS)


class BatchTable:
    """Block tables, lengths and row numbers of the requests that run.

    ``prompt_of`` is asked when a request first joins. ``num_columns`` is P of ``tokens_RP``, whose last column takes
    what nobody needs. ``num_rows`` grows by doubling when more requests hold a row than there are.
    """

    def __init__(
        self,
        *,
        block_size: int,
        max_model_len: int,
        tokens_past_length: int,
        num_rows: int,
        prompt_of: PromptOf,
    ) -> None:
        self.block_size = physical_block_size(block_size)
        self.split = block_size // self.block_size
        self.num_columns = num_columns = columns_for(max_model_len, tokens_past_length)
        self.num_rows = num_rows
        self._max_model_len = max_model_len
        self._prompt_of = prompt_of
        width = -(-num_columns // self.block_size) + self.split
        self._tables: Words = np.zeros((num_rows, width), np.int32)
        self._num_blocks: Ints = np.zeros(num_rows, np.int64)
        self._computed: Ints = np.zeros(num_rows, np.int64)
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._requests: dict[RequestId, Request] = {}
        self._rows: dict[RequestId, int] = {}
        self._in_batch: set[RequestId] = set()
        self._ended: set[RequestId] = set()
        self._decoding: dict[RequestId, int] = {}
        self._decode_order: tuple[list[RequestId], Ints] | None = None
        self._new: list[tuple[int, Ints]] = []
        self._numbers = np.arange(num_rows)

    def row_of(self, request_id: RequestId) -> int:
        """The row of a request that has joined and not ended."""
        return self._rows[request_id]

    # -- deltas ------------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """A request that may join from now on."""
        self._requests[request.id] = request

    def end(self, request_id: RequestId) -> None:
        """A request ended; its row is free once it has left the batch, where it may still hold a slot."""
        if request_id in self._in_batch:
            self._ended.add(request_id)
        else:
            self._free(request_id)

    def apply(self, plan: StepPlan | Idle) -> None:
        """Book who left, who joined, and what grew."""
        for request_id in plan.leaves:
            self._leave(request_id)
        if isinstance(plan, Idle):
            return
        for request_id, mode in plan.preempted:
            if mode == "recompute":
                self._computed[self._rows[request_id]] = 0
        if plan.joins:
            self._join(plan.joins, plan.chunks)
        self.extend(plan.grants)
        for request_id, start, blocks in plan.remaps:
            row, low = self._rows[request_id], start * self.split
            ids = physical_blocks(blocks, self.split)
            self._tables[row, low : low + len(ids)] = ids

    def extend(self, grants: Iterable[Grant]) -> None:
        """Append granted blocks."""
        for request_id, blocks in grants:
            row = self._rows[request_id]
            self._append(row, int(self._num_blocks[row]), blocks)

    def _leave(self, request_id: RequestId) -> None:
        self._in_batch.discard(request_id)
        if self._decoding.pop(request_id, None) is not None:
            self._decode_order = None
        if request_id in self._ended:
            self._ended.remove(request_id)
            self._free(request_id)

    def _join(self, joins: Sequence[Grant], chunks: Sequence[Chunk]) -> None:
        prompts = {chunk.id for chunk in chunks}
        for request_id, blocks in joins:
            row = self._rows.get(request_id)
            if row is None:
                row = self._take_row(request_id)
            self._append(row, 0, blocks)
            self._in_batch.add(request_id)
            if request_id not in prompts:
                self._decoding[request_id] = row
                self._decode_order = None

    def _append(self, row: int, start: int, blocks: Sequence[int]) -> None:
        ids = blocks if self.split == 1 else physical_blocks(blocks, self.split)
        end = start + len(ids)
        if end > self._tables.shape[1]:
            more = np.zeros((self.num_rows, max(end, 2 * self._tables.shape[1])), np.int32)
            more[:, : self._tables.shape[1]] = self._tables
            self._tables = more
        self._tables[row, start:end] = ids
        self._num_blocks[row] = end

    def _take_row(self, request_id: RequestId) -> int:
        if not self._free_rows:
            self._add_rows()
        row = self._rows[request_id] = self._free_rows.pop()
        self._computed[row] = 0
        self._new.append((row, self._prompt_of(self._requests[request_id])))
        return row

    def _add_rows(self) -> None:
        more = self.num_rows
        self._free_rows = list(range(self.num_rows + more - 1, self.num_rows - 1, -1))
        self.num_rows += more
        self._tables = np.concatenate((self._tables, np.zeros_like(self._tables)))
        self._num_blocks = np.concatenate((self._num_blocks, np.zeros(more, np.int64)))
        self._computed = np.concatenate((self._computed, np.zeros(more, np.int64)))

    def _free(self, request_id: RequestId) -> None:
        self._requests.pop(request_id, None)
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._new = [item for item in self._new if item[0] != row]
            self._free_rows.append(row)

    # -- steps -------------------------------------------------------------------------------------------------------

    def build(self, plan: StepPlan) -> StepArrays:
        """The arrays of the next step of a plan that has been applied; its tokens count as computed from now on."""
        ids, rows_B = self._decodes(plan.decode)
        positions_B, slots_B = self._book_decodes(ids, rows_B)
        next_B = positions_B + 1
        emit_ids, emit_E, emit_rows_E, emit_positions_E = ids, self._arange(len(rows_B)), rows_B, next_B
        rows_T, positions_T, slots_T = rows_B, positions_B, slots_B
        chunks = _NO_CHUNKS
        if plan.chunks:
            chunks = self._book_chunks(plan.chunks)
            size, positions_Q, emitting = self.block_size, chunks.positions_Q, chunks.emitting
            slots_Q = self._tables[chunks.rows_Q, positions_Q // size] * np.int64(size) + positions_Q % size
            rows_T = np.concatenate((rows_B, chunks.rows_Q))
            positions_T = np.concatenate((positions_B, positions_Q))
            slots_T = np.concatenate((slots_B, slots_Q))
            emit_ids = [*ids, *(plan.chunks[place].id for place in emitting.tolist())]
            emit_E = np.concatenate((emit_E, (len(rows_B) + chunks.cu_C1[1:] - 1)[emitting]))
            emit_rows_E = np.concatenate((rows_B, chunks.rows_C[emitting]))
            emit_positions_E = np.concatenate((next_B, chunks.ends_C[emitting]))
        new_rows_N, new_positions_N, new_ids_N = self._take_new()
        return StepArrays(
            rows_T=rows_T,
            positions_T=positions_T,
            slots_T=slots_T,
            emit_E=emit_E,
            emit_rows_E=emit_rows_E,
            emit_positions_E=np.minimum(emit_positions_E, self.num_columns - 1),
            new_rows_N=new_rows_N,
            new_positions_N=new_positions_N,
            new_ids_N=new_ids_N,
            tables_BM=self._read(rows_B, next_B),
            contexts_B=next_B.astype(np.int32),
            cu_C1=chunks.cu_C1.astype(np.int32),
            starts_C=chunks.starts_C.astype(np.int32),
            chunk_tables_CM=self._read(chunks.rows_C, chunks.ends_C),
            num_decodes=len(rows_B),
            max_chunk_tokens=int((chunks.ends_C - chunks.starts_C).max(initial=0)),
            emit_ids=emit_ids,
        )

    def _arange(self, count: int) -> Ints:
        if count > len(self._numbers):
            self._numbers = np.arange(2 * count)
        return self._numbers[:count]

    def _decodes(self, decode: Decode | tuple[RequestId, ...]) -> tuple[Sequence[RequestId], Ints]:
        """The requests that a step decodes, and their rows."""
        if decode is Decode.NONE:
            return (), _NO_INTS
        if not isinstance(decode, Decode):
            rows = self._rows
            return decode, np.array([rows[key] for key in decode], np.int64)
        if self._decode_order is None:
            decoding = self._decoding
            self._decode_order = list(decoding), np.fromiter(decoding.values(), np.int64, len(decoding))
        return self._decode_order

    def _book_decodes(self, ids: Sequence[RequestId], rows_B: Ints) -> tuple[Ints, Ints]:
        """Positions and slots of the tokens that decoding rows compute. A row that ended and holds its slot goes on
        until that is full, and then computes its last place again and again, which writes nothing."""
        size = self.block_size
        positions_B = self._computed[rows_B]
        self._computed[rows_B] += 1
        room_B = np.minimum(self._num_blocks[rows_B] * size, self._max_model_len)
        fits_B = positions_B < room_B
        if fits_B.all():
            blocks_B, offsets_B = np.divmod(positions_B, size)
            return positions_B, self._tables[rows_B, blocks_B] * np.int64(size) + offsets_B
        for place in np.flatnonzero(~fits_B).tolist():
            if ids[place] not in self._ended:
                raise _too_few(ids[place], int(room_B[place]), int(positions_B[place]) + 1)
        positions_B = np.minimum(positions_B, room_B - 1)
        slots_B = self._tables[rows_B, positions_B // size] * np.int64(size) + positions_B % size
        return positions_B, np.where(fits_B, slots_B, -1)

    def _book_chunks(self, chunks: Sequence[Chunk]) -> _Chunks:
        rows = self._rows
        rows_C = np.array([rows[chunk[0]] for chunk in chunks], np.int64)
        starts_C = np.array([chunk[1] for chunk in chunks], np.int64)
        lengths_C = np.array([chunk[2] for chunk in chunks], np.int64)
        ends_C = starts_C + lengths_C
        self._check_room(chunks, self._num_blocks[rows_C], ends_C)
        self._computed[rows_C] = ends_C
        cu_C1 = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths_C)))
        positions_Q = np.arange(cu_C1[-1]) + np.repeat(starts_C - cu_C1[:-1], lengths_C)
        emitting = [place for place, chunk in enumerate(chunks) if chunk[3]]
        for place in emitting:
            request_id = chunks[place][0]
            self._decoding[request_id] = rows[request_id]
            self._decode_order = None
        rows_Q = np.repeat(rows_C, lengths_C)
        return _Chunks(rows_Q, positions_Q, rows_C, starts_C, ends_C, cu_C1, np.array(emitting, np.int64))

    def _check_room(self, chunks: Sequence[Chunk], num_blocks_C: Ints, ends_C: Ints) -> None:
        if (ends_C > num_blocks_C * self.block_size).any():
            place = int(np.flatnonzero(ends_C > num_blocks_C * self.block_size)[0])
            raise _too_few(chunks[place].id, int(num_blocks_C[place]) * self.block_size, int(ends_C[place]))

    def _read(self, rows: Ints, ends: Ints) -> Words:
        """The tables of rows, as wide as the longest of them needs for ``ends`` tokens."""
        if not len(rows):
            return _NO_TABLES
        width = -(-int(ends.max()) // self.block_size)
        return np.take(self._tables[:, :width], rows, axis=0)

    def _take_new(self) -> tuple[Ints, Ints, Ints]:
        """Prompts that are to be sent to the device."""
        new, self._new = self._new, []
        if not new:
            return _NO_INTS, _NO_INTS, _NO_INTS
        lengths = [len(ids) for _, ids in new]
        rows = np.repeat(np.array([row for row, _ in new], np.int64), lengths)
        positions = np.concatenate([np.arange(length) for length in lengths])
        return rows, positions, np.concatenate([ids for _, ids in new])


def _too_few(request_id: RequestId, room: int, num_tokens: int) -> ContractError:
    return ContractError(f"request {request_id} has room for {room} tokens and computes its token {num_tokens}")
