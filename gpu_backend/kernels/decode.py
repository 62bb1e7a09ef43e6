"""Attention of one query a request over its paged cache, the context split over programs, and the merge of the splits.

The method is FlashAttention's online softmax with its split over keys (T. Dao et al., "Flash-Decoding", 2023): each
split keeps its largest score, the sum of its exponentials and its weighted values; the merge rescales and adds them up.
The G queries that share a key/value head are the rows of one matrix product, padded to the 16 that a tensor core takes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["layer", "columns"])
def decode_kernel(
    q_ptr: tl.tensor,  # B x H x D
    cache_ptr: tl.tensor,  # N x L x 2 x K x S x D
    tables_ptr: tl.tensor,  # B x M, int32
    contexts_ptr: tl.tensor,  # B, int32
    out_ptr: tl.tensor,  # B x H x D; not written unless SPLITS is 1
    partial_ptr: tl.tensor,  # B x H x J x D, float32; written unless SPLITS is 1
    scores_ptr: tl.tensor,  # 2 x B x H x J, float32: largest score in powers of two, sum of powers
    layer: tl.tensor,
    columns: tl.tensor,  # M
    scale: tl.tensor,  # log2(e) / sqrt(D)
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    S: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,  # tokens of a split, or 0 to share the context out evenly
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """Program (request, key/value head, split)."""
    G: tl.constexpr = H // K
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts_ptr + row)
    length = SPLIT_TOKENS if SPLIT_TOKENS > 0 else tl.cdiv(tl.cdiv(context, BLOCK_N), SPLITS) * BLOCK_N
    begin = split * length
    end = tl.minimum(begin + length, context)

    members = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    queries = (row * H + kv_head * G + members).to(tl.int64)
    is_query = (members < G)[:, None] & (dims < D)[None, :]
    q = tl.load(q_ptr + queries[:, None] * D + dims[None, :], mask=is_query, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    values_sum = tl.zeros([ROWS, BLOCK_D], tl.float32)
    table = tables_ptr + row.to(tl.int64) * columns
    keys = cache_ptr + (layer.to(tl.int64) * (2 * K) + kv_head) * (S * D)
    for first in range(begin, end, BLOCK_N):
        tokens = first + tl.arange(0, BLOCK_N)
        inside = tokens < end
        blocks = tl.load(table + tokens // S, mask=inside, other=0).to(tl.int64)
        places = (blocks * (L * 2 * K * S) + tokens % S) * D
        addresses = keys + places[:, None] + dims[None, :]
        valid = inside[:, None] & (dims < D)[None, :]
        k = tl.load(addresses, mask=valid, other=0.0)
        v = tl.load(addresses + K * S * D, mask=valid, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        top = tl.maximum(largest, tl.max(scores, axis=1))
        shrink = tl.exp2(largest - top)
        powers = tl.exp2(scores - top[:, None])
        total = total * shrink + tl.sum(powers, axis=1)
        values_sum = values_sum * shrink[:, None]
        values_sum = tl.dot(powers.to(v.dtype), v, values_sum, input_precision="ieee")
        largest = top

    if SPLITS == 1:
        # A context of 0 has summed up nothing and gives 0, not 0 / 0.
        out = values_sum / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_ptr + queries[:, None] * D + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=is_query)
    else:
        parts = queries * SPLITS + split
        tl.store(scores_ptr + parts, largest, mask=members < G)
        others = tl.num_programs(0).to(tl.int64) * (H * SPLITS)
        tl.store(scores_ptr + others + parts, total, mask=members < G)
        if end > begin:
            tl.store(partial_ptr + parts[:, None] * D + dims[None, :], values_sum, mask=is_query)


@triton.jit
def merge_kernel(
    partial_ptr: tl.tensor,  # B x H x J x D, float32
    scores_ptr: tl.tensor,  # 2 x B x H x J, float32
    out_ptr: tl.tensor,  # B x H x D
    H: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Program (request, query head), BLOCK_J splits at a time: one round trip to memory for most batches.

    BLOCK_J is the same for any number of splits, so that the order of the sum is, too: splits that saw no token, which
    have the largest score -inf and no values (-inf - -inf is no number), add zeros at its end.
    """
    query = tl.program_id(0).to(tl.int64) * H + tl.program_id(1)
    scores = scores_ptr + query * SPLITS
    others = tl.num_programs(0).to(tl.int64) * (H * SPLITS)
    dims = tl.arange(0, BLOCK_D)
    top = float("-inf")
    for first in range(0, SPLITS, BLOCK_J):
        splits = first + tl.arange(0, BLOCK_J)
        largest = tl.load(scores + splits, mask=splits < SPLITS, other=float("-inf"))
        top = tl.maximum(top, tl.max(largest, axis=0))
    total = 0.0
    values_sum = tl.zeros([BLOCK_D], tl.float32)
    for first in range(0, SPLITS, BLOCK_J):
        splits = first + tl.arange(0, BLOCK_J)
        largest = tl.load(scores + splits, mask=splits < SPLITS, other=float("-inf"))
        seen = largest > float("-inf")
        share = tl.where(seen, tl.exp2(largest - tl.where(seen, top, 0.0)), 0.0)
        total += tl.sum(share * tl.load(scores + others + splits, mask=seen, other=0.0), axis=0)
        places = (query * SPLITS + splits)[:, None] * D + dims[None, :]
        partial = tl.load(partial_ptr + places, mask=seen[:, None] & (dims < D)[None, :], other=0.0)
        values_sum += tl.sum(share[:, None] * partial, axis=0)
    out = values_sum / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + query * D + dims, out.to(out_ptr.dtype.element_ty), mask=dims < D)
