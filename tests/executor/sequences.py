"""Requests that a test drives through ``LlamaModel.forward`` by hand: their tables, their tokens, their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import torch
from torch import Tensor

from gpu_backend.cache import KvCache
from gpu_backend.model import LlamaModel
from gpu_backend.step_batch import StepBatch

MAX_TOKENS = 256


class Sequences:
    """Greedy decoding of named requests. Free blocks hold NaN, and are given out in a random order."""

    def __init__(self, model: LlamaModel, *, block_size: int = 4, num_blocks: int = 64, rows: int = 8) -> None:
        self.model = model
        self.cache = KvCache(num_blocks, model.shape, block_size, model.dtype, model.device)
        self.cache.blocks_NL2KSD.fill_(float("nan"))
        self.free = list(range(num_blocks))
        Random(num_blocks).shuffle(self.free)
        self.tokens_RP = torch.zeros((rows, MAX_TOKENS), dtype=torch.int64, device=model.device)
        self._free_rows = list(range(rows))
        self.row: dict[str, int] = {}
        self.known: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.table: dict[str, list[int]] = {}

    def add(self, name: str, prompt: Sequence[int]) -> None:
        """A request with nothing computed."""
        self.row[name] = self._free_rows.pop()
        self.tokens_RP[self.row[name], : len(prompt)] = torch.tensor(prompt)
        self.known[name], self.computed[name], self.table[name] = list(prompt), 0, []

    def release(self, name: str) -> None:
        """Give up the memory of a request: its tokens stay known, and are to be computed again."""
        self.cache.blocks_NL2KSD[self.table[name]] = float("nan")
        self.free += self.table[name]
        self.table[name], self.computed[name] = [], 0

    def grow(self, name: str, num_tokens: int) -> None:
        """Blocks for this many tokens."""
        while len(self.table[name]) * self.cache.block_size < num_tokens:
            self.table[name].append(self.free.pop())

    def batch(
        self, decodes: Sequence[str] = (), chunks: Mapping[str, int] | None = None, columns: int = 0
    ) -> StepBatch:
        """The arrays of a step that decodes some and computes chunks of others; their blocks are taken here."""
        chunks, device = chunks or {}, self.model.device
        spans = [(name, 1) for name in decodes] + list(chunks.items())
        for name, count in spans:
            self.grow(name, self.computed[name] + count)
        places = [(name, self.computed[name] + i) for name, count in spans for i in range(count)]
        size = self.cache.block_size
        ends = [0]
        for count in chunks.values():
            ends.append(ends[-1] + count)
        last = [len(decodes) + end - 1 for end in ends[1:]]
        emits = list(range(len(decodes))) + [
            at for name, at in zip(chunks, last, strict=True) if self._completes(name, chunks[name])
        ]
        rows = [self.row[name] for name, _ in places]
        positions = [position for _, position in places]

        def table(names: Sequence[str]) -> Tensor:
            widest = max([len(self.table[name]) for name in names] + [columns])
            padded = [self.table[name] + [0] * (widest - len(self.table[name])) for name in names]
            return torch.tensor(padded, dtype=torch.int32, device=device).view(len(names), widest)

        def ints(values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return StepBatch(
            rows_T=ints(rows),
            positions_T=ints(positions),
            slots_T=ints([self.table[name][p // size] * size + p % size for name, p in places]),
            num_decodes=len(decodes),
            tables_BM=table(decodes),
            contexts_B=ints([self.computed[name] + 1 for name in decodes], torch.int32),
            cu_C1=ints(ends, torch.int32),
            starts_C=ints([self.computed[name] for name in chunks], torch.int32),
            chunk_tables_CM=table(list(chunks)),
            max_chunk_tokens=max(chunks.values(), default=0),
            emit_E=ints(emits),
            emit_rows_E=ints([rows[at] for at in emits]),
            emit_positions_E=ints([positions[at] + 1 for at in emits]),
        )

    def _completes(self, name: str, count: int) -> bool:
        return self.computed[name] + count == len(self.known[name])

    def step(self, decodes: Sequence[str] = (), chunks: Mapping[str, int] | None = None) -> Tensor:
        """Run a step and take the likeliest tokens; the logits of what emitted."""
        chunks = chunks or {}
        batch = self.batch(decodes, chunks)
        logits_EV = self.model.forward(batch, self.tokens_RP, self.cache.blocks_NL2KSD)
        sampled = logits_EV.argmax(-1)
        self.tokens_RP[batch.emit_rows_E, batch.emit_positions_E] = sampled
        emitting = [*decodes, *(name for name, count in chunks.items() if self._completes(name, count))]
        for name, count in [*((name, 1) for name in decodes), *chunks.items()]:
            self.computed[name] += count
        for name, token in zip(emitting, sampled.tolist(), strict=True):
            self.known[name].append(token)
        return logits_EV
