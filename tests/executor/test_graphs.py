"""What CUDA graphs replay is a padded batch: it must give what the batch alone gives, and write nothing more.

Run eagerly here, so that it is checked without a GPU; ``DecodeGraphs`` replays the very same call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch import Tensor

torch = pytest.importorskip("torch")

from gpu_backend.device import placement  # noqa: E402
from gpu_backend.graphs import (  # noqa: E402
    DecodeGraphs,
    empty_decode_batch,
    fill_decode_batch,
    fitting_size,
    graph_sizes,
)
from gpu_backend.model import open_model  # noqa: E402
from gpu_backend.runner import GREEDY, StepRunner  # noqa: E402
from gpu_backend.step_batch import StepBatch  # noqa: E402
from tests.executor.sequences import Sequences  # noqa: E402

NAMES = ("a", "b", "c")
COLUMNS = 12


@pytest.fixture
def run() -> Sequences:
    """Three requests of different lengths that decode; all other memory is NaN."""
    started = Sequences(open_model("tiny", placement("cpu", batch_invariant=True), seed=3), num_blocks=24)
    for name, length in zip(NAMES, (1, 7, 16), strict=True):
        started.add(name, range(5, 5 + length))
        started.step(chunks={name: length})
    return started


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32)


def forward(run: Sequences, batch: StepBatch) -> Tensor:
    return run.model.forward(batch, run.tokens_RP, run.cache.blocks_NL2KSD)


@pytest.mark.parametrize("size", [3, 4, 8])
def test_padding_changes_no_bit_and_writes_nothing(run: Sequences, size: int) -> None:
    batch = run.batch(NAMES)
    before = run.cache.blocks_NL2KSD.clone()
    logits = forward(run, batch)
    after = run.cache.blocks_NL2KSD.clone()
    padded = empty_decode_batch(size, COLUMNS, run.model.device)
    fill_decode_batch(padded, batch)
    run.cache.blocks_NL2KSD.copy_(before)
    assert torch.equal(bits(forward(run, padded)[:3]), bits(logits))
    assert torch.equal(bits(run.cache.blocks_NL2KSD), bits(after))
    assert not torch.equal(bits(before), bits(after))


def test_nothing_of_a_larger_batch_is_left_behind(run: Sequences) -> None:
    """The buffers of a graph are used again and again: stale rows would write into memory that is others' by now, stale
    columns and contexts would be looked up."""
    padded = empty_decode_batch(4, COLUMNS, run.model.device)
    fill_decode_batch(padded, run.batch(NAMES))
    one = run.batch(["b"])
    fill_decode_batch(padded, one)
    fresh = empty_decode_batch(4, COLUMNS, run.model.device)
    fill_decode_batch(fresh, one)
    for left, right in zip(padded, fresh, strict=True):
        assert left == right if isinstance(left, int) else torch.equal(left, right)
    before = run.cache.blocks_NL2KSD.clone()
    expected = forward(run, one)
    run.cache.blocks_NL2KSD.copy_(before)
    assert torch.equal(bits(forward(run, padded)[:1]), bits(expected))


def test_padding_alone_computes_and_writes_nothing(run: Sequences) -> None:
    before = run.cache.blocks_NL2KSD.clone()
    logits = forward(run, empty_decode_batch(4, COLUMNS, run.model.device))
    assert bool(logits.isfinite().all())
    assert torch.equal(bits(run.cache.blocks_NL2KSD), bits(before))


def test_sizes_end_with_the_first_that_holds_the_batch() -> None:
    assert graph_sizes(1) == (1,)
    assert graph_sizes(9) == (1, 2, 4, 8, 12)
    assert graph_sizes(64)[-3:] == (32, 48, 64)
    assert graph_sizes(65)[-2:] == (64, 96)
    assert graph_sizes(256)[-2:] == (224, 256)


def test_a_graph_is_taken_where_one_fits(run: Sequences) -> None:
    sizes = graph_sizes(4)
    assert fitting_size(sizes, run.batch(NAMES), COLUMNS) == 4
    assert fitting_size(sizes, run.batch(NAMES[:2]), COLUMNS) == 2
    assert fitting_size((1, 2), run.batch(NAMES), COLUMNS) is None
    assert fitting_size(sizes, run.batch(NAMES, columns=COLUMNS + 1), COLUMNS) is None
    run.add("d", [1, 2, 3])
    assert fitting_size(sizes, run.batch(NAMES, {"d": 2}), COLUMNS) is None
    assert fitting_size(sizes, run.batch([], {"d": 2}), COLUMNS) is None


def test_without_cuda_every_step_is_eager(run: Sequences) -> None:
    graphs = DecodeGraphs(run.model, run.cache, run.tokens_RP, max_batch=8, max_columns=COLUMNS)
    batch = run.batch(NAMES)
    assert graphs.sizes == ()
    assert torch.equal(graphs.logits(batch, run.tokens_RP), forward(run, batch))


def test_a_table_of_tokens_grows_where_nothing_is_captured(run: Sequences) -> None:
    runner = StepRunner(run.model, run.cache, num_rows=4, num_columns=16, sampling=GREEDY, depth=1)
    runner.graphs = DecodeGraphs(run.model, run.cache, runner.tokens_RP, max_batch=2, max_columns=COLUMNS)
    runner.grow(8)
    assert runner.tokens_RP.shape == (8, 16)
    assert runner.graphs.sizes == ()
