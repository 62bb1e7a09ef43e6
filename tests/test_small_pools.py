"""Every preset in pools that a single answer can outgrow: the run ends, and every request is accounted for."""

from __future__ import annotations

import pytest

from policies.core.errors import ConfigError
from policies.preset_table import PRESETS
from sim import simulate


@pytest.mark.parametrize("name", PRESETS)
def test_a_request_that_outgrows_the_pool_ends_and_all_others_are_served_or_counted(name: str) -> None:
    block_size = PRESETS[name].defaults.get("block_size", 16)
    assert isinstance(block_size, int)
    blocks = 20 if block_size > 1 else 320
    workload = {
        "generator": "poisson",
        "rate_per_s": 20,
        "num_requests": 25,
        "prompt": {"dist": "uniform", "low": 1, "high": 300},
        "output": {"dist": "exponential", "mean": 200, "cap": 1000},
        "abort_after_s": 30.0,
    }
    engine = {"preset": name, "num_gpu_blocks": blocks, "max_model_len": (blocks - 2) * block_size}
    try:
        result = simulate({"workload": workload, "engine": engine})
    except ConfigError:  # refuses to start with so small a pool
        return
    counts = {key: count for key, count in result.summary["requests"].items() if isinstance(count, int)}
    assert result.status == "completed"
    assert counts.pop("offered") == 25 == sum(counts.values())
    assert counts["unfinished"] == 0


def test_the_only_request_of_max_utilization_that_outgrows_the_pool_pauses_itself_and_ends() -> None:
    workload = {
        "generator": "constant",
        "rate_per_s": 1,
        "num_requests": 2,
        "prompt": {"dist": "fixed", "value": 100},
        "output": {"dist": "fixed", "value": 300},
    }
    engine = {"preset": "trtllm-max-utilization", "num_gpu_blocks": 10}  # 320 tokens
    runs = [simulate({"workload": workload, "engine": engine, "sim": {"skip_ahead": skips}}) for skips in (True, False)]
    assert runs[0].summary["requests"]["reasons"] == {"kv_capacity": 2}
    for key in ("duration_s", "throughput", "preemptions", "limited_by"):
        assert runs[0].summary[key] == runs[1].summary[key]
