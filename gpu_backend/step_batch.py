"""What one forward pass computes, as arrays on the device: the seam between the batch table and the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class StepBatch(NamedTuple):
    """The tokens of one step: the decode rows first, one token each, then the chunks one after the other.

    Letters: T tokens, B decode rows, C chunks, M columns of the widest block table, E rows that emit. All tensors lie
    on the device and are contiguous. Rows are those of the batch table, and of ``tokens_RP``, in which the input ids of
    every token are found: ``tokens_RP[rows_T, positions_T]``.
    """

    rows_T: Tensor
    """int64: row of the batch table."""
    positions_T: Tensor
    """int64: place of the token in its request, from 0."""
    slots_T: Tensor
    """int64: block * block_size + offset where its keys and values go; -1 writes nothing."""
    num_decodes: int
    """B."""
    tables_BM: Tensor
    """int32: block ids of the decode rows; what lies beyond their contexts is any valid id."""
    contexts_B: Tensor
    """int32: tokens of the decode rows in the cache, this one included; 0 for a row that computes nothing."""
    cu_C1: Tensor
    """int32, C + 1: where each chunk begins among the T - B tokens of chunks, and where the last one ends."""
    starts_C: Tensor
    """int32: tokens of the request that are cached before the chunk."""
    chunk_tables_CM: Tensor
    """int32: block ids of the chunks' requests."""
    max_chunk_tokens: int
    """Tokens of the longest chunk; 0 without chunks."""
    emit_E: Tensor
    """int64: which of the T tokens are followed by one that is to be sampled."""
    emit_rows_E: Tensor
    """int64: their rows in ``tokens_RP``."""
    emit_positions_E: Tensor
    """int64: where in ``tokens_RP`` the sampled token goes."""

    @property
    def num_chunks(self) -> int:
        """C."""
        return int(self.starts_C.shape[0])
