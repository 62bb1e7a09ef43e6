"""The arrays of a step on their way to the device: one buffer, one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from gpu_backend.batch import StepArrays
from gpu_backend.step_batch import StepBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_ALIGNMENT: Final = 16
"""Bytes; what starts there can be loaded 128 bits at a time."""


class Uploaded(NamedTuple):
    """A step on the device: its batch, the tokens of prompts that are new there (N of them), and seeds of draws."""

    batch: StepBatch
    new_rows_N: Tensor
    new_positions_N: Tensor
    new_ids_N: Tensor
    seeds_E: Tensor


class _Buffer:
    """Host memory and its views as numbers."""

    def __init__(self, num_bytes: int, *, pinned: bool) -> None:
        self.bytes = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        raw = self.bytes.numpy()
        self.longs, self.words = raw.view(np.int64), raw.view(np.int32)


class Uploader:
    """Copies the arrays of steps to a device through ``depth`` pinned buffers in turn: an earlier copy may still run
    while the next one is filled. On the CPU there is nothing to copy."""

    def __init__(self, device: torch.device, depth: int) -> None:
        self._device = device
        self._pins = device.type == "cuda"
        self._buffers = [_Buffer(0, pinned=False)] * depth
        self._turn = 0
        self._no_longs = torch.zeros(0, dtype=torch.int64, device=device)
        self._no_words = torch.zeros(0, dtype=torch.int32, device=device)

    def upload(self, arrays: StepArrays, seeds_E: NDArray[np.int64]) -> Uploaded:
        """Send everything, without waiting for it."""
        a = arrays
        per_token = (a.rows_T, a.positions_T, a.slots_T, a.emit_E, a.emit_rows_E, a.emit_positions_E)
        longs = (*per_token, a.new_rows_N, a.new_positions_N, a.new_ids_N, seeds_E)
        words = (a.tables_BM, a.contexts_B, a.cu_C1, a.starts_C, a.chunk_tables_CM)
        middle = sum([_padded(array.nbytes) for array in longs])
        end = middle + sum([_padded(array.nbytes) for array in words])
        buffer = self._buffer(end)
        _fill(buffer.longs, 0, longs)
        _fill(buffer.words, middle // 4, words)
        there = buffer.bytes[:end]
        if self._pins:
            there = there.to(self._device, non_blocking=True)
        rows, positions, slots, *emit, new_rows, new_positions, new_ids, seeds = _cut(
            there.view(torch.int64), 0, longs, self._no_longs
        )
        tables, contexts, cu, starts, chunk_tables = _cut(there.view(torch.int32), middle // 4, words, self._no_words)
        batch = StepBatch(
            rows_T=rows,
            positions_T=positions,
            slots_T=slots,
            num_decodes=arrays.num_decodes,
            tables_BM=tables,
            contexts_B=contexts,
            cu_C1=cu,
            starts_C=starts,
            chunk_tables_CM=chunk_tables,
            max_chunk_tokens=arrays.max_chunk_tokens,
            emit_E=emit[0],
            emit_rows_E=emit[1],
            emit_positions_E=emit[2],
        )
        return Uploaded(batch, new_rows, new_positions, new_ids, seeds)

    def _buffer(self, num_bytes: int) -> _Buffer:
        """Memory that no copy is read from any more, of at least that size."""
        if not self._pins:
            return _Buffer(num_bytes, pinned=False)
        self._turn = turn = (self._turn + 1) % len(self._buffers)
        if self._buffers[turn].bytes.numel() < num_bytes:
            self._buffers[turn] = _Buffer(2 * num_bytes, pinned=True)
        return self._buffers[turn]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _fill(target: NDArray[Any], start: int, arrays: Sequence[NDArray[Any]]) -> None:
    """Copy arrays one after the other, each to an aligned place."""
    for array in arrays:
        if array.size:
            target[start : start + array.size] = array.reshape(-1)
            start += _padded(array.nbytes) // array.itemsize


def _cut(flat: Tensor, start: int, arrays: Sequence[NDArray[Any]], nothing: Tensor) -> list[Tensor]:
    """The arrays again, as views of what ``_fill`` wrote."""
    views = []
    for array in arrays:
        view = nothing
        if array.size:
            view = flat[start : start + array.size]
            start += _padded(array.nbytes) // array.itemsize
        views.append(view if array.ndim == 1 else view.view(array.shape))
    return views
