"""The digest of a run: bins keep every sum and extreme, and its figures are those of the metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import UserError
from sim import simulate
from sim.report.view import load_view
from sim.result import Result
from tests.command import CHAT
from traces.metrics.bins import Bins
from traces.metrics.digest import MAX_BINS, Digest

INTERVALS = st.lists(
    st.tuples(st.floats(0, 5), st.floats(0, 40), st.integers(0, 9)), min_size=1, max_size=40
)  # pause before it, length, level

BURST = [*CHAT, "workload.rate_per_s=30", "workload.num_requests=120"]
PRESSED = [*BURST, "engine.num_gpu_blocks=150"]


@given(INTERVALS)
def test_bins_keep_integrals_and_extremes_however_often_they_double(intervals: list[tuple[float, float, int]]) -> None:
    bins = Bins(8, 0.5, ("level",))
    now_s, expected_s, marks = 0.0, 0.0, []
    for pause_s, length_s, level in intervals:
        start_s, now_s = now_s + pause_s, now_s + pause_s + length_s
        bins.add_levels(np.array([start_s]), np.array([now_s]), np.array([[float(level)]]))
        expected_s += level * length_s
        marks.append(level)
    assert bins.count <= 8
    assert float(bins.sums("level").sum()) == pytest.approx(expected_s, abs=1e-6)
    assert np.nanmax(bins.extreme("level", "most")) == max(marks)
    assert np.nanmin(bins.extreme("level", "least")) == min(marks)


def test_an_interval_is_divided_among_the_bins_it_covers() -> None:
    bins = Bins(16, 1.0, ("level",))
    bins.add_levels(np.array([0.0, 0.5]), np.array([0.5, 3.25]), np.array([[2.0, 4.0]]))
    assert bins.sums("level").tolist() == [1.0 + 2.0, 4.0, 4.0, 1.0]
    assert bins.extreme("level", "least").tolist() == [2.0, 4.0, 4.0, 4.0]
    read = Bins.read(json.loads(json.dumps(bins.to_dict())))
    assert read.sums("level").tolist() == bins.sums("level").tolist()
    assert read.merged_to(2).sums("level").tolist() == [7.0, 5.0]


def run(preset: str, **more: Any) -> tuple[Result, Digest]:
    # Static batching and Orca reserve 4,096 tokens for each request.
    overrides = PRESSED if preset.startswith("vllm") else [*BURST, "engine.num_gpu_blocks=1024"]
    result = simulate(overrides=overrides, preset=preset, **more)
    digest = result.view.digest
    assert digest is not None
    return result, digest


@pytest.mark.parametrize("preset", ["vllm-0.11", "vllm-0.6-swap", "orca-max", "ft-static"])
def test_its_figures_are_those_of_the_summary(preset: str) -> None:
    result, digest = run(preset)
    summary = result.summary
    duration_s, kv = summary["duration_s"], summary["kv"]
    assert len(digest.middle_s) <= MAX_BINS
    assert digest.total("steps").sum() == summary["steps"]["count"]
    seats = summary["config"]["parameters"]["max_num_seqs"]
    running = float(digest.mean("running").sum()) * digest.width_s / duration_s / seats
    assert running == pytest.approx(summary["steps"]["occupancy_mean"], rel=1e-4)
    # vLLM's V1 keeps a block for itself, which the summary's num_gpu_blocks counts.
    assert 0 <= kv["num_gpu_blocks"] - digest.num_gpu_blocks <= 1
    used = float(digest.mean("used_blocks").sum()) * digest.width_s / duration_s / digest.num_gpu_blocks
    assert used == pytest.approx(kv["utilization_mean"], rel=1e-4)
    assert np.nanmax(digest.most("used_blocks")) / digest.num_gpu_blocks == pytest.approx(kv["utilization_max"])
    held = {cause: float(time_s.sum()) for cause, time_s in digest.limited_by().items()}
    total_s = sum(held.values())
    for cause, share in summary["limited_by"].items():
        assert held[cause] / total_s == pytest.approx(share, rel=1e-4)


@pytest.mark.parametrize("preset", ["vllm-0.11", "vllm-0.6-swap", "vllm-0.6-chunked"])
def test_gaps_by_cause_are_all_gaps(preset: str) -> None:
    result, digest = run(preset)
    itl = result.summary["itl_s"]
    assert sum(gaps.n for gaps in digest.gaps.values()) == itl["n"]
    assert sum(gaps.total_s for gaps in digest.gaps.values()) / itl["n"] == pytest.approx(itl["mean"])
    away = digest.gaps["swap" if "swap" in preset else "preemption"]
    assert away.quantile(0.5) > digest.gaps["decode"].quantile(0.99)


@pytest.mark.parametrize("preset", ["vllm-0.11", "vllm-0.6-swap", "ft-static"])
def test_terms_sum_to_the_time_of_the_steps_and_no_step_beats_the_floor(preset: str) -> None:
    _, digest = run(preset)
    terms = {term: float(digest.total(f"term.{term}").sum()) for term in digest.terms}
    total_s = float(digest.total("step_s").sum())
    assert sum(terms.values()) == pytest.approx(total_s, rel=2e-3)
    assert terms["linear"] > 0.3 * total_s
    assert (terms["swap"] > 0) == (preset == "vllm-0.6-swap")
    for kind in digest.kinds.values():
        assert 0 < kind["floor_s"] <= kind["time_s"]


def test_a_record_with_steps_gives_the_same_digest_as_the_run_itself(tmp_path: Any) -> None:
    folder = tmp_path / "run"
    result = simulate(overrides=[*PRESSED, "sim.record=steps"], preset="vllm-0.6-swap", out=folder)
    kept = result.view.digest
    (folder / "digest.json").unlink()
    made = load_view(folder).digest
    assert kept is not None
    assert made is not None
    for level in ("running", "waiting", "swapped", "used_blocks"):
        assert made.mean(level) == pytest.approx(kept.mean(level))
    for term in kept.terms:
        assert made.total(f"term.{term}") == pytest.approx(kept.total(f"term.{term}"))
    assert {cause: gaps.n for cause, gaps in made.gaps.items()} == {cause: gaps.n for cause, gaps in kept.gaps.items()}


def test_below_the_level_steps_a_folder_has_a_digest_and_above_it_needs_none(tmp_path: Any) -> None:
    simulate(overrides=PRESSED, out=tmp_path / "requests")
    assert load_view(tmp_path / "requests").digest is not None
    (tmp_path / "requests" / "digest.json").unlink()
    assert load_view(tmp_path / "requests").digest is None


def test_a_digest_of_another_schema_is_refused() -> None:
    result, _ = run("vllm-0.11")
    assert result._digest is not None
    with pytest.raises(UserError, match="digest: schema 0, this version reads 1; run again"):
        Digest({**result._digest.to_dict(), "schema": 0})


def test_a_view_can_be_relabelled() -> None:
    result, _ = run("vllm-0.11")
    assert replace(result.view, label="x").colour == result.view.colour
