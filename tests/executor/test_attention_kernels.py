"""Attention over the paged cache against float64: heads, block sizes, dtypes, ragged lengths, poisoned memory."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from gpu_backend import tiles
from gpu_backend.kernel_reference import LAYER, Heads, attention
from gpu_backend.ops import Ops, load_ops
from tests.executor import kernel_cases as cases
from tests.executor.kernel_cases import DEVICE, DTYPES, HEADS

BLOCK_SIZES = (1, 4, 16, 32, 64, 128)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
by_heads = pytest.mark.parametrize("heads", HEADS, ids=str)


@pytest.fixture(params=["torch", "triton"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return load_ops(request.param)


def lengths_around(block_size: int) -> list[int]:
    """One token, and both sides of the ends of blocks."""
    return sorted({1, *(max(1, n * block_size + d) for n in (1, 2) for d in (-1, 0, 1))})


def check_decode(ops: Ops, lengths: list[int], heads: Heads, block_size: int, dtype: torch.dtype) -> None:
    generator = cases.fresh_generator()
    memory = cases.paged(generator, lengths, heads, block_size, dtype)
    q = cases.normal(generator, len(lengths), heads.queries, heads.dim, dtype=dtype)
    contexts = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    got = ops.decode_attention(q, memory.cache, LAYER, memory.tables, contexts)
    expected = [
        attention(q[row : row + 1], memory.keys[row], memory.values[row], length - 1)
        for row, length in enumerate(lengths)
    ]
    cases.check_close(got, torch.cat(expected), dtype)


@by_dtype
@by_heads
def test_decode(ops: Ops, heads: Heads, dtype: torch.dtype) -> None:
    check_decode(ops, lengths_around(16), heads, 16, dtype)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_decode_in_blocks_of_any_size(ops: Ops, block_size: int) -> None:
    check_decode(ops, lengths_around(block_size), HEADS[1], block_size, torch.float32)


@pytest.mark.parametrize("kind", ["torch", "triton"])
def test_decode_that_does_not_depend_on_the_batch(kind: str) -> None:
    check_decode(load_ops(kind, batch_invariant=True), [1, 17, 256, 257, 513], Heads(3, 1, 32), 16, torch.float32)


@by_dtype
@pytest.mark.parametrize("splits", [2, 4])
def test_decode_merges_what_several_programs_found(
    splits: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short rows leave splits without a token, of which the merge must make nothing."""
    monkeypatch.setattr(tiles, "decode_splits", lambda *_: splits)
    check_decode(load_ops("triton"), [1, 129, 400], Heads(3, 1, 32), 16, dtype)


def test_decode_in_more_splits_than_are_merged_at_once() -> None:
    assert tiles.MAX_SPLITS * tiles.SPLIT_TOKENS < 4_200
    check_decode(load_ops("triton", batch_invariant=True), [4_200, 7], Heads(2, 1, 16), 64, torch.float32)


def test_a_row_without_context_gives_zeros(ops: Ops) -> None:
    """So do the rows that fill a CUDA graph up; all that their tables point to is NaN."""
    generator = cases.fresh_generator()
    memory = cases.paged(generator, [5, 5, 5], HEADS[1], 16, torch.float32)
    memory.tables[1] = memory.tables[0, -1]
    q = cases.normal(generator, 3, HEADS[1].queries, HEADS[1].dim)
    contexts = torch.tensor([5, 0, 5], dtype=torch.int32, device=DEVICE)
    got = ops.decode_attention(q, memory.cache, LAYER, memory.tables, contexts)
    assert not got[1].any()
    assert got.isfinite().all()


def check_prefill(ops: Ops, chunks: list[tuple[int, int]], heads: Heads, block_size: int, dtype: torch.dtype) -> None:
    """Chunks by their start and length, all in one call."""
    generator = cases.fresh_generator()
    memory = cases.paged(generator, [start + length for start, length in chunks], heads, block_size, dtype)
    ends = torch.tensor([0, *(length for _, length in chunks)]).cumsum(0).tolist()
    q = cases.normal(generator, ends[-1], heads.queries, heads.dim, dtype=dtype)
    starts = torch.tensor([start for start, _ in chunks], dtype=torch.int32, device=DEVICE)
    cu = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    longest = max(length for _, length in chunks)
    got = ops.prefill_attention(q, memory.cache, LAYER, memory.tables, starts, cu, longest)
    expected = [
        attention(q[ends[row] : ends[row + 1]], memory.keys[row], memory.values[row], start)
        for row, (start, _) in enumerate(chunks)
    ]
    cases.check_close(got, torch.cat(expected), dtype)


@by_dtype
@by_heads
def test_prefill_of_whole_prompts(ops: Ops, heads: Heads, dtype: torch.dtype) -> None:
    check_prefill(ops, [(0, length) for length in (1, 15, 16, 17, 33)], heads, 16, dtype)


@by_dtype
def test_prefill_of_chunks(ops: Ops, dtype: torch.dtype) -> None:
    """A chunk that starts in a block, at its edge or at its last slot, beside a whole prompt, all of other lengths."""
    check_prefill(ops, [(16, 5), (0, 18), (15, 2), (31, 1), (7, 40)], HEADS[1], 16, dtype)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_prefill_in_blocks_of_any_size(ops: Ops, block_size: int) -> None:
    check_prefill(ops, [(0, block_size + 1), (block_size, block_size - 1 or 1)], HEADS[1], block_size, torch.float32)


@pytest.mark.parametrize(("start", "length"), [(0, 128), (0, 257), (130, 129), (255, 2)])
def test_prefill_past_the_end_of_a_tile(ops: Ops, start: int, length: int) -> None:
    """Tiles that need no mask before the ones that do."""
    check_prefill(ops, [(start, length), (0, 3)], Heads(2, 1, 16), 16, torch.float32)


def test_prefill_of_one_token_is_decode() -> None:
    """In the other order of the sums, so to rounding."""
    for kind in ("torch", "triton"):
        check_prefill(load_ops(kind), [(32, 1), (0, 1)], HEADS[0], 16, torch.float32)


def test_no_rows_and_no_chunks(ops: Ops) -> None:
    heads = HEADS[0]
    memory = cases.paged(cases.fresh_generator(), [3], heads, 16, torch.float32)
    none = torch.empty(0, heads.queries, heads.dim, device=DEVICE)
    no_tables, no_rows = memory.tables[:0], torch.empty(0, dtype=torch.int32, device=DEVICE)
    assert ops.decode_attention(none, memory.cache, LAYER, no_tables, no_rows).shape == none.shape
    zero = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    assert ops.prefill_attention(none, memory.cache, LAYER, no_tables, no_rows, zero, 0).shape == none.shape


@pytest.mark.parametrize("kind", ["torch", "triton"])
@by_dtype
def test_batch_invariant_attention(kind: str, dtype: torch.dtype) -> None:
    """A row alone, with a table no wider than it needs, gives the same bits as beside others."""
    ops = load_ops(kind, batch_invariant=True)
    generator = cases.fresh_generator()
    lengths, heads = [300, 5, 512], Heads(3, 1, 32)
    memory = cases.paged(generator, lengths, heads, 16, dtype)
    q = cases.normal(generator, len(lengths), heads.queries, heads.dim, dtype=dtype)
    contexts = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    together = ops.decode_attention(q, memory.cache, LAYER, memory.tables, contexts)
    for row, length in enumerate(lengths):
        own = slice(row, row + 1)
        table = memory.tables[own, : -(-length // 16)].contiguous()
        alone = ops.decode_attention(q[own], memory.cache, LAYER, table, contexts[own])
        assert torch.equal(alone, together[own]), f"row {row}"
