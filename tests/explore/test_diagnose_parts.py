"""Evidence, rules, effects and memory of a diagnosis, each for itself, and the command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from policies.core.errors import ConfigError, UserError
from sim import diagnose, simulate
from sim.api import prepare
from sim.config import load_config
from sim.explore.diagnose_advice import Advice, changed
from sim.explore.diagnose_cause import CAUSES, LEAST_SHARE, budget_is_small, find_cause
from sim.explore.diagnose_effects import Change, Sample, changes
from sim.explore.diagnose_evidence import Evidence, GapCause
from sim.explore.diagnose_memory import memory_risk
from sim.latencies import in_short
from tests.command import CHAT, batchscope
from tests.pages import Page
from traces.metrics.intervals import Interval

HEALTHY = Evidence(
    life={"work": 0.95, "prefill": 0.03, "host": 0.02},
    limited_by={"arrivals": 1.0},
    busy=0.9,
    host=0.02,
    link=0.0,
    prompts=0.1,
    gaps={"decode": GapCause(1_000, 0.9, 0.010, 0.012), "prefill": GapCause(50, 0.1, 0.02, 0.05)},
    occupancy=0.1,
    kv_mean=0.1,
    kv_max=0.2,
    kv_empty=0.02,
    slot_waste=0.0,
    preemptions=0,
    recomputed=0.0,
    moved_bytes=0,
    served=1.0,
    starved=False,
    keeps_up=True,
    queue_slope_per_s=0.0,
    attainment=None,
    within={},
    of_bound=0.3,
)


def cause_of(figures: Evidence, *, small: bool = False) -> str:
    return find_cause(figures, budget_is_small=small).cause


def lives(**shares: float) -> Evidence:
    """The healthy run with other parts of the requests' time; ``wait_X`` for ``wait.X``."""
    return HEALTHY._replace(life={name.replace("wait_", "wait."): share for name, share in shares.items()})


# -- the rules -------------------------------------------------------------------------------------------------------

WAITS = {
    "slots": {"wait_max_num_seqs": 0.3},
    "kv_pool": {"wait_kv_blocks": 0.15, "swapped": 0.1, "wait_swapped": 0.05},
    "batch": {"wait_batch": 0.3},
    "swap_link": {"link": 0.3, "wait_kv_blocks": 0.2},
    "host": {"host": 0.3, "wait_max_num_seqs": 0.2},
}


@pytest.mark.parametrize("cause", WAITS)
def test_the_largest_part_of_the_requests_time_is_the_cause(cause: str) -> None:
    assert cause_of(lives(**WAITS[cause])) == cause


@pytest.mark.parametrize("cause", WAITS)
def test_small_parts_are_none(cause: str) -> None:
    small = {name: share * LEAST_SHARE[cause] / 0.31 for name, share in WAITS[cause].items()}
    assert cause_of(lives(work=0.5, **small)) in ("arrivals", "slots" if cause == "host" else "")


def test_a_token_budget_that_the_card_could_not_use_better_is_the_card() -> None:
    waiting = lives(wait_token_budget=0.4)
    assert cause_of(waiting, small=True) == "token_budget"
    assert cause_of(waiting, small=False) == "card"


def test_prompts_disturb_where_gaps_are_long() -> None:
    disturbed = lives(prefill=0.3, work=0.7)
    assert cause_of(disturbed) == "prefill"
    short = {**HEALTHY.gaps, "prefill": GapCause(50, 0.3, 0.015, 0.02)}
    assert cause_of(disturbed._replace(gaps=short)) == "arrivals"


def test_a_run_within_its_limits_is_healthy_and_one_outside_is_not() -> None:
    waiting = lives(wait_max_num_seqs=0.2)
    assert cause_of(waiting._replace(attainment=1.0)) == "arrivals"
    assert cause_of(waiting._replace(attainment=0.5)) == "slots"
    missed = find_cause(
        HEALTHY._replace(attainment=0.5, within={"ttft_s": 0.9, "e2e_s": 0.5}), budget_is_small=False
    )
    assert (missed.cause, missed.metric) == ("card", ("e2e_s", "mean"))


def test_a_run_that_falls_behind_without_any_other_cause_is_limited_by_the_card() -> None:
    assert cause_of(HEALTHY._replace(keeps_up=False)) == "card"
    assert cause_of(HEALTHY._replace(served=0.5)) == "card"


def test_an_engine_that_dies_for_lack_of_memory_is_limited_by_it_whatever_else_there_is() -> None:
    assert cause_of(lives(wait_max_num_seqs=0.5)._replace(starved=True)) == "kv_pool"


@pytest.mark.parametrize(("tokens", "small"), [(64, True), (256, False), (2_048, False)])
def test_a_budget_is_small_where_wider_steps_compute_a_token_cheaper(tokens: int, small: bool) -> None:
    """A step of Llama-2-7B on an A100 takes as long for 64 tokens as for one, and 4 times as long for 2,048 as for
    512 (docs/costs.md)."""
    tables = {"workload": {"profile": "chat"}, "engine": {"max_num_seqs": 16}}
    assert budget_is_small(prepare(load_config(tables)).costs, tokens) == small


# -- effects ---------------------------------------------------------------------------------------------------------


def sample(ttft_s: Any, gap_s: Any = ()) -> Sample:
    n = len(ttft_s)
    table = pd.DataFrame({"ttft_s": ttft_s, "tpot_s": np.full(n, 0.01), "e2e_s": np.full(n, 1.0)})
    owner = np.repeat(np.arange(n), len(gap_s) // n) if len(gap_s) else np.empty(0, np.int64)
    return Sample(table, np.asarray(gap_s, float), owner, 100, 1.0, 0, 0)


def change_of(before: Sample, after: Sample, metric: str = "ttft_s") -> Change:
    return next(of for of in changes(before, after) if of.metric == metric)


def test_a_difference_is_paired_by_request() -> None:
    """Waits that differ a lot from request to request, each 10 % shorter: the interval is that of the differences."""
    waits = np.random.default_rng(1).lognormal(0.0, 1.0, 500)
    change = change_of(sample(waits), sample(0.9 * waits))
    assert change.difference.value == pytest.approx(-0.1 * waits.mean())
    assert change.difference.half is not None
    assert change.difference.half < 0.2 * waits.std()
    assert change.effect == "better"
    assert change_of(sample(0.9 * waits), sample(waits)).effect == "worse"


def test_a_difference_within_chance_is_none() -> None:
    draws = np.random.default_rng(2)
    assert change_of(sample(draws.exponential(1.0, 500)), sample(draws.exponential(1.0, 500))).effect == "none"


def test_few_requests_have_no_interval_and_need_one_percent() -> None:
    change = change_of(sample(np.full(50, 1.0)), sample(np.full(50, 0.5)))
    assert change.difference == Interval(-0.5, None)
    assert change.effect == "better"
    assert change_of(sample(np.full(50, 1.0)), sample(np.full(50, 0.995))).effect == "none"


def test_gaps_have_intervals_from_windows_of_requests() -> None:
    draws = np.random.default_rng(3)
    gaps = draws.exponential(0.02, 200 * 50)
    change = change_of(sample(np.ones(200), gaps), sample(np.ones(200), 0.5 * gaps), "itl_s")
    assert change.before == pytest.approx(np.quantile(gaps, 0.99))
    assert change.difference.value == pytest.approx(-change.before / 2)
    assert change.difference.excludes_zero
    other = change_of(sample(np.ones(200), gaps), sample(np.ones(200), draws.exponential(0.02, 200 * 50)), "itl_s")
    assert other.effect == "none"


# -- advice ----------------------------------------------------------------------------------------------------------


def test_advice_changes_its_keys_alone() -> None:
    config = load_config({"workload": {"profile": "chat"}, "engine": {"preset": "vllm-0.6", "num_gpu_blocks": 400}})
    advice = Advice("KV pool", "", "setting", (("engine.gpu_memory_utilization", 0.9),))
    after = changed(config, advice)
    assert (after.engine.num_gpu_blocks, after.engine.gpu_memory_utilization) == (None, 0.9)
    assert after.engine.replace(num_gpu_blocks=400, gpu_memory_utilization=None) == config.engine
    assert after._replace(engine=config.engine) == config


def test_another_engine_keeps_the_keys_that_it_knows() -> None:
    engine = {"preset": "vllm-0.6", "max_num_seqs": 17, "preemption_mode": "swap", "num_gpu_blocks": 500}
    config = load_config({"workload": {"profile": "chat"}, "engine": engine})
    after = changed(config, Advice("policy", "", "engine", (("engine.preset", "vllm-0.11"),)))
    kept = {"faithful": False, "max_num_seqs": 17, "num_gpu_blocks": 500}
    assert after.engine.to_dict() == {"preset": "vllm-0.11", **kept}


def test_advice_that_cannot_be_run_is_said() -> None:
    config = load_config({"workload": {"profile": "chat"}})
    with pytest.raises(ConfigError):
        changed(config, Advice("", "", "setting", (("engine.max_num_seqs", 0),)))


# -- memory ----------------------------------------------------------------------------------------------------------


def risk(prompt_tokens: int, output_tokens: int, **engine: object) -> Any:
    setup = prepare(load_config({"workload": {"profile": "chat"}, "engine": engine}))
    return memory_risk(setup, pd.DataFrame({"prompt_tokens": [prompt_tokens], "output_tokens": [output_tokens]}))


def test_the_risk_follows_from_pool_batch_and_lengths() -> None:
    """117,000 tokens of KV on the card by default (docs/costs.md)."""
    assert risk(100, 100, max_num_seqs=256).level == "none"
    assert risk(400, 400, max_num_seqs=256).level == "the pool runs out when the batch is full"
    assert risk(100, 400, max_num_seqs=256).level == "the pool may run out"
    assert risk(100, 100, num_gpu_blocks=200).level == "some never fit"
    assert risk(100, 100, num_gpu_blocks=8_400).level == "out of memory"
    found = risk(100, 400, max_num_seqs=256)
    assert (found.worst_tokens, found.full_tokens) == (256 * 500, 256 * 300)
    assert all("tokens" in line or "GB" in line for line in found.sentences())


# -- the command -----------------------------------------------------------------------------------------------------

SLOW = [*CHAT, "workload.rate_per_s=4", "workload.num_requests=120", "engine.max_num_seqs=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that keeps requests alone, and so needs to be run again for advice."""
    path = tmp_path_factory.mktemp("runs") / "slow"
    simulate(overrides=SLOW, out=path)
    return path


@pytest.mark.usefixtures("in_empty_folder")
def test_a_folder_is_diagnosed_as_its_configuration_is(folder: Path) -> None:
    by_folder = batchscope("diagnose", folder, "--json")
    by_toml = batchscope("diagnose", folder / "run.toml", "--json")
    assert by_folder.exit_code == by_toml.exit_code == 0
    one, other = by_folder.summary, by_toml.summary
    assert (one["cause"], one["advice"], one["memory"]) == (other["cause"], other["advice"], other["memory"])
    assert one["cause"] == "slots"
    assert one["advice"][0]["effect"].startswith("helps")
    assert one["advice"][0]["metrics"][0]["half"] > 0.0
    assert not Path("runs").exists()


@pytest.mark.usefixtures("in_empty_folder")
def test_the_page_is_well_formed_and_says_what_the_terminal_says(folder: Path) -> None:
    done = batchscope("diagnose", folder)
    page = Page((folder / "diagnosis.html").read_text(encoding="utf-8"))
    assert page.wrong == []
    assert "What limits this run is slots (max_num_seqs)" in done.stdout
    assert "What limits this run is slots (max_num_seqs)" in page.visible
    assert f"report: {folder / 'diagnosis.html'}" in done.stdout
    assert [title.split(". ", 1)[1] for title in page.texts("h2")][:4] == [
        "The finding", "Where the time goes", "The evidence", "What helps",
    ]  # fmt: skip
    assert page.plots.keys() == {"plot-life", "plot-advice"}
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("in_empty_folder")
def test_advice_can_be_tried_on_the_first_requests(folder: Path) -> None:
    found = batchscope("diagnose", folder, "--requests", 40, "--json").summary
    assert found["requests"] == 40
    assert "advice is tried on the first 40 of 120 requests" in found["notes"]
    assert found["advice"][0]["finished"] == {"before": 40, "after": 40}


@pytest.mark.usefixtures("in_empty_folder")
def test_mistakes_are_one_line(folder: Path) -> None:
    for arguments, word in (
        (("nowhere.toml",), "nowhere.toml"),
        ((folder, "--set", "engine.max_num_seqs=9"), "run.toml"),
        ((folder, "--out", folder / "run.toml"), "is no page"),
        ((folder, "--requests", 0), "--requests"),
    ):
        ended = batchscope("diagnose", *arguments)
        assert ended.exit_code == 2
        assert word in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


@pytest.mark.usefixtures("in_empty_folder")
def test_a_run_that_dies_is_diagnosed_and_exits_like_the_run() -> None:
    engine = ["engine.preset=vllm-0.6-swap", "engine.num_gpu_blocks=260", "engine.faithful=true"]
    load = [*CHAT, "workload.rate_per_s=40", "workload.num_requests=120", "engine.swap_space_bytes=10000000"]
    config = load_config(None, [*engine, *load])
    Path("dies.toml").write_text(config.to_toml())
    ended = batchscope("diagnose", "dies.toml", "--json")
    assert ended.exit_code == 3
    assert ended.summary["status"] == "engine_died"
    assert ended.summary["cause"] == "kv_pool"


def test_a_result_is_diagnosed_and_one_without_steps_is_refused() -> None:
    found = diagnose(simulate(overrides=SLOW))
    assert found.cause == "slots"
    assert "slots" in str(found)
    assert "<table>" in found._repr_html_()
    with pytest.raises(UserError, match="no request at all could be served"):
        diagnose({"workload": {"generator": "constant", "rate_per_s": 1, "num_requests": 3,
                               "prompt": {"dist": "fixed", "value": 5_000}, "output": {"dist": "fixed", "value": 5}}})


def test_a_trace_that_has_changed_since_the_run_is_said(tmp_path: Path) -> None:
    path, head = tmp_path / "requests.csv", "arrival_s,prompt_tokens,output_tokens\n"
    path.write_text(head + "".join(f"{n / 4},100,200\n" for n in range(60)))
    simulate(trace=str(path), overrides=["engine.max_num_seqs=2"], out=tmp_path / "run")
    assert not [note for note in diagnose(tmp_path / "run").notes if "changed" in note or "otherwise" in note]
    path.write_text(head + "".join(f"{n / 4},100,250\n" for n in range(60)))
    notes = " ".join(diagnose(tmp_path / "run").notes)
    assert "has changed since" in notes
    assert "comes out otherwise" in notes


def test_follow_ups_cannot_go_to_replicas(tmp_path: Path) -> None:
    path = tmp_path / "chats.csv"
    rows = [f"{n / 4},100,200,{'' if n < 10 else n - 10}" for n in range(60)]
    path.write_text("arrival_s,prompt_tokens,output_tokens,parent_id\n" + "\n".join(rows) + "\n")
    found = diagnose({"workload": {"trace": str(path)}, "engine": {"max_num_seqs": 2}})
    (tried,) = [tried for tried in found.tried if tried.advice.replicas == 2]
    assert "follow-ups" in tried.why
    assert found.tried[-1] is tried


def test_the_page_in_docs_lists_causes_with_their_thresholds_and_metrics() -> None:
    text = (Path(__file__).parents[2] / "docs/diagnose.md").read_text(encoding="utf-8")
    pattern = r"^\| `(\w+)` \|[^|]*\| ([^|]*?) ?\| ([^|]*?) ?\|$"
    rows = {row[0]: row[1:] for row in re.findall(pattern, text, re.MULTILINE)}
    assert rows.keys() >= CAUSES.keys()
    for name, share in LEAST_SHARE.items():
        assert rows[name] == (f"{100 * share:.0f} %", in_short(*CAUSES[name].metric)), name
