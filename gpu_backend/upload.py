"""The arrays of a step on their way to the device: one buffer, one copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch

from gpu_backend.batch import StepArrays
from gpu_backend.step_batch import StepBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_ALIGNMENT: Final = 16
"""Bytes; what starts there can be loaded 128 bits at a time."""

_ARRAYS: Final = StepArrays._fields[: StepArrays._fields.index("num_decodes")]
_BATCH: Final = tuple(name for name in _ARRAYS if not name.startswith("new_"))


class Uploaded(NamedTuple):
    """A step on the device: its batch, and the tokens of prompts that are new there (N of them)."""

    batch: StepBatch
    new_rows_N: Tensor
    new_positions_N: Tensor
    new_ids_N: Tensor
    seeds_E: Tensor


class Uploader:
    """Copies the arrays of steps to a device through ``depth`` pinned buffers in turn: an earlier copy may still run
    while the next one is filled. On the CPU there is nothing to copy."""

    def __init__(self, device: torch.device, depth: int) -> None:
        self._device = device
        self._pins = device.type == "cuda"
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * depth
        self._turn = 0

    def upload(self, arrays: StepArrays, seeds_E: NDArray[np.int64]) -> Uploaded:
        """Send everything, without waiting for it."""
        named = {name: getattr(arrays, name) for name in _ARRAYS}
        named["seeds_E"] = seeds_E
        places, end = {}, 0
        for name, array in named.items():
            places[name] = end
            end = -(-(end + array.nbytes) // _ALIGNMENT) * _ALIGNMENT
        buffer = self._buffer(end)
        raw = buffer.numpy()
        for name, array in named.items():
            start = places[name]
            raw[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        there = buffer[:end].to(self._device, non_blocking=True) if self._pins else buffer
        sent = {name: _view(there, places[name], array) for name, array in named.items()}
        batch = StepBatch(
            **{name: sent[name] for name in _BATCH},
            num_decodes=arrays.num_decodes,
            max_chunk_tokens=arrays.max_chunk_tokens,
        )
        return Uploaded(batch, *(sent[name] for name in ("new_rows_N", "new_positions_N", "new_ids_N", "seeds_E")))

    def _buffer(self, num_bytes: int) -> Tensor:
        """Memory that no copy is read from any more, of at least that size."""
        if not self._pins:
            return torch.empty(num_bytes, dtype=torch.uint8)
        self._turn = turn = (self._turn + 1) % len(self._buffers)
        if self._buffers[turn].numel() < num_bytes:
            self._buffers[turn] = torch.empty(2 * num_bytes, dtype=torch.uint8, pin_memory=True)
        return self._buffers[turn]


def _view(buffer: Tensor, start: int, array: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
    dtype = torch.int64 if array.dtype == np.int64 else torch.int32
    return buffer[start : start + array.nbytes].view(dtype).view(array.shape)
