"""Tile sizes of every kernel on every architecture: the one table from which kernels are launched and compiled.

No tuning happens at run time: CUDA graphs, tests and the ahead-of-time gate all see the launch that this table gives.
The row ``cpu`` is for interpreted runs, which cost by program and operation and hardly by element: few, large tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

ARCHS = ("sm_80", "sm_90")
"""Architectures with rows of their own; others take the nearest older one."""
WIDE = 4
"""Bytes of an element from which on the rows ``*_wide`` count: float32 takes twice the registers and shared memory."""


class Tile(NamedTuple):
    """Sizes (``BLOCK_M`` queries or tokens, ``BLOCK_N`` keys or outputs, ``BLOCK_K`` inputs, or the one dimension there
    is), warps a program and stages of the software pipeline."""

    m: int
    n: int = 0
    k: int = 0
    warps: int = 4
    stages: int = 3


class Launch(NamedTuple):
    """What a kernel is compiled with: its constants, and its options for the compiler."""

    constants: dict[str, int]
    warps: int
    stages: int

    @property
    def compiler_options(self) -> dict[str, int]:
        """Options for the compiler. Triton 3.10 is to change what it does by default about fused multiply-adds."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}

    @property
    def options(self) -> dict[str, int]:
        """All of it, as the keyword arguments of a launch."""
        return {**self.constants, **self.compiler_options}


TILES: dict[tuple[str, str], Tile] = {
    ("rms_norm", "sm_80"): Tile(0, warps=8),
    ("rms_norm", "sm_90"): Tile(0, warps=8),
    ("rms_norm", "cpu"): Tile(0),
    ("rope_cache", "sm_80"): Tile(8, warps=1),
    ("rope_cache", "sm_90"): Tile(8, warps=1),
    ("rope_cache", "cpu"): Tile(256),
    ("silu_mul", "sm_80"): Tile(2048),
    ("silu_mul", "sm_90"): Tile(2048),
    ("silu_mul", "cpu"): Tile(1 << 16),
    ("copy_blocks", "sm_80"): Tile(8192),
    ("copy_blocks", "sm_90"): Tile(8192),
    ("copy_blocks", "cpu"): Tile(1 << 20),
    ("decode", "sm_80"): Tile(16, 64),
    ("decode", "sm_90"): Tile(16, 32),
    ("decode", "cpu"): Tile(16, 128),
    ("decode_wide", "sm_80"): Tile(16, 32, stages=2),
    ("decode_wide", "sm_90"): Tile(16, 32, stages=2),
    ("prefill", "sm_80"): Tile(128, 64, warps=8),
    ("prefill", "sm_90"): Tile(128, 64, warps=8),
    ("prefill", "cpu"): Tile(128, 128),
    ("prefill_wide", "sm_80"): Tile(32, 32, warps=8, stages=2),
    ("prefill_wide", "sm_90"): Tile(32, 32, warps=8, stages=2),
    ("linear", "sm_80"): Tile(64, 64, 64, stages=4),
    ("linear", "sm_90"): Tile(64, 64, 64, stages=4),
    ("linear", "cpu"): Tile(64, 256, 256),
    ("linear_wide", "sm_80"): Tile(32, 32, 32, stages=2),
    ("linear_wide", "sm_90"): Tile(32, 32, 32, stages=2),
    ("sample", "sm_80"): Tile(4096, warps=16),
    ("sample", "sm_90"): Tile(4096, warps=16),
    ("sample", "cpu"): Tile(1 << 16),
}

CHOICES: dict[tuple[str, str], tuple[Tile, ...]] = {
    ("decode", "sm_80"): (Tile(16, 32), Tile(16, 128)),
    ("decode", "sm_90"): (Tile(16, 64, warps=2), Tile(16, 128)),
    ("prefill", "sm_80"): (Tile(128, 32, warps=8, stages=5), Tile(64, 32)),
    ("prefill", "sm_90"): (Tile(128, 128, warps=8), Tile(128, 64, warps=8, stages=5), Tile(64, 64)),
}
"""Tiles that compile as well as those of the table, for who can time them: ``with trying(kernel, arch, tile):``."""

PROGRAMS = {"sm_80": 864, "sm_90": 1056, "cpu": 1}
"""Programs of decode attention that keep the card busy: eight for each of its 108 or 132 multiprocessors."""
MAX_SPLITS = 16
SPLIT_TOKENS = 256
"""Tokens of a split where results must not depend on the batch."""
ROUNDS = 7
"""Of Philox (philox.py)."""
HALVINGS = 32
"""Of the interval of 88 in which top-p looks for its edge: down to 2e-8."""


def arch_of(capability: tuple[int, int] | None) -> str:
    """The row of the table for a card's compute capability, or for None, an interpreted run."""
    if capability is None:
        return "cpu"
    return "sm_90" if capability >= (9, 0) else "sm_80"


@contextmanager
def trying(kernel: str, arch: str, tile: Tile) -> Iterator[None]:
    """Launch ``kernel`` with another tile inside the block; for measurements, not beside other threads."""
    before = TILES[kernel, arch]
    try:
        TILES[kernel, arch] = tile
        _forget()
        yield
    finally:
        TILES[kernel, arch] = before
        _forget()


def _forget() -> None:
    for launch in (rms_norm, rope_cache, silu_mul, copy_blocks, decode, prefill, linear, sample):
        launch.cache_clear()


@cache
def decode_splits(arch: str, num_rows: int, kv_heads: int) -> int:
    """Splits of each context, a power of two that depends on the batch size alone: one graph serves all lengths."""
    splits = 1
    while splits < MAX_SPLITS and num_rows * kv_heads * splits * 2 <= PROGRAMS[arch]:
        splits *= 2
    return splits


@cache
def rms_norm(arch: str, hidden: int, *, add: bool) -> Launch:
    """Constants of ``rms_norm_kernel``."""
    tile = TILES["rms_norm", arch]
    return _launch(tile, E=hidden, ADD=add, BLOCK_E=_power(hidden))


@cache
def rope_cache(arch: str, heads: int, layers: int, kv_heads: int, block_size: int, head_dim: int) -> Launch:
    """Constants of ``rope_cache_kernel``; ``groups_of(heads)`` programs a token."""
    tile = TILES["rope_cache", arch]
    block = min(tile.m, _power(heads + 2 * kv_heads))
    sizes = {"H": heads, "K": kv_heads, "D": head_dim, "L": layers, "S": block_size}
    return _launch(tile, **sizes, BLOCK_H=block, BLOCK_D2=_power(head_dim // 2))


@cache
def silu_mul(arch: str, intermediate: int) -> Launch:
    """Constants of ``silu_mul_kernel``."""
    tile = TILES["silu_mul", arch]
    return _launch(tile, I=intermediate, BLOCK_I=min(tile.m, _power(intermediate)))


@cache
def copy_blocks(arch: str, block_elements: int, *, from_ids: bool, to_ids: bool) -> Launch:
    """Constants of ``copy_blocks_kernel``."""
    tile = TILES["copy_blocks", arch]
    chunk = min(tile.m, _power(block_elements))
    return _launch(tile, BLOCK_ELEMENTS=block_elements, FROM_IDS=from_ids, TO_IDS=to_ids, CHUNK=chunk)


@cache
def decode(
    arch: str,
    heads: int,
    layers: int,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    itemsize: int,
    splits: int,
    split_tokens: int,
) -> Launch:
    """Constants of ``decode_kernel``; ``split_tokens`` 0 shares each context out evenly over ``splits``."""
    tile = _by_width("decode", arch, itemsize)
    sizes = {"H": heads, "K": kv_heads, "D": head_dim, "L": layers, "S": block_size}
    splitting = {"SPLITS": splits, "SPLIT_TOKENS": split_tokens}
    rows = max(tile.m, _power(heads // kv_heads))
    return _launch(tile, **sizes, **splitting, ROWS=rows, BLOCK_N=tile.n, BLOCK_D=_dot(head_dim), UPCAST=arch == "cpu")


@cache
def merge(heads: int, head_dim: int, splits: int) -> Launch:
    """Constants of ``merge_kernel``, which takes ``MAX_SPLITS`` splits at a time."""
    return _launch(Tile(0, warps=4), H=heads, D=head_dim, SPLITS=splits, BLOCK_J=MAX_SPLITS, BLOCK_D=_power(head_dim))


@cache
def prefill(arch: str, heads: int, layers: int, kv_heads: int, block_size: int, head_dim: int, itemsize: int) -> Launch:
    """Constants of ``prefill_kernel``."""
    tile = _by_width("prefill", arch, itemsize)
    sizes = {"H": heads, "K": kv_heads, "D": head_dim, "L": layers, "S": block_size}
    return _launch(tile, **sizes, BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_D=_dot(head_dim), UPCAST=arch == "cpu")


@cache
def linear(arch: str, inputs: int, outputs: int, itemsize: int) -> Launch:
    """Constants of ``linear_kernel``."""
    tile = _by_width("linear", arch, itemsize)
    return _launch(tile, I=inputs, O=outputs, BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, UPCAST=arch == "cpu")


@cache
def sample(arch: str, vocabulary: int) -> Launch:
    """Constants of ``sample_kernel``."""
    tile = TILES["sample", arch]
    block = min(tile.m, _power(vocabulary))
    return _launch(tile, V=vocabulary, BLOCK_V=block, ROUNDS=ROUNDS, HALVINGS=HALVINGS)


def _launch(tile: Tile, **constants: int) -> Launch:
    return Launch(constants, tile.warps, tile.stages)


def _by_width(kernel: str, arch: str, itemsize: int) -> Tile:
    return TILES[f"{kernel}_wide" if itemsize >= WIDE and arch != "cpu" else kernel, arch]


def _power(size: int) -> int:
    """The power of two that holds ``size``."""
    return 1 << (size - 1).bit_length()


def _dot(size: int) -> int:
    """The same, at least the 16 that a dimension of ``tl.dot`` has."""
    return max(16, _power(size))
