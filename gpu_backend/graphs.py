"""Decode steps as CUDA graphs: one launch instead of hundreds, at a few batch sizes, for every context length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpu_backend.cache import KvCache
from gpu_backend.model import LlamaModel
from gpu_backend.step_batch import StepBatch


def graph_sizes(max_batch: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 12, 16, 24, 32, 48, 64, then every 32, up to the first that holds ``max_batch`` rows."""
    first = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]
    sizes = first + list(range(96, max_batch + 32, 32))
    enough = next(place for place, size in enumerate(sizes) if size >= max_batch)
    return tuple(sizes[: enough + 1])


def empty_decode_batch(size: int, columns: int, device: torch.device) -> StepBatch:
    """``size`` padding rows: they look at token 0 of row 0, write nothing, attend to nothing, and emit."""
    none = torch.zeros(0, dtype=torch.int32, device=device)

    def of(value: int) -> Tensor:
        return torch.full((size,), value, dtype=torch.int64, device=device)

    return StepBatch(
        rows_T=of(0),
        positions_T=of(0),
        slots_T=of(-1),
        num_decodes=size,
        tables_BM=torch.zeros((size, columns), dtype=torch.int32, device=device),
        contexts_B=torch.zeros(size, dtype=torch.int32, device=device),
        cu_C1=torch.zeros(1, dtype=torch.int32, device=device),
        starts_C=none,
        chunk_tables_CM=torch.zeros((0, columns), dtype=torch.int32, device=device),
        max_chunk_tokens=0,
        emit_E=torch.arange(size, device=device),
        emit_rows_E=of(0),
        emit_positions_E=of(0),
    )


def fill_decode_batch(padded: StepBatch, batch: StepBatch) -> None:
    """Write the decode rows of ``batch`` into the first rows of ``padded`` and make the others padding again, table
    columns included: what an earlier, larger batch left there must not be looked up or written to."""
    rows, columns = batch.tables_BM.shape
    padded.rows_T[:rows].copy_(batch.rows_T)
    padded.rows_T[rows:].zero_()
    padded.positions_T[:rows].copy_(batch.positions_T)
    padded.positions_T[rows:].zero_()
    padded.slots_T[:rows].copy_(batch.slots_T)
    padded.slots_T[rows:].fill_(-1)
    padded.contexts_B[:rows].copy_(batch.contexts_B)
    padded.contexts_B[rows:].zero_()
    padded.tables_BM.zero_()
    padded.tables_BM[:rows, :columns].copy_(batch.tables_BM)


class DecodeGraphs:
    """Captured forward passes of ``model`` over decode rows alone, one a size; the largest is captured first, so that
    all share its memory.

    Tables have ``max_columns`` columns (max_model_len / block_size + 1), and how a size splits its attention is fixed
    with it, so that one graph serves every context. Nothing is captured without CUDA, or of operations in plain torch,
    which wait for the device.
    """

    def __init__(
        self, model: LlamaModel, cache: KvCache, tokens_RP: Tensor, *, max_batch: int, max_columns: int
    ) -> None:
        self._model = model
        self._cache = cache
        self._columns = max_columns
        captures = cache.device.type == "cuda" and model.ops.name == "triton"
        self.sizes = graph_sizes(max_batch) if captures else ()
        self.capture(tokens_RP)

    def capture(self, tokens_RP: Tensor) -> None:
        """Capture all sizes anew, over these known tokens; to be called when ``tokens_RP`` lies elsewhere."""
        if not self.sizes:
            return
        torch.cuda.synchronize(self._cache.device)  # a graph of before may still run: it goes, and its memory with it
        self._tokens = tokens_RP
        self._batches: dict[int, StepBatch] = {}
        self._logits: dict[int, Tensor] = {}
        self._graphs: dict[int, Any] = {}
        pool = None
        for size in reversed(self.sizes):
            batch = empty_decode_batch(size, self._columns, self._cache.device)
            self._batches[size] = batch
            run = self._runner(batch)
            side = torch.cuda.Stream(self._cache.device)
            side.wait_stream(torch.cuda.current_stream(self._cache.device))
            with torch.cuda.stream(side):  # compiles and picks what must not happen while capturing
                run()
            torch.cuda.current_stream(self._cache.device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._logits[size] = run()
            pool = pool or graph.pool()
            self._graphs[size] = graph

    def logits(self, batch: StepBatch, tokens_RP: Tensor) -> Tensor:
        """``LlamaModel.forward``: by a graph where one fits, else eagerly. The logits are valid until the next call."""
        size = self.size_for(batch)
        if size is None or tokens_RP.data_ptr() != self._tokens.data_ptr():
            return self._model.forward(batch, tokens_RP, self._cache.blocks_NL2KSD)
        fill_decode_batch(self._batches[size], batch)
        self._graphs[size].replay()
        return self._logits[size][batch.emit_E]

    def replay(self, size: int) -> None:
        """The graph of a captured size once more, over what its buffers hold: for measurements."""
        self._graphs[size].replay()

    def size_for(self, batch: StepBatch) -> int | None:
        """The smallest captured size that holds a batch; None where it has chunks, too many rows or wider tables."""
        return fitting_size(self.sizes, batch, self._columns)

    def _runner(self, batch: StepBatch) -> Callable[[], Tensor]:
        return lambda: self._model.forward(batch, self._tokens, self._cache.blocks_NL2KSD)


def fitting_size(sizes: Sequence[int], batch: StepBatch, max_columns: int) -> int | None:
    """The smallest of the ascending ``sizes`` for a batch of decode rows whose tables fit; else None."""
    if batch.num_chunks or not batch.num_decodes or batch.tables_BM.shape[1] > max_columns:
        return None
    return next((size for size in sizes if size >= batch.num_decodes), None)
