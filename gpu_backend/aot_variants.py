"""What the ahead-of-time gate compiles: every kernel in the variants that a Llama-2-7B and a small model launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from gpu_backend import tiles
from policies.catalog import ModelShape, model

if TYPE_CHECKING:
    from gpu_backend.tiles import Launch

BLOCK_SIZES = (16, 1, 32, 64, 128)
"""Tokens of a block; the first one stands for all where something else is varied."""
DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Triton's names, and the bytes of an element."""


class Variant(NamedTuple):
    """One compilation of one kernel.

    ``types`` names the type of each argument that is no constant, as Triton writes it (``*bf16`` points to bfloat16).
    ``cache`` names the arguments that point into the cache or to other pools past 2^31 elements; ``streams`` is whether
    time goes into reading memory in order, so that all of it must be read 128 bits at a time; ``products`` is whether
    tensor cores must work, and ``warpgroups`` whether they must do so by Hopper's wide instruction on sm_90.
    """

    kernel: str
    case: str
    arch: str
    types: dict[str, str]
    launch: Launch
    cache: tuple[str, ...] = ()
    streams: bool = False
    products: bool = False
    warpgroups: bool = False


def variants(archs: tuple[str, ...] = tiles.ARCHS, *, quick: bool = False) -> list[Variant]:
    """All of them; ``quick`` leaves out fp16 and the middle block sizes, whose code differs by constants alone."""
    found: list[Variant] = []
    for arch in archs:
        for dtype in ("bf16",) if quick else ("bf16", "fp16"):
            found += _rows(arch, dtype)
            found += _small(arch, dtype)
            for block_size in (16, 1, 128) if quick else BLOCK_SIZES:
                if dtype == "bf16" or block_size == BLOCK_SIZES[0]:
                    found += _attention(arch, dtype, model("llama-2-7b"), block_size)
            if dtype == "bf16" and not quick:
                found += _choices(arch, dtype)
        found += [variant for variant in _attention(arch, "fp32", model("110m"), 16) if variant.kernel != "rope_cache"]
        found += _sample(arch)
    return found


def _rows(arch: str, dtype: str) -> Iterator[Variant]:
    """Kernels over rows of Llama-2-7B."""
    shape, itemsize, pointer = model("llama-2-7b"), DTYPES[dtype], f"*{dtype}"
    norm = {"x_ptr": pointer, "residual_ptr": pointer, "weight_ptr": pointer, "y_ptr": pointer, "eps": "fp32"}
    for add in (False, True):
        launch = tiles.rms_norm(arch, shape.hidden, add=add)
        yield Variant("rms_norm", f"{dtype} {'add' if add else 'alone'}", arch, norm, launch, streams=True)
    types = {"gate_up_ptr": pointer, "y_ptr": pointer}
    yield Variant("silu_mul", dtype, arch, types, tiles.silu_mul(arch, shape.intermediate), streams=True)
    types = {"x_ptr": pointer, "weight_ptr": pointer, "y_ptr": pointer, "num_tokens": "i32"}
    launch = tiles.linear(arch, shape.hidden, 2 * shape.intermediate, itemsize)
    yield Variant("linear", dtype, arch, types, launch, products=True, warpgroups=True)
    elements = shape.layers * 2 * shape.kv_heads * BLOCK_SIZES[0] * shape.head_dim
    types = {"source_ptr": pointer, "target_ptr": pointer, "source_ids_ptr": "*i64", "target_ids_ptr": "*i64"}
    for case, from_ids, to_ids in (("gather", True, False), ("scatter", False, True), ("copy", True, True)):
        launch = tiles.copy_blocks(arch, elements, from_ids=from_ids, to_ids=to_ids)
        yield Variant("copy_blocks", f"{dtype} {case}", arch, types, launch, ("source_ptr", "target_ptr"), streams=True)


def _small(arch: str, dtype: str) -> Iterator[Variant]:
    """Attention with heads of 64, and with query heads that share one of keys and values."""
    yield from _attention(arch, dtype, model("110m"), BLOCK_SIZES[0])
    yield from _attention(arch, dtype, model("llama-3-8b"), BLOCK_SIZES[0])


def _attention(arch: str, dtype: str, shape: ModelShape, block_size: int) -> Iterator[Variant]:
    pointer, itemsize = f"*{dtype}", DTYPES[dtype]
    products = dtype != "fp32"
    cached = (shape.heads, shape.layers, shape.kv_heads, block_size, shape.head_dim)
    case = f"{dtype} {shape.heads}/{shape.kv_heads}x{shape.head_dim} S{block_size}"
    types = {
        "qkv_ptr": pointer, "cos_sin_ptr": "*fp32", "positions_ptr": "*i64", "slots_ptr": "*i64",
        "cache_ptr": pointer, "q_ptr": pointer, "layer": "i32",
    }  # fmt: skip
    yield Variant("rope_cache", case, arch, types, tiles.rope_cache(arch, *cached), ("cache_ptr",), streams=True)
    types = {
        "q_ptr": pointer, "cache_ptr": pointer, "tables_ptr": "*i32", "contexts_ptr": "*i32", "out_ptr": pointer,
        "partial_ptr": "*fp32", "scores_ptr": "*fp32", "layer": "i32", "columns": "i32", "scale": "fp32",
    }  # fmt: skip
    for splits in (1, 8) if block_size == BLOCK_SIZES[0] else (8,):
        launch = tiles.decode(arch, *cached, itemsize, splits, 0)
        yield Variant("decode", f"{case} J{splits}", arch, types, launch, ("cache_ptr",), products=products)
    if block_size == BLOCK_SIZES[0]:
        types = {"partial_ptr": "*fp32", "scores_ptr": "*fp32", "out_ptr": pointer}
        yield Variant("merge", f"{case} J8", arch, types, tiles.merge(shape.heads, shape.head_dim, 8))
    types = {
        "q_ptr": pointer, "cache_ptr": pointer, "tables_ptr": "*i32", "starts_ptr": "*i32", "cu_ptr": "*i32",
        "out_ptr": pointer, "layer": "i32", "columns": "i32", "scale": "fp32",
    }  # fmt: skip
    launch = tiles.prefill(arch, *cached, itemsize)
    yield Variant("prefill", case, arch, types, launch, ("cache_ptr",), products=products, warpgroups=products)


def _choices(arch: str, dtype: str) -> Iterator[Variant]:
    """Attention of Llama-2-7B with the tiles that the table could have instead."""
    for (kernel, of_arch), others in tiles.CHOICES.items():
        for tile in others if of_arch == arch else ():
            with tiles.trying(kernel, arch, tile):
                for variant in _attention(arch, dtype, model("llama-2-7b"), BLOCK_SIZES[0]):
                    if variant.kernel == kernel:
                        yield variant._replace(case=f"{variant.case} {tile.m}x{tile.n}w{tile.warps}s{tile.stages}")


def _sample(arch: str) -> Iterator[Variant]:
    types = {
        "logits_ptr": "*fp32", "temperature_ptr": "*fp32", "top_p_ptr": "*fp32", "seeds_ptr": "*i64",
        "tokens_ptr": "*i64",
    }  # fmt: skip
    yield Variant("sample", "fp32", arch, types, tiles.sample(arch, model("llama-2-7b").vocab), streams=True)
