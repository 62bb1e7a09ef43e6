"""Times single steps of the executor: the arrays that the batch table would send, built for any contexts."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrate.measure_points import Step
from gpu_backend.batch import StepArrays

if TYPE_CHECKING:
    from torch import Tensor

    from gpu_backend.cache import KvCache
    from gpu_backend.model import LlamaModel
    from gpu_backend.ops import Ops
    from gpu_backend.runner import StepRunner

_NO_INTS = np.zeros(0, np.int64)


class BareOps:
    """Operations without attention: queries go on as if they were its result, and all else is as in ``ops``. What a
    step takes with it beyond what it takes so is attention's."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def decode_attention(self, queries: Tensor, *_: object) -> Tensor:
        """The queries."""
        return queries

    def prefill_attention(self, queries: Tensor, *_: object) -> Tensor:
        """The queries."""
        return queries


class StepTimer:
    """Runs steps on a model whose requests lie side by side in ``cache``, and says what the device took."""

    def __init__(self, model: LlamaModel, cache: KvCache, max_num_seqs: int, *, graphs: bool) -> None:
        from gpu_backend.model import LlamaModel as Llama

        self._cache = cache
        self._columns = model.shape.max_model_len + 2
        bare_ops: Any = BareOps(model.ops)
        self.full = self._runner(model, max_num_seqs, graphs)
        self._bare = self._runner(Llama(model.shape, model.weights, bare_ops), max_num_seqs, graphs)

    def _runner(self, model: LlamaModel, max_num_seqs: int, graphs: bool) -> StepRunner:
        from gpu_backend.graphs import DecodeGraphs
        from gpu_backend.runner import GREEDY, StepRunner

        cache = self._cache
        runner = StepRunner(
            model, cache, num_rows=max_num_seqs + 1, num_columns=self._columns, sampling=GREEDY, depth=1
        )
        if graphs and model.device.type == "cuda":
            columns = -(-self._columns // cache.block_size) + 1
            runner.graphs = DecodeGraphs(model, cache, runner.tokens_RP, max_batch=max_num_seqs, max_columns=columns)
        return runner

    @property
    def has_graphs(self) -> bool:
        """Whether steps that only decode run as CUDA graphs."""
        return self.full.graphs is not None

    def seconds(self, step: Step) -> float:
        """Device time of one step, its tokens sampled and back on the host."""
        runner = self._bare if step.bare else self.full
        _, seconds = runner.launch(self.arrays(step)).wait()
        return seconds

    def head_seconds(self, num_rows: int) -> float:
        """The output head and a greedy choice for that many rows."""
        import torch

        from calibrate.gpu.timing import synchronize

        model = self.full.model
        hidden = model.weights.embedding_VE[torch.arange(num_rows, device=model.device)]
        temperature = torch.zeros(num_rows, device=model.device)
        seeds = torch.zeros(num_rows, dtype=torch.int64, device=model.device)
        synchronize(model.device)
        began = perf_counter()
        logits = model.ops.linear(hidden, model.weights.head_VE).float()
        model.ops.sample(logits, temperature, torch.ones_like(temperature), seeds)
        synchronize(model.device)
        return perf_counter() - began

    def arrays(self, step: Step) -> StepArrays:
        """A step as ``full``, the runner of the whole model, takes it: decode rows first, then the chunks, each in a
        row and in blocks of its own."""
        size, batch, tokens = self._cache.block_size, len(step.contexts), step.chunk_tokens
        chunks = step.chunks if tokens else 0
        contexts = np.array(step.contexts, np.int64)
        ends = np.append(contexts, [step.chunk_context + tokens] * chunks)
        counts = -(-ends // size)
        firsts = np.cumsum(counts) - counts
        width = int(counts.max(initial=1))
        # Places beyond a row's blocks name its first one: any valid block.
        offsets = np.arange(width)
        tables = np.where(offsets < counts[:, None], firsts[:, None] + offsets, firsts[:, None]).astype(np.int32)
        in_chunk = np.arange(tokens) + step.chunk_context
        rows = np.concatenate((np.arange(batch), np.repeat(np.arange(batch, batch + chunks), tokens)))
        positions = np.concatenate((contexts - 1, np.tile(in_chunk, chunks)))
        cu_chunks = np.arange(chunks + 1) * tokens
        emits = np.append(np.arange(batch), batch + cu_chunks[1:] - 1).astype(np.int64)
        if step.silent:
            emits = _NO_INTS
        chunk_width = int(counts[-1]) if chunks else 1
        return StepArrays(
            rows_T=rows.astype(np.int64),
            positions_T=positions.astype(np.int64),
            slots_T=(tables[rows, positions // size].astype(np.int64) * size + positions % size),
            emit_E=emits,
            emit_rows_E=rows[emits].astype(np.int64),
            emit_positions_E=np.minimum(positions[emits] + 1, self._columns - 1),
            new_rows_N=_NO_INTS,
            new_positions_N=_NO_INTS,
            new_ids_N=_NO_INTS,
            tables_BM=np.ascontiguousarray(tables[:batch, : int(counts[:batch].max(initial=1))]),
            contexts_B=contexts.astype(np.int32),
            cu_C1=cu_chunks.astype(np.int32),
            starts_C=np.full(chunks, step.chunk_context, np.int32),
            chunk_tables_CM=np.ascontiguousarray(tables[batch:, :chunk_width]),
            num_decodes=batch,
            max_chunk_tokens=tokens,
            emit_ids=[int(row) for row in rows[emits]],
        )


class SwapTimer:
    """Times transfers of up to ``num_blocks`` consecutive blocks to host memory."""

    def __init__(self, cache: KvCache, num_blocks: int) -> None:
        from gpu_backend.swap import SwapPool

        self._pool = SwapPool(num_blocks, cache)

    def seconds(self, num_blocks: int, kind: Literal["out", "in"] = "out") -> float:
        """Device time of one transfer, out unless said otherwise."""
        from policies.core.plan import Transfer

        blocks = tuple(range(num_blocks))
        self._pool.start([Transfer(0, 0, kind, blocks, blocks, True)])
        self._pool.wait()
        (moved,) = self._pool.done()
        return moved.seconds
