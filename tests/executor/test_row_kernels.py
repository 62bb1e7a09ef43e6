"""What a model does to each token by itself, and whole blocks of the cache, against float64."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import gpu_backend.kernels
from gpu_backend.kernel_reference import LAYER, NUM_LAYERS, Heads, normed, rotated
from gpu_backend.ops import Ops, load_ops
from tests.executor import kernel_cases as cases
from tests.executor.kernel_cases import DEVICE, DTYPES, HEADS

EPS = 1e-5
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture(params=["torch", "triton"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return load_ops(request.param)


@by_dtype
@pytest.mark.parametrize("hidden", [64, 100])
def test_rms_norm(ops: Ops, hidden: int, dtype: torch.dtype) -> None:
    generator = cases.fresh_generator()
    x, weight = cases.normal(generator, 5, hidden, dtype=dtype), cases.normal(generator, hidden, dtype=dtype)
    cases.check_close(ops.rms_norm(x, weight, EPS), normed(x, weight, EPS), dtype)


@by_dtype
def test_add_rms_norm(ops: Ops, dtype: torch.dtype) -> None:
    generator = cases.fresh_generator()
    x, residual = (cases.normal(generator, 5, 96, dtype=dtype) for _ in range(2))
    weight = cases.normal(generator, 96, dtype=dtype)
    total = x.double().cpu() + residual.double().cpu()
    got, added = ops.add_rms_norm(x, residual, weight, EPS)
    cases.check_close(added, total, dtype)
    cases.check_close(got, normed(added, weight, EPS), dtype)


@by_dtype
def test_silu_mul(ops: Ops, dtype: torch.dtype) -> None:
    generator = cases.fresh_generator()
    gate_up = cases.normal(generator, 5, 2 * 72, dtype=dtype)
    gate, up = gate_up.double().cpu().chunk(2, dim=-1)
    cases.check_close(ops.silu_mul(gate_up), F.silu(gate) * up, dtype)


def test_silu_of_large_numbers(ops: Ops) -> None:
    """exp of the gate would overflow in either direction."""
    gate = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4]], device=DEVICE)
    got = ops.silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=-1))
    assert got.tolist() == [[0.0, pytest.approx(0.0, abs=1e-30), 0.0, 100.0, 1e4]]


@by_dtype
@pytest.mark.parametrize("invariant", [False, True], ids=["library", "fixed-tiles"])
def test_linear(ops: Ops, invariant: bool, dtype: torch.dtype) -> None:
    generator = cases.fresh_generator()
    x, weight = cases.normal(generator, 70, 300, dtype=dtype), cases.normal(generator, 90, 300, dtype=dtype)
    got = load_ops(ops.name, batch_invariant=invariant).linear(x, weight)
    cases.check_close(got, x.double().cpu() @ weight.double().cpu().T, dtype)


@by_dtype
@pytest.mark.parametrize("num_tokens", [1, 6, 7, 15, 16])
def test_few_rows_times_a_large_weight(ops: Ops, num_tokens: int, dtype: torch.dtype) -> None:
    """Where a CPU's library is slow the rows are filled up, which nobody sees."""
    generator = cases.fresh_generator()
    x, weight = cases.normal(generator, num_tokens, 160, dtype=dtype), cases.normal(generator, 3_300, 160, dtype=dtype)
    got = ops.linear(x, weight)
    assert got.shape == (num_tokens, 3_300)
    cases.check_close(got, x.double().cpu() @ weight.double().cpu().T, dtype)


@by_dtype
def test_batch_invariant_rows(ops: Ops, dtype: torch.dtype) -> None:
    """Each row alone gives the same bits as beside others."""
    ops = load_ops(ops.name, batch_invariant=True)
    generator = cases.fresh_generator()
    x, gain = cases.normal(generator, 66, 128, dtype=dtype), cases.normal(generator, 128, dtype=dtype)
    weight = cases.normal(generator, 96, 128, dtype=dtype)
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda rows: ops.linear(rows, weight),
        lambda rows: ops.rms_norm(rows, gain, EPS),
        ops.silu_mul,
    ]
    for call in calls:
        together = call(x)
        for row in (0, 31, 65):
            assert torch.equal(call(x[row : row + 1]), together[row : row + 1])


def check_rope(ops: Ops, heads: Heads, block_size: int, dtype: torch.dtype) -> None:
    """Tokens at any positions, two of which write nothing, into a cache of NaN."""
    generator = cases.fresh_generator()
    num_tokens, num_positions = 7, 50
    all_heads = heads.queries + 2 * heads.shared
    qkv = cases.normal(generator, num_tokens, all_heads * heads.dim, dtype=dtype)
    angles = torch.rand(num_positions, heads.dim // 2, generator=generator, dtype=torch.float64) * 6
    table = torch.cat((angles.cos(), angles.sin()), dim=-1).float().to(DEVICE)
    positions = torch.randint(num_positions, (num_tokens,), generator=generator)
    slots = torch.randperm(6 * block_size + 9, generator=generator)[:num_tokens]
    slots[[1, 4]] = -1
    size = (-(-(6 * block_size + 9) // block_size), NUM_LAYERS, 2, heads.shared, block_size, heads.dim)
    cache = torch.full(size, torch.nan, dtype=dtype, device=DEVICE)

    got = ops.rope_and_write(qkv, table, positions.to(DEVICE), slots.to(DEVICE), cache, LAYER)

    q, k, v = qkv.cpu().view(num_tokens, all_heads, heads.dim).split((heads.queries, heads.shared, heads.shared), dim=1)
    cases.check_close(got, rotated(q, angles[positions]), dtype)
    written = [token for token in range(num_tokens) if slots[token] >= 0]
    expected = {0: rotated(k, angles[positions])[written], 1: v[written].double()}
    for plane, numbers in expected.items():
        block, offset = slots[written] // block_size, slots[written] % block_size
        cases.check_close(cache.cpu()[block, LAYER, plane, :, offset], numbers, dtype)
    assert int(cache.isfinite().sum()) == len(written) * 2 * heads.shared * heads.dim


@by_dtype
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_rope_and_write(ops: Ops, heads: Heads, dtype: torch.dtype) -> None:
    check_rope(ops, heads, 16, dtype)


@pytest.mark.parametrize("block_size", [1, 32, 64, 128])
def test_rope_and_write_in_blocks_of_any_size(ops: Ops, block_size: int) -> None:
    check_rope(ops, HEADS[1], block_size, torch.float32)


@by_dtype
def test_blocks_go_out_come_back_and_are_copied(ops: Ops, dtype: torch.dtype) -> None:
    generator = cases.fresh_generator()
    cache = cases.normal(generator, 9, NUM_LAYERS, 2, 3, 16, 20, dtype=dtype)
    before = cache.clone()
    out, back = (torch.tensor(ids, device=DEVICE) for ids in ([7, 0, 4], [2, 8, 7]))
    blocks = ops.gather_blocks(cache, out)
    assert torch.equal(blocks, before[out])
    ops.scatter_blocks(cache, back, blocks)
    assert torch.equal(cache[back], before[out])
    ops.copy_blocks(cache, torch.tensor([1, 3], device=DEVICE), torch.tensor([5, 6], device=DEVICE))
    assert torch.equal(cache[[5, 6]], before[[1, 3]])
    untouched = [0, 1, 3, 4]
    assert torch.equal(cache[untouched], before[untouched])


def test_no_tokens(ops: Ops) -> None:
    ops = load_ops(ops.name, batch_invariant=True)
    rows, weight = torch.empty(0, 64, device=DEVICE), torch.ones(32, 64, device=DEVICE)
    assert ops.rms_norm(rows, weight[0], EPS).shape == (0, 64)
    assert ops.silu_mul(rows).shape == (0, 32)
    assert ops.linear(rows, weight).shape == (0, 32)
    no_ids = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert ops.gather_blocks(weight.view(2, 1, 1, 1, 16, 64), no_ids).shape[0] == 0


def test_every_kernel_has_a_case_in_bfloat16() -> None:
    """Interpreted runs add and multiply bfloat16 as if it were integers, and do not say so: a load that forgets its
    cast shows in the cases of this dtype alone, so that each kernel needs one."""
    here = {"rms_norm_kernel", "silu_mul_kernel", "linear_kernel", "rope_cache_kernel", "copy_blocks_kernel"}
    among_attention_kernels = {"decode_kernel", "merge_kernel", "prefill_kernel"}
    reads_float32_alone = {"sample_kernel"}
    folder = Path(gpu_backend.kernels.__path__[0])
    found = {
        name
        for file in folder.glob("[a-z]*.py")
        for name in vars(import_module(f"gpu_backend.kernels.{file.stem}"))
        if name.endswith("_kernel")
    }
    assert found == here | among_attention_kernels | reads_float32_alone
