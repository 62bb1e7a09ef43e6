"""The next token: greedy, drawn at a temperature, within top-p; never a matter of who else is in the batch."""

from __future__ import annotations

import pytest
from scipy.stats import chisquare

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from torch import Tensor

from gpu_backend import tiles
from gpu_backend.ops import Ops, load_ops
from gpu_backend.philox import ROUNDS, philox
from tests.executor import kernel_cases as cases
from tests.executor.kernel_cases import DEVICE

CHANCE = 1e-6
"""Of a right sampler failing a test of its distribution."""


@pytest.fixture(params=["torch", "triton"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return load_ops(request.param)


def drawn(ops: Ops, logits: Tensor, temperature: float, top_p: float, seeds: Tensor) -> Tensor:
    """A token for each seed, all from the same logits."""
    rows = len(seeds)
    same = logits.expand(rows, -1).contiguous().to(DEVICE)
    at, within = (torch.full((rows,), value, device=DEVICE) for value in (temperature, top_p))
    return ops.sample(same, at, within, seeds.to(DEVICE)).cpu()


def seeds_of(generator: torch.Generator, count: int) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)


def test_temperature_0_is_the_first_largest(ops: Ops) -> None:
    generator = cases.fresh_generator()
    logits = torch.randn(6, 300, generator=generator)
    logits[1, [7, 200, 299]] = logits[1].max() + 1
    logits[2, :] = -3.0
    zeros = torch.zeros(6, device=DEVICE)
    got = ops.sample(logits.to(DEVICE), zeros, zeros + 0.5, seeds_of(generator, 6).to(DEVICE)).cpu()
    assert got.dtype == torch.int64
    assert got.tolist()[1:3] == [7, 0]
    assert torch.equal(logits.gather(1, got[:, None])[:, 0], logits.amax(1))


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_draws_follow_the_softmax(ops: Ops, temperature: float) -> None:
    generator = cases.fresh_generator()
    logits = torch.randn(6, generator=generator)
    count = 20_000 if ops.name == "torch" else 150
    tokens = drawn(ops, logits, temperature, 1.0, seeds_of(generator, count))
    expected = (logits.double() / temperature).softmax(0) * count
    assert chisquare(tokens.bincount(minlength=6), expected).pvalue > CHANCE


def test_neighbouring_seeds_draw_independently() -> None:
    """Seeds that a program counts up are as good as random ones, in either half of their 64 bits."""
    for step in (1, 1 << 32):
        tokens = drawn(load_ops("torch"), torch.zeros(4), 1.0, 1.0, torch.arange(8_000) * step)
        assert chisquare(tokens.bincount(minlength=4)).pvalue > CHANCE
        pairs = tokens[:-1] * 4 + tokens[1:]
        assert chisquare(pairs[::2].bincount(minlength=16)).pvalue > CHANCE


@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.8, 0.99])
def test_top_p_keeps_the_fewest_likely_tokens_that_reach_it(ops: Ops, top_p: float) -> None:
    generator = cases.fresh_generator()
    logits = torch.randn(12, generator=generator) * 2
    order = logits.double().softmax(0).sort(descending=True)
    reached = order.values.cumsum(0) >= top_p
    kept = set(order.indices[: int(reached.int().argmax()) + 1].tolist())
    count = 4_000 if ops.name == "torch" else 6
    tokens = drawn(ops, logits, 1.0, top_p, seeds_of(generator, count)).tolist()
    assert set(tokens) <= kept
    if ops.name == "torch" and order.values[len(kept) - 1] > 0.01:
        assert set(tokens) == kept


def test_top_p_keeps_what_ties_with_the_last(ops: Ops) -> None:
    logits = torch.tensor([0.0, 3.0, 3.0, 3.0, -1.0])
    tokens = drawn(ops, logits, 1.0, 0.4, torch.arange(400 if ops.name == "torch" else 12))
    assert set(tokens.tolist()) == {1, 2, 3}


def test_both_draw_the_same_tokens() -> None:
    """The noise is the same function of seed and token, and 32,000 logits are more than one tile of any card."""
    generator = cases.fresh_generator()
    logits = (torch.randn(24, 32_000, generator=generator) * 3).to(DEVICE)
    temperature = (torch.rand(24, generator=generator) + 0.3).to(DEVICE)
    top_p = torch.tensor([0.0, 0.2, 0.9, 1.0], device=DEVICE).repeat(6)
    seeds = seeds_of(generator, 24).to(DEVICE)
    tokens = [load_ops(kind).sample(logits, temperature, top_p, seeds) for kind in ("torch", "triton")]
    assert torch.equal(*tokens)


def test_logits_in_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = cases.fresh_generator()
    logits = (torch.randn(6, 1_000, generator=generator) * 3).to(DEVICE)
    temperature = torch.tensor([0.0, 0.7, 1.0, 0.0, 0.7, 1.0], device=DEVICE)
    top_p = torch.tensor([1.0, 1.0, 1.0, 0.8, 0.8, 0.8], device=DEVICE)
    seeds = seeds_of(generator, 6).to(DEVICE)
    ops = load_ops("triton")
    whole = ops.sample(logits, temperature, top_p, seeds)
    arch = "cpu" if DEVICE.type == "cpu" else tiles.arch_of(torch.cuda.get_device_capability())
    with tiles.trying("sample", arch, tiles.Tile(128)):
        assert torch.equal(ops.sample(logits, temperature, top_p, seeds), whole)


def test_a_token_does_not_depend_on_its_batch(ops: Ops) -> None:
    generator = cases.fresh_generator()
    logits = torch.randn(8, 500, generator=generator).to(DEVICE)
    temperature = torch.tensor([0.0, 0.5, 1.0, 2.0] * 2, device=DEVICE)
    top_p = torch.tensor([1.0] * 4 + [0.9] * 4, device=DEVICE)
    seeds = seeds_of(generator, 8).to(DEVICE)
    together = ops.sample(logits, temperature, top_p, seeds)
    order = torch.randperm(8, generator=generator).to(DEVICE)
    turned = ops.sample(logits[order], temperature[order], top_p[order], seeds[order])
    assert torch.equal(turned, together[order])
    for row in range(8):
        own = slice(row, row + 1)
        assert torch.equal(ops.sample(logits[own], temperature[own], top_p[own], seeds[own]), together[own])


def test_philox_gives_the_published_numbers() -> None:
    """Known answers of the authors' library, Random123: word 0 of philox4x32 with 7 rounds at counter 0 and key 0."""
    assert ROUNDS == 7
    assert philox(torch.tensor([0]), torch.tensor([0])).tolist() == [[0x5F6FB709]]
