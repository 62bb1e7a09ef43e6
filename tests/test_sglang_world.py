"""SGLang in the simulated world: far too little memory serves everybody."""

from __future__ import annotations

import pytest

from sim.config import load_config
from tests.variants import SGLANG, Size
from tests.worlds import SHIPPED, Case, p8, run_case
from traces.workload.source import build_source


@pytest.mark.parametrize(("num_gpu_blocks", "rate_per_s"), [(300, 4.0), (500, 80.0)])
@pytest.mark.parametrize("name", SGLANG)
def test_everybody_is_served_under_pressure(name: str, num_gpu_blocks: int, rate_per_s: float) -> None:
    workload = build_source(load_config(None, p8(200, rate_per_s)).workload, 4_096)
    case = Case(SGLANG[name], Size(num_gpu_blocks, max_model_len=4_096), workload, SHIPPED)
    run = run_case(case, skip_ahead=True)
    assert (run.outcome.status, run.outcome.message) == ("completed", "")
    rows = run.kept.request_rows
    assert sorted(row.id for row in rows) == list(range(200))
    assert {row.reason for row in rows} == {"stop"}
    assert run.policy.kv.num_free == run.policy.kv.num_blocks
    assert all(row.first_token_s > row.arrival_s for row in rows)
