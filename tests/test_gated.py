"""Limits at the door hold at every instant, whether the world steps or jumps, and in a log of decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.api import simulate
from tests.token_watch import TokenWatch, check_against
from tests.variants import Variant
from tests.world_cases import random_case
from tests.worlds import Run, first_difference, run_case

FULL = {
    "tgi-1.4": Variant("tgi-1.4", "tgi-1.4", "slots", {"max_concurrent_requests": 4}),
    "ollama": Variant("ollama", "ollama", "slots", {"max_num_queued_reqs": 2}),
}


def most_inside(run: Run) -> int:
    """The largest number of requests that had come and not ended, those refused left out."""
    events = []
    for row in run.kept.request_rows:
        if row.reason not in ("overloaded", "prompt_too_long", "over_length"):
            events += [(row.arrival_s, 1), (row.finish_s, -1)]
    inside = most = 0
    for _, change in sorted(events):
        inside += change
        most = max(most, inside)
    return most


@pytest.mark.parametrize("kind", ["open", "bursts", "closed", "boundaries"])
@pytest.mark.parametrize("name", FULL)
def test_the_same_requests_are_refused_stepping_and_jumping(name: str, kind: str) -> None:
    case = random_case(FULL[name], kind, 0)
    watch = TokenWatch()
    stepped = run_case(case, skip_ahead=False, watch=watch)
    assert first_difference(stepped, run_case(case, skip_ahead=True)) is None
    check_against(stepped.kept, watch, at_batch_end=False)
    refused = sum(row.reason == "overloaded" for row in stepped.kept.request_rows)
    limit = stepped.policy.max_requests  # type: ignore[attr-defined]
    assert refused or most_inside(stepped) < limit
    assert most_inside(stepped) <= limit


def test_a_log_of_decisions_asks_for_refusals_without_counting_twice(tmp_path: Path) -> None:
    settings = (
        "workload.generator=constant", "workload.rate_per_s=50", "workload.num_requests=40",
        "workload.prompt={dist='fixed', value=20}", "workload.output={dist='fixed', value=30}",
        "engine.preset=ollama", "engine.max_num_queued_reqs=3",
    )  # fmt: skip
    plain = simulate(overrides=settings)
    logged = simulate(overrides=(*settings, "sim.record=decisions"), out=tmp_path / "run")
    assert plain.summary["requests"] == logged.summary["requests"]
    assert plain.summary["requests"]["reasons"]["overloaded"] > 20
