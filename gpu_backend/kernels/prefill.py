"""Causal attention of ragged chunks of prompts over the paged cache.

One kernel for a whole prompt, a chunk of one and a recomputed one: all keys and values come from the cache, and a query
sees the tokens up to its own position (FlashAttention-2's loop; T. Dao, 2023).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _attend(
    carry: tl.tuple,  # largest score, sum of powers, weighted values
    q: tl.tensor,  # BLOCK_M x BLOCK_D
    query_positions: tl.tensor,  # BLOCK_M
    keys_ptr: tl.tensor,  # of one layer and key/value head in block 0
    table_ptr: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    scale: tl.tensor,
    MASKED: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    S: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    UPCAST: tl.constexpr,
) -> tl.tuple:
    """Goes on with keys ``begin`` to ``end``; unless ``MASKED`` they fill whole tiles and every query sees them all."""
    largest, total, values_sum = carry
    dims = tl.arange(0, BLOCK_D)
    for first in range(begin, end, BLOCK_N):
        tokens = first + tl.arange(0, BLOCK_N)
        if MASKED:
            inside = tokens < end
            blocks = tl.load(table_ptr + tokens // S, mask=inside, other=0).to(tl.int64)
        else:
            blocks = tl.load(table_ptr + tokens // S).to(tl.int64)
        places = (blocks * (L * 2 * K * S) + tokens % S) * D
        addresses = keys_ptr + places[:, None] + dims[None, :]
        if MASKED:
            k = tl.load(addresses, mask=inside[:, None] & (dims < D)[None, :], other=0.0)
            v = tl.load(addresses + K * S * D, mask=inside[:, None] & (dims < D)[None, :], other=0.0)
        elif D == BLOCK_D:
            k = tl.load(addresses)
            v = tl.load(addresses + K * S * D)
        else:
            k = tl.load(addresses, mask=(dims < D)[None, :], other=0.0)
            v = tl.load(addresses + K * S * D, mask=(dims < D)[None, :], other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if MASKED:
            seen = (tokens[None, :] <= query_positions[:, None]) & inside[None, :]
            scores = tl.where(seen, scores, float("-inf"))
        top = tl.maximum(largest, tl.max(scores, axis=1))
        shrink = tl.exp2(largest - top)
        powers = tl.exp2(scores - top[:, None])
        total = total * shrink + tl.sum(powers, axis=1)
        values_sum = values_sum * shrink[:, None]
        values_sum = tl.dot(powers.to(v.dtype), v, values_sum, input_precision="ieee")
        largest = top
    return largest, total, values_sum


@triton.jit(do_not_specialize=["layer", "columns"])
def prefill_kernel(
    q_ptr: tl.tensor,  # T x H x D
    cache_ptr: tl.tensor,  # N x L x 2 x K x S x D
    tables_ptr: tl.tensor,  # C x M, int32
    starts_ptr: tl.tensor,  # C, int32
    cu_ptr: tl.tensor,  # C + 1, int32
    out_ptr: tl.tensor,  # T x H x D
    layer: tl.tensor,
    columns: tl.tensor,  # M
    scale: tl.tensor,  # log2(e) / sqrt(D)
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    S: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """Program (tile of BLOCK_M queries, query head, chunk), the last tiles, which see most keys, first."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head, chunk = tl.program_id(1), tl.program_id(2)
    offset = tl.load(cu_ptr + chunk)
    num_queries = tl.load(cu_ptr + chunk + 1) - offset
    if tile * BLOCK_M >= num_queries:
        return
    start = tl.load(starts_ptr + chunk)
    queries = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    is_query = (queries < num_queries)[:, None] & (dims < D)[None, :]
    rows = ((offset + queries).to(tl.int64) * H + head)[:, None] * D + dims[None, :]
    q = tl.load(q_ptr + rows, mask=is_query, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    keys = cache_ptr + (layer.to(tl.int64) * (2 * K) + head // (H // K)) * (S * D)
    table = tables_ptr + chunk.to(tl.int64) * columns
    carry = (
        tl.full([BLOCK_M], float("-inf"), tl.float32),
        tl.zeros([BLOCK_M], tl.float32),
        tl.zeros([BLOCK_M, BLOCK_D], tl.float32),
    )
    # The first query of the tile sees the keys up to its own; whole tiles of these need no mask.
    whole = (start + tile * BLOCK_M + 1) // BLOCK_N * BLOCK_N
    end = start + tl.minimum((tile + 1) * BLOCK_M, num_queries)
    carry = _attend(
        carry, q, start + queries, keys, table, 0, whole, scale, False, K, D, L, S, BLOCK_N, BLOCK_D, UPCAST
    )
    carry = _attend(
        carry, q, start + queries, keys, table, whole, end, scale, True, K, D, L, S, BLOCK_N, BLOCK_D, UPCAST
    )
    _, total, values_sum = carry
    out = values_sum / total[:, None]
    tl.store(out_ptr + rows, out.to(out_ptr.dtype.element_ty), mask=is_query)
