"""Where the time of steps goes: the terms of a step add up to it, whatever the context."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.catalog import card, model
from sim import simulate
from sim.costs.load import load_cost_model
from sim.step_terms import StepTerms

SHAPE = model("llama-2-7b")
COSTS = load_cost_model(SHAPE, card("a100-80gb"))


@pytest.mark.parametrize("num_seqs", [1, 7, 32, 128])
@pytest.mark.parametrize("context", [0, 255, 256, 1_000, 5_000])
def test_decode_attention_is_a_line_up_to_the_next_knot(num_seqs: int, context: int) -> None:
    total = num_seqs * context
    base_s, slope_s = COSTS.decode_line(num_seqs, total)
    parts = COSTS.parts(num_seqs, num_seqs, total, context)
    assert base_s + slope_s * total == pytest.approx(parts["decode_attention"])
    # Short contexts hide behind what a step of attention takes at least; beyond the table none does.
    assert slope_s >= (COSTS.floor.context_read_s * (1 - 1e-4) if context > 4_096 else 0)
    assert base_s + slope_s * total >= COSTS.floor.context_read_s * total


def test_no_sequence_has_no_decode_attention() -> None:
    assert COSTS.decode_line(0, 0) == (0.0, 0.0)


def test_a_group_talks_twice_a_layer() -> None:
    costs = load_cost_model(model("llama-2-70b").shard(2), card("a100-80gb"))
    assert costs.parts(64, 64, 0, 0)["all_reduce"] == pytest.approx(160 * costs.all_reduce.at(64 * 8192 * 2))


@pytest.mark.parametrize("policy", ["vllm-0.6", "vllm-0.6-multi-step"])
def test_the_terms_of_recorded_steps_add_up_to_their_time(policy: str, tmp_path: Path) -> None:
    keys = (
        "workload.generator=poisson",
        "workload.rate_per_s=4",
        "workload.num_requests=40",
        'workload.prompt={dist="uniform", low=100, high=900}',
        'workload.output={dist="uniform", low=100, high=400}',
    )
    simulate(policy=policy, out=tmp_path / "run", overrides=keys)
    digest = json.loads((tmp_path / "run" / "digest.json").read_text())
    rows = digest["bins"]["sums"].items()
    sums = {name.removeprefix("term."): sum(values) for name, values in rows if name.startswith("term.")}
    assert set(sums) == set(StepTerms.names)
    assert sum(sums.values()) == pytest.approx(sum(digest["bins"]["sums"]["step_s"]), rel=1e-3)
    assert sums["decode_attention"] > 0
    assert sums["host"] > 0
    assert sums["other"] < 0.03 * sum(sums.values())  # unequal contexts, and what lifts steps to the floor
