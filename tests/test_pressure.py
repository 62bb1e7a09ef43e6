"""Far too little KV memory: every policy and preemption mode ends every request, and the record shows the price."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import isnan

import pytest

from sim.config import load_config
from tests.token_watch import TokenWatch, check_against, recorded_token_times
from tests.variants import VARIANTS, Size
from tests.worlds import SHIPPED, Case, Kept, first_difference, p8, run_case
from traces.workload.source import build_source

NUM_REQUESTS = 300
MAX_MODEL_LEN = 4096


def case_of(name: str, num_gpu_blocks: int, rate_per_s: float) -> Case:
    """P8's requests at another rate on another pool."""
    workload = build_source(load_config(None, p8(NUM_REQUESTS, rate_per_s)).workload, MAX_MODEL_LEN)
    return Case(VARIANTS[name], Size(num_gpu_blocks, max_model_len=MAX_MODEL_LEN), workload, SHIPPED)


@pytest.mark.parametrize(("num_gpu_blocks", "rate_per_s"), [(300, 4.0), (500, 80.0)])
@pytest.mark.parametrize("name", VARIANTS)
def test_everybody_is_served_under_pressure(name: str, num_gpu_blocks: int, rate_per_s: float) -> None:
    run = run_case(case_of(name, num_gpu_blocks, rate_per_s), skip_ahead=True)
    assert (run.outcome.status, run.outcome.message) == ("completed", "")
    rows = run.kept.request_rows
    assert sorted(row.id for row in rows) == list(range(NUM_REQUESTS))
    assert {row.reason for row in rows} == {"stop"}
    kv = run.policy.kv
    assert (kv.num_free, kv.cpu_pool.num_free) == (kv.num_blocks, kv.cpu_pool.num_blocks)
    check_preemption_stalls(run.kept)
    if not VARIANTS[name].batch_window_s:
        check_progress(run.kept)


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.blocks != "slots"])
def test_the_record_of_a_thrashing_engine_is_exact(name: str) -> None:
    case = case_of(name, 500, 80.0)
    watch = TokenWatch()
    stepped = run_case(case, skip_ahead=False, watch=watch)
    check_against(stepped.kept, watch, at_batch_end=False)
    assert first_difference(stepped, run_case(case, skip_ahead=True)) is None


def check_preemption_stalls(kept: Kept) -> None:
    """Each stretch of tokens after a preemption began with a gap that is an ITL sample of that cause."""
    times = recorded_token_times(kept)
    expected: Counter[tuple[str, float]] = Counter()
    for row in kept.request_rows:
        place = 0
        for number, (token_s, _, steps) in enumerate(row.segments):
            cause = "swap" if isnan(token_s) else "preemption"
            length = steps + (cause == "preemption")
            is_pause = cause == "swap" and not row.swap_preemptions
            if number and length and not is_pause:
                expected[cause, times[row.id][place] - times[row.id][place - 1]] += 1
            place += length
    found = Counter(
        (stall.cause, stall.gap_s) for stall in kept.stall_rows if stall.cause in ("swap", "preemption")
    )
    assert found == expected
    swaps = sum(count for (cause, _), count in found.items() if cause == "swap")
    assert swaps <= sum(row.swap_preemptions for row in kept.request_rows)


def check_progress(kept: Kept) -> None:
    """No step but one that preempts computes nothing, and nothing is idle while a request is there."""
    for row, after in pairwise(kept.step_rows):
        assert row.num_tokens or after.num_tokens, "two steps in a row compute nothing"
        if after.start_s > row.end_s:
            for request in kept.request_rows:
                gone = request.finish_s <= row.end_s or request.arrival_s >= after.start_s
                assert gone, f"idle from {row.end_s} to {after.start_s} with request {request.id} there"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("v1", "preemption"),
        ("v0-recompute", "preemption"),
        ("v0-chunked-recompute", "preemption"),
        ("v0-swap", "swap"),
        ("v0-chunked-swap", "swap"),
    ],
)
def test_this_is_pressure(name: str, cause: str) -> None:
    kept = run_case(case_of(name, 500, 80.0), skip_ahead=True).kept
    assert sum(stall.cause == cause for stall in kept.stall_rows) > 30
    assert max(stall.gap_s for stall in kept.stall_rows) > 0.5
