"""Every operation against float64 on the device at hand; ``kernel_check.py`` prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gpu_backend.kernel_reference import (
    LAYER,
    TOLERANCE,
    Heads,
    Paged,
    attention,
    normed,
    paged,
    relative_error,
    rotated,
)
from gpu_backend.ops import Ops, load_ops

EPS = 1e-5
BLOCK_SIZE = 16
HEADS = (Heads(8, 8, 128), Heads(12, 4, 64))
"""One key/value head a query head, as in Llama-2-7B, and groups of three."""
LENGTHS = (1, 15, 16, 17, 127, 128, 129, 700)


class Checked(NamedTuple):
    """One result beside float64; ``error`` is relative, or the share of wrong elements where all must be equal."""

    operation: str
    case: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit (NaN is not)."""
        return self.error <= self.limit


def check_kernels(
    ops: Ops,
    device: torch.device,
    *,
    min_elements: int = 0,
    seed: int = 0,
    dtypes: Iterable[torch.dtype] = tuple(TOLERANCE),
) -> Iterator[Checked]:
    """All operations of ``ops`` in three dtypes; the caches have ``min_elements`` or more in bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        for operation, error in _rows(ops, device, generator, dtype):
            yield Checked(operation, name, error, TOLERANCE[dtype])
        for heads in HEADS:
            elements = min_elements if dtype == torch.bfloat16 else 0
            memory = paged(generator, LENGTHS, heads, BLOCK_SIZE, dtype, device, min_elements=elements)
            case = f"{name} {heads}, pool of {memory.cache.numel():,}"
            for operation, error in _attention(ops, memory, heads, generator):
                yield Checked(operation, case, error, TOLERANCE[dtype])
            yield Checked("blocks", case, _blocks(ops, memory), 0.0)
    yield Checked("sample", "tokens of plain torch", _sample(ops, device, generator), 0.0)


def _rows(
    ops: Ops, device: torch.device, generator: torch.Generator, dtype: torch.dtype
) -> Iterator[tuple[str, float]]:
    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype).to(device)

    x, residual, gain = random(9, 4096), random(9, 4096), random(4096)
    yield "rms_norm", relative_error(ops.rms_norm(x, gain, EPS), normed(x, gain, EPS))
    total = x.double().cpu() + residual.double().cpu()
    got, added = ops.add_rms_norm(x, residual, gain, EPS)
    yield "add_rms_norm", max(relative_error(added, total), relative_error(got, normed(added, gain, EPS)))
    gate_up = random(9, 2 * 11008)
    gate, up = gate_up.double().cpu().chunk(2, dim=-1)
    yield "silu_mul", relative_error(ops.silu_mul(gate_up), gate * gate.sigmoid() * up)
    x, weight = random(70, 1024), random(640, 1024)
    fixed = load_ops(ops.name, batch_invariant=True).linear(x, weight)
    yield "linear, fixed tiles", relative_error(fixed, x.double().cpu() @ weight.double().cpu().T)


def _attention(ops: Ops, memory: Paged, heads: Heads, generator: torch.Generator) -> Iterator[tuple[str, float]]:
    cache, tables, device = memory.cache, memory.tables, memory.cache.device

    def queries(count: int) -> Tensor:
        return torch.randn(count, heads.queries, heads.dim, generator=generator).to(cache.dtype).to(device)

    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    q = queries(len(LENGTHS))
    got = ops.decode_attention(q, cache, LAYER, tables, ints(list(LENGTHS)))
    rows = list(zip(memory.keys, memory.values, LENGTHS, strict=True))
    expected = [attention(q[row : row + 1], k, v, length - 1) for row, (k, v, length) in enumerate(rows)]
    yield "decode", relative_error(got, torch.cat(expected))

    # Half of each request as a chunk, all of a request of one token.
    starts = [length // 2 for length in LENGTHS]
    counts = [length - start for length, start in zip(LENGTHS, starts, strict=True)]
    ends = torch.tensor([0, *counts]).cumsum(0).tolist()
    q = queries(ends[-1])
    got = ops.prefill_attention(q, cache, LAYER, tables, ints(starts), ints(ends), max(counts))
    expected = [attention(q[ends[r] : ends[r + 1]], k, v, starts[r]) for r, (k, v, _) in enumerate(rows)]
    yield "prefill", relative_error(got, torch.cat(expected))
    yield "rope_and_write", _rope(ops, memory, heads, generator)


def _rope(ops: Ops, memory: Paged, heads: Heads, generator: torch.Generator) -> float:
    """Writes the longest request's tokens anew, in its own slots, and reads them back."""
    cache, device, row = memory.cache, memory.cache.device, len(LENGTHS) - 1
    positions = torch.arange(LENGTHS[row])
    blocks, offsets = memory.tables[row].cpu()[positions // BLOCK_SIZE].long(), positions % BLOCK_SIZE
    all_heads = heads.queries + 2 * heads.shared
    qkv = torch.randn(len(positions), all_heads * heads.dim, generator=generator).to(cache.dtype)
    angles = torch.rand(len(positions), heads.dim // 2, generator=generator, dtype=torch.float64) * 6
    table = torch.cat((angles.cos(), angles.sin()), dim=-1).float()
    slots = blocks * BLOCK_SIZE + offsets
    q = ops.rope_and_write(qkv.to(device), table.to(device), positions.to(device), slots.to(device), cache, LAYER)
    parts = qkv.view(-1, all_heads, heads.dim).split((heads.queries, heads.shared, heads.shared), dim=1)
    k, v = (cache[blocks.to(device), LAYER, plane, :, offsets.to(device)] for plane in (0, 1))
    expected = (rotated(parts[0], angles), rotated(parts[1], angles), parts[2].double())
    return max(relative_error(got, true) for got, true in zip((q, k, v), expected, strict=True))


def _blocks(ops: Ops, memory: Paged) -> float:
    """Blocks of the longest request go out and come back to those of the others, bit by bit."""
    cache, words = memory.cache, torch.int32 if memory.cache.itemsize == 4 else torch.int16
    source = memory.tables[-1, :8].long()
    target = memory.tables[-1, 8:16].long()
    blocks = ops.gather_blocks(cache, source)
    ops.scatter_blocks(cache, target, blocks)
    wrong = (cache[target].view(words) != cache[source].view(words)).double().mean()
    ops.copy_blocks(cache, memory.tables[-1, 16:24].long(), source)
    wrong += (cache[source].view(words) != cache[memory.tables[-1, 16:24].long()].view(words)).double().mean()
    return float(wrong)


def _sample(ops: Ops, device: torch.device, generator: torch.Generator) -> float:
    logits = (torch.randn(24, 32_000, generator=generator) * 3).to(device)
    temperature = (torch.tensor([0.0, 0.7, 1.0]).repeat(8)).to(device)
    top_p = torch.tensor([0.0, 0.2, 0.9, 1.0]).repeat(6).to(device)
    seeds = torch.randint(-(2**63), 2**63 - 1, (24,), generator=generator).to(device)
    got, expected = (which.sample(logits, temperature, top_p, seeds) for which in (ops, load_ops("torch")))
    return float((got != expected).double().mean())
