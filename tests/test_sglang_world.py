"""SGLang in the simulated world: jumps change nothing, and far too little memory serves everybody."""

from __future__ import annotations

import pytest

from sim.config import load_config
from tests.token_watch import TokenWatch, check_against
from tests.variants import Size, Variant
from tests.world_cases import KINDS, random_case
from tests.worlds import SHIPPED, Case, first_difference, p8, run_case
from traces.workload.source import build_source

VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("fcfs", "sglang-0.4.9", "chunks", {"chunked_prefill_size": 64}),
        Variant("lpm", "sglang-0.4.9-lpm", "chunks", {"chunked_prefill_size": 0}),
        Variant("dfs-weight", "sglang-0.4.9-dfs-weight", "chunks", {"schedule_conservativeness": 0.1}),
        Variant("mixed", "sglang-0.4.9-mixed", "chunks", {"chunked_prefill_size": 64}),
        Variant("no-cache", "sglang-0.4.9-no-cache", "chunks", {"schedule_conservativeness": 0.1}),
        Variant("ignore-eos", "sglang-0.4.9-no-cache", "chunks", {"ignore_eos": True}),
    )
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", VARIANTS)
def test_skipping_ahead_changes_nothing(name: str, kind: str) -> None:
    case = random_case(VARIANTS[name], kind, 0)
    watch = TokenWatch()
    stepped = run_case(case, skip_ahead=False, watch=watch)
    jumped = run_case(case, skip_ahead=True)
    assert stepped.outcome.status == "completed"
    difference = first_difference(stepped, jumped)
    assert difference is None, difference
    assert stepped.outcome.counts.plans > jumped.outcome.counts.plans
    check_against(stepped.kept, watch, at_batch_end=False)


@pytest.mark.parametrize(("num_gpu_blocks", "rate_per_s"), [(300, 4.0), (500, 80.0)])
@pytest.mark.parametrize("name", VARIANTS)
def test_everybody_is_served_under_pressure(name: str, num_gpu_blocks: int, rate_per_s: float) -> None:
    workload = build_source(load_config(None, p8(200, rate_per_s)).workload, 4_096)
    case = Case(VARIANTS[name], Size(num_gpu_blocks, max_model_len=4_096), workload, SHIPPED)
    run = run_case(case, skip_ahead=True)
    assert (run.outcome.status, run.outcome.message) == ("completed", "")
    rows = run.kept.request_rows
    assert sorted(row.id for row in rows) == list(range(200))
    assert {row.reason for row in rows} == {"stop"}
    assert run.policy.kv.num_free == run.policy.kv.num_blocks
    assert all(row.first_token_s > row.arrival_s for row in rows)
