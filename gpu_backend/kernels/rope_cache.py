"""Rotary embedding and the write to the cache, in one pass over the fused output of the QKV projection."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["layer"])
def rope_cache_kernel(
    qkv_ptr: tl.tensor,  # T x (H + 2 K) x D
    cos_sin_ptr: tl.tensor,  # P x D, float32: D/2 cosines, D/2 sines
    positions_ptr: tl.tensor,  # T, int64
    slots_ptr: tl.tensor,  # T, int64; -1 writes nothing
    cache_ptr: tl.tensor,  # N x L x 2 x K x S x D
    q_ptr: tl.tensor,  # T x H x D
    layer: tl.tensor,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    L: tl.constexpr,
    S: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D2: tl.constexpr,
) -> None:
    """Program (token, group of BLOCK_H of its H + 2 K heads)."""
    token = tl.program_id(0).to(tl.int64)
    heads = (tl.program_id(1).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None]
    half = tl.arange(0, BLOCK_D2)[None, :]
    inside = (heads < H + 2 * K) & (half < D // 2)
    source = qkv_ptr + token * ((H + 2 * K) * D) + heads * D + half
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + D // 2, mask=inside, other=0.0).to(tl.float32)

    angles = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * D + half
    cos = tl.load(angles, mask=half < D // 2, other=0.0).to(tl.float32)
    sin = tl.load(angles + D // 2, mask=half < D // 2, other=0.0).to(tl.float32)
    turned = heads < H + K  # queries and keys; values stay as they are
    rotated_first = tl.where(turned, first * cos - second * sin, first).to(q_ptr.dtype.element_ty)
    rotated_second = tl.where(turned, second * cos + first * sin, second).to(q_ptr.dtype.element_ty)

    target = q_ptr + token * (H * D) + heads * D + half
    is_query = inside & (heads < H)
    tl.store(target, rotated_first, mask=is_query)
    tl.store(target + D // 2, rotated_second, mask=is_query)

    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:
        # Heads H .. H + K are the K planes of keys, the next K those of values, in the order of the cache.
        plane = (slot // S * L + layer) * (2 * K) + heads - H
        target = cache_ptr + (plane * S + slot % S) * D + half
        is_cached = inside & (heads >= H)
        tl.store(target, rotated_first, mask=is_cached)
        tl.store(target + D // 2, rotated_second, mask=is_cached)
