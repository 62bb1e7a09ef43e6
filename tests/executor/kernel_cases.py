"""Random requests in a paged cache, and what each operation makes of them in float64."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from random import SystemRandom
from typing import NamedTuple

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Largest error relative to the result, both by the Frobenius norm."""
NUM_LAYERS = 2
LAYER = 1


class Heads(NamedTuple):
    """Query heads, key/value heads, and their width."""

    queries: int
    shared: int
    dim: int

    def __str__(self) -> str:
        return f"{self.queries}h{self.shared}kv{self.dim}d"


HEADS = (Heads(4, 4, 16), Heads(6, 2, 32), Heads(4, 1, 48))
"""One key/value head a query head, groups of three, and groups of four with a width that is no power of two."""


def fresh_generator() -> torch.Generator:
    """Seeded anew; pytest shows the seed of a test that fails, and BATCHSCOPE_SEED=N gives it again."""
    seed = int(os.environ.get("BATCHSCOPE_SEED") or SystemRandom().getrandbits(32))
    print(f"BATCHSCOPE_SEED={seed}")
    return torch.Generator().manual_seed(seed)


def check_close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Within the tolerance of the dtype; a NaN anywhere is an error."""
    assert got.dtype == dtype
    assert got.shape == expected.shape
    error = (got.double().cpu() - expected).norm() / expected.norm()
    assert error <= TOLERANCE[dtype], f"relative error {error:.2e}"


def normal(generator: torch.Generator, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers of the dtype, on the device."""
    return torch.randn(*size, generator=generator).to(dtype).to(DEVICE)


class Paged(NamedTuple):
    """Requests whose keys and values lie in blocks of a cache in random places; all else in the cache is NaN."""

    cache: Tensor
    """N x L x 2 x K x S x D."""
    tables: Tensor
    """Requests x columns."""
    keys: list[Tensor]
    """Of each request, tokens x K x D in float64."""
    values: list[Tensor]

    @property
    def block_size(self) -> int:
        return int(self.cache.shape[4])

    def slots(self, row: int, positions: Sequence[int]) -> list[int]:
        """Where tokens of a request lie."""
        size = self.block_size
        return [int(self.tables[row, at // size]) * size + at % size for at in positions]


def paged(
    generator: torch.Generator, lengths: Sequence[int], heads: Heads, block_size: int, dtype: torch.dtype
) -> Paged:
    """Requests of these lengths, their blocks shuffled; columns beyond a request's own point to a block of NaN."""
    blocks = [math.ceil(length / block_size) for length in lengths]
    num_blocks = sum(blocks) + 3
    order = torch.randperm(num_blocks, generator=generator).tolist()
    poisoned = order.pop()
    tables = torch.full((len(lengths), max(blocks) + 1), poisoned, dtype=torch.int32)
    size = (num_blocks, NUM_LAYERS, 2, heads.shared, block_size, heads.dim)
    cache = torch.full(size, torch.nan, dtype=dtype)
    keys, values = [], []
    for row, (length, count) in enumerate(zip(lengths, blocks, strict=True)):
        tables[row, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
        k, v = (torch.randn(length, heads.shared, heads.dim, generator=generator).to(dtype) for _ in range(2))
        for position in range(length):
            block, offset = int(tables[row, position // block_size]), position % block_size
            cache[block, LAYER, 0, :, offset] = k[position]
            cache[block, LAYER, 1, :, offset] = v[position]
        keys.append(k.double())
        values.append(v.double())
    return Paged(cache.to(DEVICE), tables.to(DEVICE), keys, values)


def attention(q_THD: Tensor, keys_PKD: Tensor, values_PKD: Tensor, start: int) -> Tensor:
    """Causal softmax attention in float64 of queries at positions ``start``, ``start + 1`` ...: T x H x D."""
    q = q_THD.double().cpu()
    group = q.shape[1] // keys_PKD.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys_PKD, values_PKD))
    scores = torch.einsum("thd,phd->htp", q, keys) / math.sqrt(q.shape[2])
    positions = start + torch.arange(q.shape[0])
    hidden = torch.arange(keys.shape[0])[None, :] > positions[:, None]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("htp,phd->thd", weights, values)


def rotated(x_THD: Tensor, angles_TD2: Tensor) -> Tensor:
    """Rotary embedding in float64, as a product of complex numbers made of element i and element i + D/2."""
    first, second = x_THD.double().chunk(2, dim=-1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles_TD2), angles_TD2)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)
