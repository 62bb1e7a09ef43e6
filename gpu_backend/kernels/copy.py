"""Whole blocks of the cache, gathered, scattered or copied: each is one contiguous run over all layers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_blocks_kernel(
    source_ptr: tl.tensor,
    target_ptr: tl.tensor,
    source_ids_ptr: tl.tensor,  # n, int64; not read unless FROM_IDS
    target_ids_ptr: tl.tensor,  # n, int64; not read unless TO_IDS
    BLOCK_ELEMENTS: tl.constexpr,  # L * 2 * K * S * D
    FROM_IDS: tl.constexpr,
    TO_IDS: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """Program (block, part of it). Without ids the blocks of that side lie in order."""
    block = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
    source, target = block, block
    if FROM_IDS:
        source = tl.load(source_ids_ptr + block).to(tl.int64)
    if TO_IDS:
        target = tl.load(target_ids_ptr + block).to(tl.int64)
    inside = places < BLOCK_ELEMENTS
    numbers = tl.load(source_ptr + source * BLOCK_ELEMENTS + places, mask=inside)
    tl.store(target_ptr + target * BLOCK_ELEMENTS + places, numbers, mask=inside)
