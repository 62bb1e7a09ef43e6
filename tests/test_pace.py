"""A machine whose speed changes while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from sim.api import prepare, run_setup
from sim.config import load_config
from sim.world.pace import Pace

AT_ONCE = {
    "generator": "closed-loop",
    "concurrency": 24,
    "num_requests": 24,
    "prompt": {"dist": "uniform", "low": 20, "high": 400},
    "output": {"dist": "uniform", "low": 5, "high": 60},
}


def summary(preset: str, pace: Pace | None = None, num_gpu_blocks: int = 120) -> dict[str, Any]:
    """Of requests that all come at once, short of KV memory."""
    tables = {"workload": AT_ONCE, "engine": {"num_gpu_blocks": num_gpu_blocks, "max_model_len": 512}}
    return run_setup(prepare(load_config(tables, (), policy=preset)), pace=pace).summary


@pytest.mark.parametrize("preset", ["vllm-0.11", "vllm-0.6-swap", "sglang-0.4.9", "vllm-0.6-multi-step"])
def test_at_a_constant_pace_all_times_are_multiples(preset: str) -> None:
    usual, once, thrice = summary(preset), summary(preset, lambda now_s: 1.0), summary(preset, lambda now_s: 3.0)
    assert usual["preemptions"] == once["preemptions"] == thrice["preemptions"]
    for name in ("ttft_s", "itl_s", "e2e_s"):
        assert once[name]["p90"] == pytest.approx(usual[name]["p90"])
        assert thrice[name]["p90"] == pytest.approx(3 * usual[name]["p90"])
    assert thrice["duration_s"] == pytest.approx(3 * usual["duration_s"])


def test_what_begins_after_the_change_is_slower() -> None:
    usual = summary("vllm-0.11")
    middle_s = usual["duration_s"] / 2
    changed = summary("vllm-0.11", lambda now_s: 2.0 if now_s >= middle_s else 1.0)
    assert changed["duration_s"] == pytest.approx(1.5 * usual["duration_s"], rel=0.02)
    assert changed["ttft_s"]["p50"] == pytest.approx(usual["ttft_s"]["p50"])
    assert changed["e2e_s"]["p99"] > 1.4 * usual["e2e_s"]["p99"]
