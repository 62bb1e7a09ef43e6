"""summary.json: always the counts, never a number without samples, never NaN."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from policies.core.request import Slo
from sim.summary import VERSION, CostModelFacts, RunFacts, build_summary, to_json
from tests.records import REQUEST, metrics_sink, small_run

FACTS = RunFacts(
    preset="vllm-0.11", policy="token-budget", model="llama-2-7b", hardware="a100-80gb",
    config={"workload": {"seed": 0}}, num_gpu_blocks=100, block_size=4, cost_model=CostModelFacts("a100", 1),
    cpu_s=0.5, wall_s=0.75, decode_only_steps=12, plans=3,
)  # fmt: skip


def test_a_run_without_requests_has_counts_alone() -> None:
    summary = json.loads(to_json(build_summary(FACTS, metrics_sink().result())))
    assert summary["requests"] == {
        "offered": 0, "finished": 0, "rejected": 0, "aborted": 0, "failed": 0, "unfinished": 0, "reasons": {}
    }  # fmt: skip
    assert summary["throughput"] == {}
    assert summary["preemptions"]["swap_exhausted"] == 0
    assert summary["steps"] == {"count": 0, "quiet_run_mean": 4.0}
    assert summary["wall"] == {"cpu_s": 0.5, "wall_s": 0.75, "requests_per_cpu_s": 0.0}
    for absent in ("ttft_s", "itl_s", "tpot_s", "e2e_s", "queue_s", "stability", "goodput", "notes"):
        assert absent not in summary


def test_the_summary_of_a_small_run() -> None:
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
    assert summary["cost_model"] == {"name": "a100", "version": 1, "extrapolated_steps": 0}
    assert summary["steps"]["slot_waste"] == pytest.approx(0.125)
    assert summary["wall"]["requests_per_cpu_s"] == 4.0


def test_prefix_hits_are_shown_where_there_is_a_cache() -> None:
    summary = build_summary(replace(FACTS, prefix_caching=True), small_run().result())
    assert summary["kv"]["prefix_hit_rate_new"] == 0.25


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert build_summary(FACTS, small_run().result())["version"] == VERSION


@pytest.mark.parametrize(("completions", "is_steady"), [(19, False), (20, True)])
def test_steady_throughput_needs_completions(completions: int, is_steady: bool) -> None:
    metrics = metrics_sink()
    ended = REQUEST._replace(arrival_s=0.0, first_scheduled_s=0.0, first_token_s=1.0, finish_s=2.0, waited_s=0.0)
    last = ended._replace(id=99, arrival_s=3.0, first_scheduled_s=3.0, first_token_s=4.0, finish_s=5.0)
    metrics.requests([*(ended._replace(id=number, finish_s=2.0 + number / 100) for number in range(completions)), last])
    assert ("steady_output_tokens_per_s" in build_summary(FACTS, metrics.result())["throughput"]) == is_steady


def test_each_limit_has_its_own_share() -> None:
    metrics = metrics_sink()
    quick = REQUEST._replace(arrival_s=0.0, first_token_s=0.5, finish_s=9.0)
    slow = quick._replace(id=1, first_token_s=2.0, finish_s=4.0)
    refused = quick._replace(id=2, reason="prompt_too_long")
    metrics.requests([quick, slow, refused])
    goodput = build_summary(FACTS, metrics.result(Slo(ttft_s=1.0, e2e_s=10.0)))["goodput"]
    assert goodput["within"] == {"ttft_s": pytest.approx(1 / 3), "e2e_s": pytest.approx(2 / 3)}
    assert goodput["attainment"] == pytest.approx(1 / 3)


def test_a_closed_loop_has_no_stability_verdict() -> None:
    arrivals = [0.1 * number for number in range(200)]
    metrics = metrics_sink()
    metrics.requests([
        REQUEST._replace(
            id=number, arrival_s=at_s, first_scheduled_s=at_s, first_token_s=at_s + 0.1, finish_s=at_s + 0.2,
            waited_s=0.0,
        )
        for number, at_s in enumerate(arrivals)
    ])  # fmt: skip
    assert build_summary(FACTS, metrics.result())["stability"]["stable"]
    assert "stability" not in build_summary(replace(FACTS, closed_loop=True), metrics.result())
