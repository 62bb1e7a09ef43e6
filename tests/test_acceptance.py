"""The figures that the first release promises, each out of the command or call a user would give.

The chat workload has prompts of 50..200 and outputs of 100..500 tokens, both uniform: 125 and 300 on average. A
token of a request is decoded at a mean context of 125 + E[output^2] / (2 E[output]) = 297 tokens.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from policies.catalog import card, model
from policies.core.plan import Chunk
from policies.presets import presets
from sim import simulate
from sim.api import Result
from sim.costs.load import load_cost_model
from tests.command import CHAT, batchscope, own_csv

PROMPT, OUTPUT, CONTEXT = 125, 300, 297


@cache
def chat_run(policy: str, rate_per_s: float, num_requests: int) -> Result:
    """One run of the chat workload; kept, since several figures come out of the same one. Without host time, which is
    known for few systems: they are compared at equal steps."""
    workload = (*CHAT, f"workload.rate_per_s={rate_per_s}", f"workload.num_requests={num_requests}")
    return simulate(policy=policy, overrides=(*workload, "hardware.host_term=false"))


def test_the_azure_chat_trace_accounts_for_every_request(shared_data: Path) -> None:
    """The 306 prompts of 4,096 tokens and more are rejected, the 1,193 answers beyond the model's length are cut."""
    trace = shared_data / "traces/azure_conv_2023_first40min.csv.gz"
    model_and_card = ("--model", "llama-2-7b", "--hardware", "a100-80gb")
    ended = batchscope("run", "--trace", trace, "--policy", "vllm-0.11", *model_and_card, "--json")
    assert ended.exit_code == 0
    counts = ended.summary["requests"]
    assert counts == {
        **{"offered": 14_176, "finished": 13_870, "rejected": 306, "aborted": 0, "failed": 0, "unfinished": 0},
        "reasons": {"length": 1_193, "prompt_too_long": 306, "stop": 12_677},
    }
    outcomes = ("finished", "rejected", "aborted", "failed", "unfinished")
    assert counts["offered"] == sum(counts[name] for name in outcomes) == sum(counts["reasons"].values())


def test_mean_itl_at_four_requests_a_second() -> None:
    """Two independent simulators give 11.9 to 12.4 ms."""
    itl_s = chat_run("vllm-0.11", 4, 5_000).summary["itl_s"]
    assert 11.0e-3 <= itl_s["mean"] <= 13.0e-3


def test_orca_max_in_overload_emits_its_slots_once_a_mean_step() -> None:
    """28 slots of 4,096 tokens; a request takes 300 steps, so one of 300 / 28 steps prefills 125 tokens beside."""
    summary = chat_run("orca-max", 12, 5_000).summary
    slots = summary["kv"]["num_gpu_blocks"]
    assert slots == 28
    costs = load_cost_model(model("llama-2-7b"), card("a100-80gb"))
    decode_s = costs.step_time_s(slots, slots, slots * CONTEXT, CONTEXT, ())
    others = slots - 1
    prefill = (Chunk(0, 0, PROMPT, True),)
    mixed_s = costs.step_time_s(others + PROMPT, others, others * CONTEXT, CONTEXT, prefill)
    mean_step_s = decode_s + (mixed_s - decode_s) * slots / OUTPUT
    assert summary["throughput"]["steady_output_tokens_per_s"] == pytest.approx(slots / mean_step_s, rel=0.03)
    assert not summary["stability"]["stable"]


def test_reserving_the_maximum_makes_requests_wait_fifty_times_longer() -> None:
    reserving, paged = (chat_run(policy, 12, 1_000).summary["ttft_s"]["mean"] for policy in ("orca-max", "vllm-0.11"))
    assert reserving >= 50 * paged


@pytest.mark.parametrize(
    ("outputs", "useful", "slot_steps"),
    [([20] * 7 + [500], 640, 4_000), ([100] * 31 + [2_000], 5_100, 64_000)],
    ids=["slots-8", "slots-32"],
)
def test_static_batches_waste_the_slots_that_arithmetic_says(
    tmp_path: Path, outputs: list[int], useful: int, slot_steps: int
) -> None:
    """84 % of 8 slots and 92.0 % of 32: a batch lasts as long as its longest request."""
    trace = tmp_path / "batch.csv"
    trace.write_text(own_csv(*((0, 50, output) for output in outputs)))
    keys = [f"engine.max_num_seqs={len(outputs)}", "engine.max_model_len=2050"]
    summary = simulate(trace=str(trace), policy="ft-static", overrides=keys).summary
    assert (sum(outputs), len(outputs) * max(outputs)) == (useful, slot_steps)
    assert summary["steps"]["count"] == max(outputs)
    assert summary["steps"]["slot_waste"] == pytest.approx(1 - useful / slot_steps, abs=1e-12)


@pytest.mark.parametrize("policy", [preset.name for preset in presets()])
def test_requests_in_the_system_obey_littles_law(policy: str) -> None:
    error = chat_run(policy, 8, 5_000).metrics.littles_law_error
    assert error is not None
    assert error <= 1e-9


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        *((name, 4.0) for name in ("vllm-0.11", "vllm-0.6", "vllm-0.6-chunked", "vllm-0.6-swap")),
        *((name, 8.0) for name in ("ft-static", "ft-static-early-return", "orca-max")),
    ],
)
def test_quiet_runs_are_long_enough_to_jump(policy: str, steps: float) -> None:
    """Decode-only steps between two plans, at P8; an overloaded queue cannot matter to static batches and Orca-Max."""
    assert chat_run(policy, 8, 5_000).summary["steps"]["quiet_run_mean"] >= steps
