"""Engines that plan one step ahead, in the simulated world."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sim.api import prepare, run_setup
from sim.config import load_config
from tests.token_watch import recorded_gaps, recorded_token_times
from tests.variants import AHEAD, Size, Variant
from tests.world_cases import KINDS, random_case
from tests.worlds import SHIPPED, Case, KnottyCosts, Run, p8, run_case, workload_of
from traces.workload.rows import TraceRow
from traces.workload.source import build_source

SYNC = Variant("sync", "vllm-0.33", "chunks", {"enable_prefix_caching": False})
ASYNC = AHEAD["async"]


class Seconds(KnottyCosts):
    """One second a step."""

    def step_time_s(self, *step: object) -> float:
        """One second, whatever it computes."""
        return 1.0

    def decode_curve(self, *step: object) -> tuple[float, float, int]:
        """One second, for ever."""
        return 1.0, 0.0, 1 << 40


def times(variant: Variant, *rows: TraceRow) -> dict[int, list[float]]:
    """When each token of each request came."""
    size = Size(64, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64)
    return recorded_token_times(run_case(Case(variant, size, workload_of(rows), Seconds()), skip_ahead=True).kept)


def test_an_arrival_is_computed_a_step_later_and_nothing_else_changes() -> None:
    #            0        1        2        3        4        5
    # sync       | r0 p   | r0 d   | r0 d
    #                     | r1 p   | r1 d              r1 comes at 0.5 and is in the plan made at 1, which runs at once
    # async      | r0 p   | r0 d   | r0 d
    #                              | r1 p   | r1 d     the step that runs at 1 was planned at 0
    rows = (TraceRow(0.0, 4, 3, 3), TraceRow(0.5, 4, 2, 2))
    assert times(SYNC, *rows) == {0: [1.0, 2.0, 3.0], 1: [2.0, 3.0]}
    assert times(ASYNC, *rows) == {0: [1.0, 2.0, 3.0], 1: [3.0, 4.0]}


def test_a_place_comes_free_a_step_later_where_the_end_was_not_foreseen() -> None:
    # One place. r0 stops after one token of the eight it was allowed; the step planned meanwhile computes it once more.
    one = ASYNC._replace(overrides={**ASYNC.overrides, "max_num_seqs": 1})
    rows = (TraceRow(0.0, 4, 1, 8), TraceRow(0.0, 4, 1, 8))
    assert times(SYNC._replace(overrides=one.overrides), *rows) == {0: [1.0], 1: [2.0]}
    assert times(one, *rows) == {0: [1.0], 1: [3.0]}
    # Had max_tokens been the end, the plan would have known.
    assert times(one, *(row._replace(max_tokens=1) for row in rows)) == {0: [1.0], 1: [2.0]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", AHEAD)
@pytest.mark.parametrize("seed", range(3))
def test_the_record_is_whole(name: str, kind: str, seed: int) -> None:
    run = run_case(random_case(AHEAD[name], kind, seed), skip_ahead=True)
    check_record(run)
    if run.outcome.status == "completed" and all(row.reason != "unfinished" for row in run.kept.request_rows):
        kv = run.policy.kv
        assert (kv.num_free, dict(kv.tables)) == (kv.num_blocks, {})


@pytest.mark.parametrize("name", AHEAD)
@pytest.mark.parametrize(("num_gpu_blocks", "rate_per_s"), [(300, 4.0), (500, 80.0)])
def test_everybody_is_served_under_pressure(name: str, num_gpu_blocks: int, rate_per_s: float) -> None:
    workload = build_source(load_config(None, p8(200, rate_per_s)).workload, 4_096)
    run = run_case(Case(AHEAD[name], Size(num_gpu_blocks), workload, SHIPPED), skip_ahead=True)
    assert (run.outcome.status, run.outcome.message) == ("completed", "")
    assert {row.reason for row in run.kept.request_rows} == {"stop"}
    check_record(run)


@pytest.mark.parametrize("preset", ["vllm-0.33-async", "sglang-0.4.9-overlap"])
def test_requests_in_the_system_obey_littles_law(preset: str) -> None:
    result = run_setup(prepare(load_config(None, [*p8(200), f"engine.preset={preset}"])))
    error = result.metrics.littles_law_error
    assert error is not None
    assert error < 1e-9


def check_record(run: Run) -> None:
    """Each token once and in order, each gap between two a sample."""
    kept = run.kept
    recorded = recorded_token_times(kept)
    for row in kept.request_rows:
        mine = recorded[row.id]
        assert len(mine) == row.output_tokens, row
        assert all(before < after for before, after in pairwise(mine)), row
        assert not mine or mine[0] == row.first_token_s
    gaps = [round(after - before, 9) for mine in recorded.values() for before, after in pairwise(mine)]
    assert sorted(gaps) == sorted(round(gap, 9) for gap in recorded_gaps(kept).elements())
