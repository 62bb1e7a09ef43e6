"""What the timing of presets makes of its runs; the times themselves are no test."""

from __future__ import annotations

import json
import sys

from policies.presets import preset, presets
from tests.perf.presets import KEEPS_ORDER_TARGET, LOOP_S, RERANKS_TARGET, Rates, case, line, reranks, timed
from tests.perf.run import Run, run_once


def run(rate: float, loop_s: float) -> Run:
    """A run of that rate."""
    return Run(0.5, 80.0, loop_s, {"wall": {"requests_per_cpu_s": rate}})


def test_presets_that_rerank_are_told_by_their_parameters() -> None:
    assert {chosen.name for chosen in presets() if reranks(chosen)} == {
        *("vllm-0.6-priority", "vllm-0.11-priority", "vllm-0.33-priority"),
        *("sglang-0.4.9-lpm", "sglang-0.4.9-dfs-weight"),
        *("priority", "sjf", "srtf", "edf", "least-laxity", "vtc", "fastserve", "andes"),
    }


def test_each_rate_is_scaled_by_the_loop_before_it() -> None:
    found = timed(preset("vllm-0.6"), [run(9_000, LOOP_S), run(10_000, 2 * LOOP_S), run(12_000, 1.75 * LOOP_S)])
    assert found.raw == Rates(10_000, 9_000, 12_000)
    assert found.scaled == Rates(20_000, 9_000, 21_000)
    assert found.loop_s == 1.75 * LOOP_S


def test_the_scaled_median_decides() -> None:
    chosen = preset("vllm-0.6")
    assert timed(chosen, [run(9_000, LOOP_S), run(10_000, 2 * LOOP_S), run(12_000, 2 * LOOP_S)]).is_met
    assert not timed(chosen, [run(19_999, LOOP_S)]).is_met
    assert not timed(chosen, [run(30_000, LOOP_S / 2)]).is_met


def test_the_target_is_that_of_the_kind() -> None:
    runs = [run(2_500, LOOP_S)]
    slow, fast = timed(preset("srtf"), runs), timed(preset("orca-max"), runs)
    assert (slow.target, slow.is_met) == (RERANKS_TARGET, True)
    assert (fast.target, fast.is_met) == (KEEPS_ORDER_TARGET, False)
    assert line(slow).endswith(" met")
    assert line(fast).endswith(" MISSED")
    assert json.loads(json.dumps(fast.to_dict()))["raw_requests_per_cpu_s"]["median"] == 2_500


def test_a_case_runs_p8_with_the_preset() -> None:
    chosen = case("ollama", 1)
    few = chosen._replace(arguments=(*chosen.arguments, "--set", "workload.num_requests=20"))
    made = run_once((sys.executable, "-m", "sim.cli.main"), few)
    assert made.summary["preset"] == "ollama"
    assert made.summary["requests"]["offered"] == 20
    assert timed(preset("ollama"), [made]).raw.median > 0
