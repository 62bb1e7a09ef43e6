"""Runs on the shipped costs: clients in a closed loop, and the side that preemption takes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from policies.catalog import card, model
from policies.presets import preset
from sim import simulate
from sim.api import Result
from sim.config import load_config
from sim.costs.floor import floor_of
from sim.costs.swap import break_even_bytes_per_s, swap_choice
from sim.machine import costs_of, shape_of
from tests.command import CHAT, batchscope, own_csv, settings

LEVELS = (1, 4, 8, 16, 32)
FLOOR_MS = {1: 6.55, 4: 6.76, 8: 7.05, 16: 7.61, 32: 8.74}
"""Of a mean step: the weights, and the KV of prompt and half the answer, 275 tokens, over the bandwidth."""


@cache
def clients(concurrency: int) -> Result:
    """A hundred requests of that many clients, each of which asks again as soon as it has its answer."""
    keys = ("workload.generator=closed-loop", *CHAT[1:], "workload.num_requests=100", "hardware.host_term=false")
    return simulate(policy="vllm-0.11", overrides=(*keys, f"workload.concurrency={concurrency}"))


@pytest.mark.parametrize(("concurrency", "least_ms", "most_ms"), [(1, 9.6, 10.4), (32, 13.0, 15.0)])
def test_time_between_tokens_of_one_and_of_32_clients(concurrency: int, least_ms: float, most_ms: float) -> None:
    assert least_ms <= 1e3 * clients(concurrency).summary["itl_s"]["mean"] <= most_ms


@pytest.mark.parametrize("concurrency", LEVELS)
def test_no_time_between_tokens_is_under_the_floor(concurrency: int) -> None:
    floor_ms = 1e3 * floor_of(model("llama-2-7b"), card("a100-80gb")).decode_s(concurrency, 275 * concurrency)
    assert floor_ms == pytest.approx(FLOOR_MS[concurrency], rel=0.01)
    assert 1e3 * clients(concurrency).summary["itl_s"]["mean"] > FLOOR_MS[concurrency]


def test_more_clients_wait_longer_and_get_more() -> None:
    summaries = [clients(concurrency).summary for concurrency in LEVELS]
    for name in ("ttft_s", "itl_s"):
        means = [summary[name]["mean"] for summary in summaries]
        assert means == sorted(means), name
    rates = [summary["throughput"]["output_tokens_per_s"] for summary in summaries]
    assert rates == sorted(rates)
    assert rates[-1] > 10 * rates[0]
    assert all(sum(summary["preemptions"].values()) == 0 for summary in summaries)


def test_jumps_across_knots_of_the_context_change_nothing(tmp_path: Path) -> None:
    """Contexts of 200 to 1,500 tokens pass the knots at 256, 512 and 1,024 while decoding."""
    keys = (
        "workload.generator=poisson",
        "workload.rate_per_s=3",
        "workload.num_requests=60",
        'workload.prompt={dist="uniform", low=200, high=900}',
        'workload.output={dist="uniform", low=100, high=600}',
        "sim.record=steps",
    )
    jumped, stepped = (
        simulate(policy="vllm-0.6", out=tmp_path / mode, overrides=(*keys, f"sim.skip_ahead={mode}"))
        for mode in ("true", "false")
    )
    assert jumped.requests.equals(stepped.requests)
    assert jumped.steps is not None
    assert stepped.steps is not None
    assert jumped.steps.equals(stepped.steps)
    assert jumped.summary["steps"]["quiet_run_mean"] > 3


NUM_TOKENS = 992


def auto_picks(tmp_path: Path, model_name: str, keys: tuple[str, ...]) -> set[str]:
    """How ``preemption_mode = auto`` gets a sequence of about ``NUM_TOKENS`` out of the way."""
    trace = tmp_path / "two.csv"
    trace.write_text(own_csv((0, NUM_TOKENS, 8), (0, NUM_TOKENS, 8)))
    engine = ('engine.preemption_mode="auto"', "engine.watermark=0.0", f"engine.num_gpu_blocks={2 * NUM_TOKENS // 16}")
    run = simulate(trace=str(trace), policy="vllm-0.6", model=model_name, overrides=(*engine, *keys))
    return {mode for mode in ("recompute", "swap") if run.summary["preemptions"][mode]}


@pytest.mark.parametrize("model_name", ["llama-2-7b", "llama-3-8b"])
@pytest.mark.parametrize("side", [0.8, 1.25])
def test_auto_picks_what_hardware_predicts_on_both_sides_of_the_break_even(
    model_name: str, side: float, tmp_path: Path
) -> None:
    """``llama-2-7b`` has a KV head for each head, ``llama-3-8b`` one for four: a quarter of the bytes."""
    config = load_config({"workload": {"trace": "any"}, "model": {"name": model_name}})
    shape = shape_of(config)
    costs = costs_of(config, shape, card("a100-80gb"), preset("vllm-0.6"))
    rate = side * break_even_bytes_per_s(costs, NUM_TOKENS)
    keys = ("hardware.swap_layout=block", "hardware.swap_copy_s=0", f"hardware.swap_bytes_per_s={rate}")
    shown = batchscope("hardware", "show", "a100-80gb", "--model", model_name, "--policy", "vllm-0.6", *settings(*keys))
    expected = "swap" if side > 1 else "recompute"
    assert f"{expected} wins; preemption_mode = auto decides by this" in shown.stdout
    assert auto_picks(tmp_path, model_name, keys) == {expected}


@pytest.mark.parametrize("model_name", ["llama-2-7b", "llama-3-8b"])
def test_the_layout_of_copies_turns_the_choice(model_name: str, tmp_path: Path) -> None:
    """As layers apart, one piece for each K and V, it takes as long as the copies; as a block it takes the bytes."""
    for layout in ("layers", "block"):
        keys = (f"hardware.swap_layout={layout}",)
        config = load_config({"workload": {"trace": "any"}, "model": {"name": model_name}}, keys)
        costs = costs_of(config, shape_of(config), card("a100-80gb"), preset("vllm-0.6"))
        pieces = 1 if layout == "block" else costs.shape.swap_pieces_per_block()
        expected = swap_choice(costs, NUM_TOKENS, 16, pieces).winner
        assert expected == ("swap" if layout == "block" else "recompute")
        assert auto_picks(tmp_path, model_name, keys) == {expected}


