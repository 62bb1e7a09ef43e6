"""Random requests in a paged cache, and what attention and rotary embedding make of them in float64.

Nothing here shares code with the operations that are checked against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NUM_LAYERS = 2
LAYER = 1
"""Of ``NUM_LAYERS``, the one that holds the requests; the other is NaN throughout."""
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Largest error relative to the result, both by the Frobenius norm."""


class Heads(NamedTuple):
    """Query heads, key/value heads, and their width."""

    queries: int
    shared: int
    dim: int

    def __str__(self) -> str:
        return f"{self.queries}h{self.shared}kv{self.dim}d"


class Paged(NamedTuple):
    """Requests whose keys and values lie in blocks of a cache in random places; the rest of these blocks is NaN."""

    cache: Tensor
    """N x L x 2 x K x S x D."""
    tables: Tensor
    """Requests x columns, int32."""
    keys: list[Tensor]
    """Of each request, tokens x K x D in float64 on the CPU."""
    values: list[Tensor]


def paged(
    generator: torch.Generator,
    lengths: Sequence[int],
    heads: Heads,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    min_elements: int = 0,
) -> Paged:
    """Requests of these lengths, their blocks shuffled; columns beyond a request's own point to a block of NaN.

    With ``min_elements`` the pool has at least as many, and the requests lie at its end: addresses then pass 2^31 where
    the pool does.
    """
    counts = [math.ceil(length / block_size) for length in lengths]
    used = sum(counts) + 3
    block_elements = NUM_LAYERS * 2 * heads.shared * block_size * heads.dim
    num_blocks = max(used, math.ceil(min_elements / block_elements))
    order = (num_blocks - 1 - torch.randperm(used, generator=generator)).tolist()
    size = (num_blocks, NUM_LAYERS, 2, heads.shared, block_size, heads.dim)
    cache = torch.empty(size, dtype=dtype, device=device)
    cache[torch.tensor(order, device=device)] = torch.nan
    tables = torch.full((len(lengths), max(counts) + 1), order.pop(), dtype=torch.int32)
    keys, values = [], []
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        tables[row, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
        k, v = (torch.randn(length, heads.shared, heads.dim, generator=generator).to(dtype) for _ in range(2))
        positions = torch.arange(length)
        block, offset = tables[row, positions // block_size].long().to(device), (positions % block_size).to(device)
        cache[block, LAYER, 0, :, offset] = k.to(device)
        cache[block, LAYER, 1, :, offset] = v.to(device)
        keys.append(k.double())
        values.append(v.double())
    return Paged(cache, tables.to(device), keys, values)


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


def rotated(x_THD: Tensor, angles_TF: Tensor) -> Tensor:
    """Rotary embedding in float64, as a product of complex numbers made of element i and element i + D/2."""
    first, second = x_THD.double().chunk(2, dim=-1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles_TF), angles_TF)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


def normed(x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """RMSNorm in float64."""
    x = x_TE.double().cpu()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight_E.double().cpu()


def relative_error(got: Tensor, expected: Tensor) -> float:
    """By the Frobenius norm; NaN where there is one."""
    return float((got.double().cpu() - expected).norm() / expected.norm())
