"""Signs and sizes that users of real engines measured come out of the simulation, in the set-ups of their reports."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from policies.presets import preset as preset_of
from tests.perf.findings import (
    MEASURED_SIGNS,
    SEQS,
    Figures,
    bench_lengths,
    chunked,
    closed_loop_and_waves,
    lone_request,
    max_num_seqs,
    multi_step,
    over,
    tensorrt,
    watermark,
    watermark_changes,
)
from traces.record.read import expand_steps

MEASURED: dict[float, Figures] = {
    0.0: {"preemptions": 1065, "output_tok_s": 11582, "req_s": 2.306, "ttft_p50_ms": 6560, "ttft_p99_ms": 25510},
    0.02: {"preemptions": 400, "output_tok_s": 12134, "req_s": 2.416, "ttft_p50_ms": 11800, "ttft_p99_ms": 26490},
    0.05: {"preemptions": 187, "output_tok_s": 12167, "req_s": 2.423, "ttft_p50_ms": 11200, "ttft_p99_ms": 28940},
    0.1: {"preemptions": 168, "output_tok_s": 11835, "req_s": 2.356, "ttft_p50_ms": 8960, "ttft_p99_ms": 31020},
}
"""vllm-project/vllm#44594, one run of each watermark."""

@cache
def series(share: float) -> list[Figures]:
    """The simulated runs, each with another order of the first requests."""
    return watermark(share)


@pytest.fixture(scope="module")
def watermarks(shared_data: Path) -> dict[float, Figures]:
    """What the report says of two of its watermarks, all figures."""
    lines = (shared_data / "measured" / "misc.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [case for case in map(json.loads, lines) if case["id"].startswith("vllm44594")]
    return {case["engine"]["settings"]["watermark"]: case["measured"] for case in cases}


def test_the_figures_of_the_report_are_those_in_the_data(watermarks: dict[float, Figures]) -> None:
    for share, figures in watermarks.items():
        assert MEASURED[share].items() <= figures.items()


@pytest.mark.parametrize("share", MEASURED)
def test_the_requests_are_those_of_the_report(share: float) -> None:
    """Their mean length comes out of the throughputs, whose last printed digits allow that much."""
    mean = fmean(output for _, output in bench_lengths())
    assert MEASURED[share]["output_tok_s"] / MEASURED[share]["req_s"] == pytest.approx(mean, abs=1.5)


@pytest.mark.parametrize("name", ["preemptions", "ttft_p50_ms", "ttft_p99_ms"])
@pytest.mark.parametrize("share", MEASURED)
def test_what_was_measured_lies_among_the_simulated_runs(share: float, name: str) -> None:
    runs = [run[name] for run in series(share)]
    assert min(runs) <= MEASURED[share][name] <= max(runs)


def test_a_watermark_of_10_percent_saves_as_many_preemptions_as_measured() -> None:
    real, ours = ({share: runs[share]["preemptions"] for share in (0.02, 0.1)} for runs in (MEASURED, _means()))
    assert 1.6 <= ours[0.02] / ours[0.1] <= 3.6
    assert ours[0.02] == pytest.approx(real[0.02], rel=0.1)
    assert ours[0.1] == pytest.approx(real[0.1], rel=0.1)


def test_the_signs_are_those_of_the_report(watermarks: dict[float, Figures]) -> None:
    for name, sign in MEASURED_SIGNS.items():
        assert sign * (watermarks[0.1][name] - watermarks[0.02][name]) > 0


@pytest.mark.parametrize("name", ["output_tok_s", "ttft_p99_ms", "itl_p99_ms", "e2e_p50_s"])
def test_the_watermark_changes_what_it_was_measured_to_change(name: str) -> None:
    means = _means()
    assert MEASURED_SIGNS[name] * (means[0.1][name] - means[0.02][name]) > 0


def test_one_run_of_each_does_not_tell_how_the_median_ttft_changes() -> None:
    """Measured once: it falls by 24 %. The order in which the first requests reach the engine moves it by more than the
    watermark does, so that of two runs the second has the lower one nearly as often as not, and then all five changes
    together have the sign that was measured."""
    low, high = series(0.02), series(0.1)
    medians = [[run["ttft_p50_ms"] for run in runs] for runs in (low, high)]
    assert max(medians[0]) - min(medians[0]) > 2 * abs(fmean(medians[1]) - fmean(medians[0]))
    changes = watermark_changes(low, high)
    assert 0.25 <= changes["ttft_p50_ms_share"] <= 0.6
    assert changes["all_share"] >= 0.15


def test_without_a_watermark_there_are_four_times_as_many_preemptions() -> None:
    counts = [fmean(run["preemptions"] for run in series(share)) for share in MEASURED]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 4 * counts[2]


def _means() -> dict[float, Figures]:
    return {share: over(series(share), fmean) for share in (0.02, 0.1)}


def test_max_utilization_starts_sooner_and_ends_later_when_memory_is_short() -> None:
    sure, bold = (tensorrt(name, 32) for name in ("trtllm-no-evict", "trtllm-max-utilization"))
    assert bold["preemptions"] > 0 == sure["preemptions"]
    assert bold["ttft_p50_ms"] < sure["ttft_p50_ms"]
    assert bold["output_tok_s"] < sure["output_tok_s"]
    for tail in ("ttft_p99_ms", "tpot_p99_ms", "e2e_p99_s"):
        assert bold[tail] > sure[tail]


def test_no_evict_comes_near_the_measured_case(shared_data: Path) -> None:
    lines = (shared_data / "measured" / "misc.jsonl").read_text(encoding="utf-8").splitlines()
    (real,) = (case["measured"] for case in map(json.loads, lines) if case["id"].startswith("trt16827"))
    ours = tensorrt("trtllm-no-evict", 32)
    for name in ("output_tok_s", "tpot_p99_ms", "e2e_p99_s"):
        assert ours[name] == pytest.approx(real[name], rel=0.1)


def test_both_do_the_same_where_memory_is_enough() -> None:
    sure, bold = (tensorrt(name, 8) for name in ("trtllm-no-evict", "trtllm-max-utilization"))
    for name, value in sure.items():
        assert bold[name] == pytest.approx(value, rel=0.01)


def test_chunks_make_a_lone_prompt_wait_longer() -> None:
    whole, chunks = (chunked(enabled=enabled, alone=True) for enabled in (False, True))
    assert chunks["ttft_p50_ms"] > 1.01 * whole["ttft_p50_ms"]


def test_chunks_steady_the_tokens_of_the_others() -> None:
    whole, chunks = (chunked(enabled=enabled, alone=False) for enabled in (False, True))
    assert chunks["itl_p99_ms"] < 0.5 * whole["itl_p99_ms"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("preset", ["vllm-0.11", "vllm-0.6", "orca-max", "ft-static"])
def test_waves_are_never_faster_than_a_closed_loop(preset: str, seed: int) -> None:
    closed_s, waves_s = closed_loop_and_waves(preset, seed)
    assert waves_s >= closed_s * (1 - 1e-9)


def test_more_rows_start_sooner_and_run_slower_at_the_same_throughput() -> None:
    """The same but for the host's time of a step, which more rows share."""
    runs = [max_num_seqs(limit) for limit in SEQS]
    for fewer, more in pairwise(runs):
        assert more["ttft_mean_ms"] < fewer["ttft_mean_ms"]
        assert more["tpot_mean_ms"] > fewer["tpot_mean_ms"]
        assert fewer["req_s"] * 0.99 < more["req_s"] < fewer["req_s"] * 1.04


def test_an_engine_that_plans_ten_steps_at_once_streams_ten_tokens_at_once() -> None:
    """Of 200 gaps 180 are none, and the others last as long as ten steps, less what the host takes in nine of them."""
    single, ten = (expand_steps(lone_request(steps).steps) for steps in (1, 10))
    host = preset_of("vllm-0.6-multi-step").host
    assert host is not None
    steps_s = _gaps_s(single).reshape(20, 10).sum(axis=1)
    gaps_s = _gaps_s(ten).reshape(20, 10)
    assert gaps_s[:, 0] == pytest.approx(steps_s - 9 * (host.base_s + host.per_seq_s))
    assert not gaps_s[:, 1:].any()
    summary = lone_request(10).summary
    assert (summary["itl_s"]["n"], summary["itl_s"]["p50"]) == (200, 0.0)


def _gaps_s(steps: pd.DataFrame) -> NDArray[np.float64]:
    """How long each decode step of a lone request lasted."""
    decodes = steps[steps["emitting"] > 0]
    gaps_s: NDArray[np.float64] = (decodes["end_s"] - decodes["start_s"]).to_numpy()
    return gaps_s


def test_ten_steps_a_plan_make_more_tokens_where_the_host_takes_time() -> None:
    one, ten = multi_step(1), multi_step(10)
    assert ten["output_tok_s"] > 1.15 * one["output_tok_s"]
    assert ten["tpot_p99_ms"] < one["tpot_p99_ms"]
    assert ten["itl_p99_ms"] > 4 * one["itl_p99_ms"]
    assert ten["ttft_p50_ms"] > 1.5 * one["ttft_p50_ms"]  # a prompt waits for the end of a plan
    assert 0.0 == one["slot_waste"] < ten["slot_waste"] < 0.05
    bare_one, bare_ten = (multi_step(steps, host=False)["output_tok_s"] for steps in (1, 10))
    assert bare_ten == pytest.approx(bare_one, rel=0.03)
