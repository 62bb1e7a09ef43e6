"""summary.json: always the counts, never a number without samples, never NaN."""

import json
from dataclasses import replace

import pytest

from policies.core.request import Slo
from sim.summary import CostModelFacts, RunFacts, bound_output_tokens_per_s, build_summary, to_json
from tests.test_metrics_run import sink, small_run

FACTS = RunFacts(
    preset="vllm-0.11", policy="token-budget", model="llama-2-7b", hardware="a100-80gb",
    config={"sim": {"seed": 0}}, num_gpu_blocks=100, block_size=4, cost_model=CostModelFacts("a100", "1"),
    cpu_s=0.5, wall_s=0.75, decode_only_steps=12, plans=3,
)  # fmt: skip


def test_a_run_without_requests_has_counts_alone():
    summary = json.loads(to_json(build_summary(FACTS, sink().result())))
    assert summary["requests"] == {
        "offered": 0, "finished": 0, "rejected": 0, "aborted": 0, "failed": 0, "unfinished": 0, "reasons": {}
    }  # fmt: skip
    assert summary["throughput"] == {}
    assert summary["preemptions"]["swap_exhausted"] == 0
    assert summary["steps"] == {"count": 0, "quiet_run_mean": 4.0}
    assert summary["wall"] == {"cpu_s": 0.5, "wall_s": 0.75, "requests_per_cpu_s": 0.0}
    for absent in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "queue_s", "stability", "goodput", "notes"):
        assert absent not in summary


def test_the_summary_of_a_small_run():
    summary = json.loads(to_json(build_summary(FACTS, small_run().result(Slo(e2e_s=3.0)))))
    assert summary["schema"] == 1
    assert summary["side"] == "server-simulated"
    assert summary["requests"]["reasons"] == {"length": 1, "stop": 1}
    assert summary["ttft_s"] == {"n": 2, "mean": 1.0, "p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 1.0}
    assert summary["goodput"]["attainment"] == 0.5
    assert summary["goodput"]["requests_per_s"] == 0.25
    assert summary["kv"]["utilization_max"] == 0.06
    assert "prefix_hit_rate_new" not in summary["kv"]
    assert sum(summary["limited_by"].values()) == pytest.approx(1.0)
    assert summary["cost_model"] == {"name": "a100", "version": "1", "extrapolated_steps": 0}
    assert summary["steps"]["slot_waste"] == pytest.approx(0.125)


def test_prefix_hits_are_shown_where_there_is_a_cache():
    summary = build_summary(replace(FACTS, prefix_caching=True), small_run().result())
    assert summary["kv"]["prefix_hit_rate_new"] == 0.25


def test_the_bound_is_the_slower_of_compute_and_memory():
    numbers = {
        "flops_per_output_token": 2.0e10, "weight_bytes": 1.0e10, "kv_bytes_per_token": 1.0e6,
        "mean_context_tokens": 500.0, "pool_tokens": 10_000, "max_num_seqs": 64,
        "bandwidth_bytes_per_s": 1.0e12,
    }  # fmt: skip
    # The pool holds 20: 1e10 / 20 + 500 * 1e6 = 1e9 bytes a token, 1 ms.
    assert bound_output_tokens_per_s(peak_flops_per_s=1.0e15, **numbers) == pytest.approx(1_000.0)
    # 2e10 FLOPs at 4e12/s take 5 ms.
    assert bound_output_tokens_per_s(peak_flops_per_s=4.0e12, **numbers) == pytest.approx(200.0)
    # One sequence only: 1.05e10 bytes.
    numbers["max_num_seqs"] = 1
    assert bound_output_tokens_per_s(peak_flops_per_s=1.0e15, **numbers) == pytest.approx(1e12 / 1.05e10)
