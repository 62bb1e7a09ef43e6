"""Runs that were built to fail in one known way are diagnosed as failing in that way, and the first advice helps.

Why each run must have the cause named here is said beside it, from how it was built.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sim import diagnose, simulate
from sim.config import load_config
from sim.explore.diagnose import Diagnosis
from sim.explore.diagnose_advice import changed
from sim.explore.diagnose_cause import CAUSES
from sim.explore.diagnose_effects import token_gaps


def uniform(low: int, high: int) -> dict[str, Any]:
    return {"dist": "uniform", "low": low, "high": high}


def poisson(rate_per_s: float, num_requests: int, prompt: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
    counts = {"rate_per_s": rate_per_s, "num_requests": num_requests}
    return {"generator": "poisson", **counts, "prompt": prompt, "output": output}


CHAT = (uniform(50, 200), uniform(100, 300))
"""125 prompt tokens and 200 output tokens on average. A step of Llama-2-7B on an A100 takes 10 ms with one sequence and
15 ms with 32 (docs/costs.md), so that one card decodes some 2,000 tokens a second, 10 of these requests."""


LONG_PROMPTS = {"dist": "lognormal", "mean": 1500, "cv": 1.0, "cap": 3500}


class Built(NamedTuple):
    """A run, the cause it was built to have, and why it must have it."""

    cause: str
    why: str
    tables: dict[str, Any]


BUILT = {
    "healthy, hardly any load": Built(
        "arrivals",
        "2 requests/s of the 10 that the card can serve, and room for 256",
        {"workload": poisson(2, 150, *CHAT), "engine": {"preset": "vllm-0.11"}},
    ),
    "healthy, busy": Built(
        "arrivals",
        "6 requests/s of 10; some 15 run at once, of 256 that may; prompts of 20 ms pass in a gap or two",
        {"workload": poisson(6, 300, *CHAT), "engine": {"preset": "vllm-0.33"}},
    ),
    "healthy, a closed loop": Built(
        "arrivals",
        "8 clients, who wait for their answers, in a batch that takes many more: nobody ever queues",
        {
            "workload": {
                **{"generator": "closed-loop", "concurrency": 8, "num_requests": 150},
                **{"prompt": CHAT[0], "output": CHAT[1]},
            },
            "engine": {"preset": "sglang-0.4.9"},
        },
    ),
    "slots": Built(
        "slots",
        "4 sequences at 10 ms a step are 400 tokens/s, where 4 requests/s ask for 800; KV for 5,000 tokens is used of"
        " 118,000",
        {"workload": poisson(4, 200, *CHAT), "engine": {"preset": "vllm-0.11", "max_num_seqs": 4}},
    ),
    "token budget": Built(
        "token_budget",
        "64 tokens a step of 10 ms are 6,400 a second, where prompts alone bring 8,000; 2,048 in a step take 130 ms,"
        " which are 15,700",
        {
            "workload": poisson(8, 150, uniform(900, 1100), uniform(20, 60)),
            "engine": {"preset": "vllm-0.11", "max_num_batched_tokens": 64, "max_num_seqs": 64},
        },
    ),
    "KV pool, preempting": Built(
        "kv_pool",
        "3,200 tokens of KV hold 5 requests of 600; at 11 ms a step they make 500 tokens/s, where 2,000 are asked for;"
        " 256 slots are there",
        {
            "workload": poisson(5, 200, uniform(100, 300), uniform(200, 600)),
            "engine": {"preset": "vllm-0.11", "num_gpu_blocks": 200},
        },
    ),
    "KV pool, reserved and empty": Built(
        "kv_pool",
        "24,000 tokens hold 5 reservations of 4,096, whatever the requests' own 325 tokens",
        {"workload": poisson(5, 200, *CHAT), "engine": {"preset": "orca-max", "num_gpu_blocks": 1500}},
    ),
    "prefill interference": Built(
        "prefill",
        "prompts of up to 3,500 tokens take up to a quarter of a second, in which nobody decodes; memory is ample",
        {
            "workload": poisson(2.5, 150, LONG_PROMPTS, uniform(150, 250)),
            "engine": {"preset": "vllm-0.6"},
        },
    ),
    "swap link": Built(
        "swap_link",
        "a preempted request of 1,000 tokens is 0.5 GB, 1.3 s each way over 0.4 GB/s, as long as 100 steps; the pool"
        " holds 11 of them",
        {
            "workload": poisson(3, 150, uniform(400, 800), uniform(300, 600)),
            "engine": {"preset": "vllm-0.6-swap", "num_gpu_blocks": 700},
            "hardware": {"swap_bytes_per_s": 4e8},
        },
    ),
    "host": Built(
        "host",
        "weights of 2.5 GB are read in 0.74 ms; the host of vLLM 0.2.7 needs 0.9 ms and 43 us for each of some 15"
        " sequences",
        {
            "workload": poisson(25, 300, uniform(50, 200), uniform(150, 250)),
            "engine": {"preset": "vllm-0.2.7"},
            "model": {"name": "llama-3.2-1b"},
            "hardware": {"name": "h100-80gb"},
        },
    ),
    "a static batch": Built(
        "batch",
        "answers of 150 tokens on average, exponential: the longest of 16 is some 3.4 times as long, and who comes"
        " meanwhile waits for it",
        {
            "workload": poisson(3, 150, CHAT[0], {"dist": "exponential", "mean": 150, "cap": 1000}),
            "engine": {"preset": "ft-static", "max_num_seqs": 16},
        },
    ),
    "the card": Built(
        "card",
        "12 prompts/s of 2,000 tokens are 24,000 a second, where the card computes 15,700 in steps of 2,048 and no more"
        " in wider ones",
        {
            "workload": poisson(12, 300, uniform(1500, 2500), uniform(20, 60)),
            "engine": {"preset": "vllm-0.11"},
        },
    ),
}

SICK = [name for name, built in BUILT.items() if built.cause != "arrivals"]


@cache
def diagnosed(name: str) -> Diagnosis:
    return diagnose(BUILT[name].tables)


def test_every_cause_has_a_run() -> None:
    assert len(BUILT) >= 12
    assert {built.cause for built in BUILT.values()} == set(CAUSES)


@pytest.mark.parametrize("name", BUILT)
def test_it_names_what_the_run_was_built_to_suffer_from(name: str) -> None:
    built, found = BUILT[name], diagnosed(name)
    assert found.cause == built.cause, built.why
    assert found.is_healthy == (built.cause == "arrivals")
    assert sum(found.evidence.life.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", SICK)
def test_its_first_advice_makes_the_stated_metric_better_when_it_is_run(name: str) -> None:
    found = diagnosed(name)
    first = found.tried[0]
    change = first.change(*found.metric)
    assert change is not None
    assert change.effect == "better"
    assert first.advice.replicas == 1, "two replicas are held against two runs below"
    config = load_config(BUILT[name].tables)
    timed = changed(config, first.advice._replace(changes=()))  # by the roofline where the advice is
    before, after = simulate(timed), simulate(changed(config, first.advice))
    metric, statistic = found.metric
    was, became = before.summary[metric][statistic], after.summary[metric][statistic]
    assert became < was
    # Percentiles of gaps come from buckets of 0.1 % in a summary, and from all gaps here.
    assert (change.before, change.after) == pytest.approx((was, became), rel=2e-3)


@pytest.mark.parametrize("name", [name for name in BUILT if name not in SICK])
def test_a_healthy_run_gets_no_advice(name: str) -> None:
    assert diagnosed(name).tried == ()
    assert "healthy" in " ".join(diagnosed(name).finding)


@pytest.mark.parametrize("name", ["slots", "prefill interference", "swap link"])
def test_advice_that_does_not_help_is_shown_as_such(name: str) -> None:
    found = diagnosed(name)
    metric, statistic = found.metric
    useless = [tried for tried in found.tried if not tried.why and tried not in found.helpful()]
    assert useless
    for tried in useless:
        change = tried.change(metric, statistic)
        assert change is not None
        half = change.difference.half or 0.0
        assert change.difference.value + half >= 0.0 or abs(change.relative) < 0.01


def test_two_replicas_are_two_engines_with_every_second_request_each(tmp_path: Path) -> None:
    name = "the card"
    (tried,) = [tried for tried in diagnosed(name).tried if tried.advice.replicas == 2]
    table = diagnosed(name).view.requests
    waits: list[float] = []
    for place in (0, 1):
        path = tmp_path / f"{place}.csv"
        part = table[place::2][["arrival_s", "prompt_tokens", "output_tokens"]]
        part.to_csv(path, index=False)
        requests = simulate(trace=str(path), preset="vllm-0.11").requests
        waits += (requests["first_token_s"] - requests["arrival_s"]).tolist()
    change = tried.change("ttft_s", "mean")
    assert change is not None
    assert change.after == pytest.approx(sum(waits) / len(waits))


@pytest.mark.parametrize("name", ["KV pool, preempting", "swap link", "prefill interference"])
def test_gaps_between_tokens_are_those_of_the_summary(name: str) -> None:
    view = diagnosed(name).view
    gap_s, owner = token_gaps(view)
    assert len(gap_s) == len(owner) == view.summary["itl_s"]["n"]
    assert gap_s.mean() == pytest.approx(view.summary["itl_s"]["mean"])
