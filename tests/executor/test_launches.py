"""What ``TritonOps`` launches is what the ahead-of-time gate compiles: constants, options, and types of arguments."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from gpu_backend import tiles, triton_ops
from gpu_backend.aot_variants import Variant, variants
from gpu_backend.triton_ops import TritonOps
from policies.catalog import model

POINTERS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
SEVEN_B = model("llama-2-7b")
NOWHERE = torch.device("meta")
"""Tensors of a 7B's size that take no memory."""


class Launched:
    """Stands for a kernel and keeps what it is launched with."""

    def __init__(self, kernel: Any, seen: list[tuple[str, dict[str, str], dict[str, int]]]) -> None:
        self.kernel = kernel
        self.seen = seen

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(size > 0 for size in grid)
        return self._launch

    def _launch(self, *arguments: Any, **options: int) -> None:
        types = dict(zip(self.kernel.arg_names, map(type_of, arguments), strict=False))
        self.seen.append((self.kernel.__name__, types, options))


def type_of(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        assert argument.is_contiguous()
        return POINTERS[argument.dtype]
    return "fp32" if isinstance(argument, float) else "i32"


def tensor(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=NOWHERE)


def ints(*size: int, wide: bool = False) -> torch.Tensor:
    return tensor(*size, dtype=torch.int64 if wide else torch.int32)


def call_everything(ops: TritonOps, fixed_tiles: TritonOps) -> None:
    """Each operation at the shapes of Llama-2-7B, block size 16."""
    shape = SEVEN_B
    rows, heads, dim = 6, shape.heads, shape.head_dim
    cache = tensor(40, shape.layers, 2, shape.kv_heads, 16, dim)
    x, gain = tensor(rows, shape.hidden), tensor(shape.hidden)
    ops.rms_norm(x, gain, 1e-5)
    ops.add_rms_norm(x, tensor(rows, shape.hidden), gain, 1e-5)
    ops.silu_mul(tensor(rows, 2 * shape.intermediate))
    fixed_tiles.linear(x, tensor(2 * shape.intermediate, shape.hidden))
    qkv = tensor(rows, (heads + 2 * shape.kv_heads) * dim)
    table = tensor(shape.max_model_len, dim, dtype=torch.float32)
    q = ops.rope_and_write(qkv, table, ints(rows, wide=True), ints(rows, wide=True), cache, 3)
    ops.decode_attention(q, cache, 3, ints(rows, 8), ints(rows))
    ops.decode_attention(tensor(64, heads, dim), cache, 3, ints(64, 8), ints(64))
    ops.prefill_attention(q, cache, 3, ints(2, 8), ints(2), ints(3), 5)
    blocks = ops.gather_blocks(cache, ints(2, wide=True))
    ops.scatter_blocks(cache, ints(2, wide=True), blocks)
    ops.copy_blocks(cache, ints(2, wide=True), ints(2, wide=True))
    setting = tensor(rows, dtype=torch.float32)
    ops.sample(tensor(rows, shape.vocab, dtype=torch.float32), setting, setting, ints(rows, wide=True))


def as_launched(variant: Variant) -> tuple[str, dict[str, str], dict[str, int]]:
    return f"{variant.kernel}_kernel", variant.types, variant.launch.options


@pytest.mark.parametrize("arch", tiles.ARCHS)
def test_all_launches_are_compiled_ahead_of_time(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, dict[str, str], dict[str, int]]] = []
    names = [name for name in vars(triton_ops) if name.endswith("_kernel")]
    for name in names:
        monkeypatch.setattr(triton_ops, name, Launched(getattr(triton_ops, name), seen))
    # The gate compiles one number of splits for all: they differ by a constant.
    monkeypatch.setattr(tiles, "decode_splits", lambda _arch, rows, _heads: 1 if rows > 32 else 8)
    monkeypatch.setattr(tiles, "arch_of", lambda _capability: arch)
    call_everything(TritonOps(), TritonOps(batch_invariant=True))
    assert {name for name, _, _ in seen} == set(names)
    compiled = [as_launched(variant) for variant in variants((arch,))]
    for launch in seen:
        assert launch in compiled
