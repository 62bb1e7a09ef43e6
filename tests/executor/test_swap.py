"""Blocks that go to host memory come back bit by bit, whatever blocks they come back to."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from torch import Tensor, dtype

torch = pytest.importorskip("torch")

from gpu_backend.cache import KvCache  # noqa: E402
from gpu_backend.swap import SwapPool, pinned_bytes, runs  # noqa: E402
from policies.catalog import model  # noqa: E402
from policies.core.errors import ContractError  # noqa: E402
from policies.core.plan import Transfer  # noqa: E402

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def cache_of(dtype: dtype = torch.float32, num_blocks: int = 12) -> KvCache:
    cache = KvCache(num_blocks, model("tiny"), 4, dtype, torch.device("cpu"))
    words = cache.blocks_NL2KSD.view(torch.int16)
    generator = torch.Generator().manual_seed(1)
    words.copy_(torch.randint(-(2**15), 2**15, words.shape, generator=generator, dtype=torch.int16))
    return cache


def content(cache: KvCache, blocks: list[int]) -> Tensor:
    return cache.blocks_NL2KSD.view(torch.int16)[blocks].clone()


@given(st.data())
def test_what_comes_back_is_what_went_out(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    cache = cache_of(dtype)
    pool = SwapPool(10, cache)
    blocks = st.integers(1, 8)
    src = data.draw(st.permutations(range(12)))[: data.draw(blocks)]
    host = data.draw(st.permutations(range(10)))[: len(src)]
    back = data.draw(st.permutations(range(12)))[: len(src)]
    before = content(cache, src)
    untouched = [block for block in range(12) if block not in (*src, *back)]
    beside = content(cache, untouched)
    pool.start([Transfer(1, 0, "out", tuple(src), tuple(host), True)])
    cache.blocks_NL2KSD[src] = float("nan")
    pool.start([Transfer(2, 0, "in", tuple(host), tuple(back), True)])
    assert torch.equal(content(cache, back), before)
    assert torch.equal(content(cache, untouched), beside)
    assert [(moved.key, moved.kind, moved.num_bytes) for moved in pool.done()] == [
        (1, "out", len(src) * cache.block_bytes),
        (2, "in", len(src) * cache.block_bytes),
    ]
    assert pool.done() == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12))
def test_runs_move_every_block_once_and_are_as_few_as_can_be(pairs: list[tuple[int, int]]) -> None:
    src, dst = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = runs(src, dst)
    assert [(run.src + i, run.dst + i) for run in found for i in range(run.blocks)] == pairs
    neighbours = [(b[0] - a[0], b[1] - a[1]) == (1, 1) for a, b in pairwise(pairs)]
    assert len(found) == len(pairs) - sum(neighbours)


def test_neighbours_are_one_copy() -> None:
    cache = cache_of()
    pool = SwapPool(8, cache)
    pool.start([Transfer(1, 0, "out", (3, 4, 5, 9), (0, 1, 2, 3), True)])
    (moved,) = pool.done()
    assert moved.pieces == 2
    assert moved.seconds > 0


def test_a_plan_moves_in_its_order() -> None:
    """A request goes out of the block that another comes into, in one plan."""
    cache = cache_of()
    pool = SwapPool(4, cache)
    first, second = content(cache, [5]), content(cache, [7])
    pool.start([Transfer(1, 0, "out", (5,), (0,), True)])
    pool.start([Transfer(2, 1, "out", (7,), (1,), True), Transfer(3, 0, "in", (0,), (7,), True)])
    assert torch.equal(content(cache, [7]), first)
    pool.start([Transfer(4, 1, "in", (1,), (5,), True)])
    assert torch.equal(content(cache, [5]), second)
    assert [moved.key for moved in pool.done()] == [1, 2, 3, 4]


@pytest.mark.parametrize("transfer", [
    Transfer(1, 0, "out", (12,), (0,), True),
    Transfer(1, 0, "out", (-1,), (0,), True),
    Transfer(1, 0, "in", (0,), (12,), True),
    Transfer(1, 0, "out", (1, 2), (0,), True),
    Transfer(1, 0, "send", (1,), (0,), True),
])  # fmt: skip
def test_a_transfer_that_cannot_be_is_a_broken_contract(transfer: Transfer) -> None:
    cache = cache_of()
    before = content(cache, list(range(12)))
    with pytest.raises(ContractError):
        SwapPool(4, cache).start([transfer])
    assert torch.equal(content(cache, list(range(12))), before)


def test_a_pool_of_no_blocks_moves_nothing() -> None:
    assert SwapPool(0, cache_of()).done() == []


@pytest.mark.parametrize(("asked", "taken"), [(1, 1), (4096, 4096), (4097, 8192), (20 << 30, 32 << 30)])
def test_pinned_memory_is_counted_as_torch_takes_it(asked: int, taken: int) -> None:
    assert pinned_bytes(asked) == taken
