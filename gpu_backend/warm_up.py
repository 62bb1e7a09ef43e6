"""Steps before the first one, so that what is compiled or chosen at a first call is not in anybody's times."""

from __future__ import annotations

import numpy as np

from gpu_backend.batch import StepArrays
from gpu_backend.runner import StepRunner

_NO_INTS = np.zeros(0, np.int64)


def warm_up(runner: StepRunner, max_tokens: int) -> None:
    """Decode one row, then prefill chunks of several sizes up to ``max_tokens`` beside it. Nothing is written: slots
    are -1, and what is read is anybody's."""
    sizes = {min(size, max_tokens) for size in (16, 128, 512, 2048)} if runner.model.device.type == "cuda" else {16}
    runner.launch(_arrays(runner, 0)).wait()
    for size in sorted(sizes):
        runner.launch(_arrays(runner, size)).wait()


def _arrays(runner: StepRunner, chunk_tokens: int) -> StepArrays:
    """A decode row without context, and a chunk of that many tokens if any."""
    scratch = runner.tokens_RP.shape[1] - 1
    chunk_tokens = min(chunk_tokens, scratch)
    chunks = 1 if chunk_tokens else 0
    total, width = 1 + chunk_tokens, -(-max(chunk_tokens, 1) // runner.cache.block_size)
    emits = 1 + chunks
    return StepArrays(
        rows_T=np.zeros(total, np.int64),
        positions_T=np.concatenate((np.zeros(1, np.int64), np.arange(chunk_tokens))),
        slots_T=np.full(total, -1, np.int64),
        emit_E=np.array([0, total - 1][:emits], np.int64),
        emit_rows_E=np.zeros(emits, np.int64),
        emit_positions_E=np.full(emits, scratch, np.int64),
        new_rows_N=_NO_INTS,
        new_positions_N=_NO_INTS,
        new_ids_N=_NO_INTS,
        tables_BM=np.zeros((1, 1), np.int32),
        contexts_B=np.zeros(1, np.int32),
        cu_C1=np.array([0, chunk_tokens][: 1 + chunks], np.int32),
        starts_C=np.zeros(chunks, np.int32),
        chunk_tables_CM=np.zeros((chunks, width), np.int32),
        num_decodes=1,
        max_chunk_tokens=chunk_tokens,
        emit_ids=[0] * emits,
    )
