"""Schedulers from the literature gain what docs/schedulers.md says, at fewer requests, and do the harm it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.presets import preset, presets
from tests.schedulers import CASES, DOCS, Case, measure
from tests.schedulers_run import FCFS

SEEDS, NUM_REQUESTS = range(1, 4), 300


@pytest.mark.parametrize("case", CASES, ids=[case.preset for case in CASES])
def test_it_gains_a_fifth_in_one_scenario_and_does_harm_in_another(case: Case) -> None:
    gain = measure(case.preset, case.gain, seeds=SEEDS, num_requests=NUM_REQUESTS)
    assert gain.range_better[0] > 1.0, "one seed comes out worse"
    assert gain.change >= 0.2 if gain.more_is_better else gain.change <= -0.2
    harm = measure(case.preset, case.harm, seeds=SEEDS, num_requests=NUM_REQUESTS)
    assert harm.times_better < 0.95


@pytest.mark.parametrize("case", CASES, ids=[case.preset for case in CASES])
def test_both_sides_run_the_same_engine(case: Case) -> None:
    one, other = preset(case.preset), preset(FCFS)
    assert (one.host, one.graphs, one.null_block) == (other.host, other.graphs, other.null_block)
    shared = {key: value for key, value in other.defaults.items() if key in one.defaults}
    assert {"max_num_seqs", "max_num_batched_tokens", "block_size", "enable_chunked_prefill"} <= shared.keys()
    assert {key: one.defaults[key] for key in shared} == shared


def test_every_scheduler_from_the_literature_is_on_the_page() -> None:
    names = [entry.name for entry in presets() if entry.system == "vLLM V1 with another order"]
    assert [case.preset for case in CASES] == names
    text = (DOCS / "schedulers.md").read_text(encoding="utf-8")
    picture = Path(DOCS / "schedulers.svg").read_text(encoding="utf-8")
    for case in CASES:
        for scenario in (case.gain, case.harm):
            assert f"| {scenario.metric_name} | {scenario.text}" in text
        assert f">{case.preset}</text>" in picture
