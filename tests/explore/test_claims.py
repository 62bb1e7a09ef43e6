"""Every claim gets the verdict that its figures call for, and other figures would have flipped it."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from policies.core.errors import RunError, UserError
from sim import claims
from sim.explore.claims import CLAIMS, Audit
from sim.explore.claims_bounds import GroupFigures, LevelFigures, judge_70b, judge_closed_loop
from sim.explore.claims_case import VERDICTS, Ruling, Tables, executed, simulated, trace_of
from sim.explore.claims_latency import (
    CaseFigures,
    LevelRatio,
    Point,
    judge_equal_latency,
    judge_level,
    rate_at,
)
from sim.explore.claims_memory import LimitFigures, SwapFigures, judge_limit, judge_swap
from sim.explore.claims_slots import SlotFigures, SpreadPoint, judge_short_wait, judge_spread, judge_wasted
from sim.explore.claims_static import BaselineFigures, LaunchFigures, judge_baseline, judge_launch
from tests.command import batchscope
from tests.pages import Page

EXPECTED = {
    "slots-8": "reproduced",
    "slots-32": "false",
    "anyscale-23x": "baseline-dependent",
    "vllm-24x": "baseline-dependent",
    "orca-36.9x": "undecidable",
    "vllm-2-4x": "reproduced",
    "variable-10x": "reproduced",
    "llama3-70b": "impossible",
    "swap-default": "false",
    "longer-max-len": "false",
    "c32": "reproduced",
}
"""What is known of these claims from their sources and from arithmetic, apart from any run."""


@cache
def audit() -> Audit:
    """All claims, once."""
    return claims()


def figures(claim_id: str) -> dict[str, float]:
    return dict(audit()[claim_id].audited.figures)


def test_all_claims_are_there_in_order() -> None:
    assert list(CLAIMS) == list(EXPECTED)
    assert [row.claim.id for row in audit().rows] == list(EXPECTED)


@pytest.mark.parametrize("claim_id", EXPECTED)
def test_its_verdict_is_what_is_known_of_it(claim_id: str) -> None:
    row = audit()[claim_id]
    assert row.ruling.verdict == EXPECTED[claim_id], row.ruling.why
    assert row.ruling.verdict in VERDICTS
    assert row.ruling.why
    assert row.audited.bound
    assert (row.ruling.missing != "") == (row.ruling.verdict == "undecidable")


# -- the figures, against arithmetic and published ones --------------------------------------------------------------


def test_slots_waste_what_arithmetic_says() -> None:
    assert figures("slots-8")["wasted"] == pytest.approx(1 - 640 / 4_000)
    assert figures("slots-8")["most"] == pytest.approx(6.25)
    assert figures("slots-8")["gain"] <= 6.25
    assert figures("slots-32")["wasted"] == pytest.approx(1 - 5_100 / 64_000)
    assert figures("slots-32")["alone"] == pytest.approx(0.95)


def test_scheduling_and_memory_of_anyscale_s_case() -> None:
    """26 sequences of 512 tokens fit where 4 ran in the static batch, of which 48 % lived."""
    found = figures("anyscale-23x")
    assert found["most_equal_steps"] == pytest.approx(13.6, rel=0.02)
    assert found["simulated"] < found["equal_steps"] < found["most_equal_steps"]
    assert found["scheduling"] * found["memory"] == pytest.approx(found["equal_steps"])


def test_hugging_face_ran_at_two_percent_of_the_bound() -> None:
    assert figures("vllm-24x")["baseline_share"] == pytest.approx(0.02, abs=0.005)


def test_bounds_of_llama_3_70b() -> None:
    found = figures("llama3-70b")
    assert found["claimed_per_s"] == 11_550
    assert found["bound_per_s_on_4"] == pytest.approx(6_560, rel=0.01)
    assert found["bound_per_s_on_8"] == pytest.approx(13_120, rel=0.01)
    (table,) = audit()["llama3-70b"].audited.tables
    assert [row[1] for row in table.rows] == ["34.1 ms", "17 ms", "8.52 ms"]


def test_floors_and_gaps_of_the_closed_loop() -> None:
    (table,) = audit()["c32"].audited.tables
    assert [row[2] for row in table.rows] == ["6.55 ms", "6.76 ms", "7.05 ms", "7.61 ms", "8.74 ms"]
    assert 9.6e-3 <= figures("c32")["itl_s_at_1"] <= 10.4e-3
    assert 13.0e-3 <= figures("c32")["itl_s_at_32"] <= 15.0e-3


# -- the rules, with figures that flip them ----------------------------------------------------------------------------

SLOTS = SlotFigures(wasted=0.84, arithmetic=0.84, alone=0.96, short_wait=25.0, gain=5.8, most=6.25)
LEVELS = tuple(LevelFigures(n, 0.01 * (1 + n / 80), 0.01 + n / 1e3, 100.0 * n, 0, 0.006) for n in (1, 8, 32))
BASELINE = BaselineFigures(23.0, 6.3, 9.0, 13.6, 2.0, 4.5, 1.5, 0.3)
LAUNCH = LaunchFigures(24.0, 2.5, 8.0, 2.9, 0.02, 0.06)
GROUPS = (GroupFigures(4, 0.017, 6_560, 3_000, 34, 130), GroupFigures(8, 0.0085, 13_120, 4_700, 56, 280, 4_474))
PAGED = CaseFigures("a", {"vllm-0.11": 5.3, "orca-oracle": 3.8, "orca-pow2": 2.8, "orca-max": 0.9, "ft-static": 0.2})
RATIOS = (LevelRatio(0.06, 37.6), LevelRatio(0.1, 19.5), LevelRatio(1.0, 3.3))


def limits(*pools: int) -> list[LimitFigures]:
    return [LimitFigures(4_096 * (n + 1), pool, 0, 0) for n, pool in enumerate(pools)]


def slower(case: CaseFigures, **rates: float) -> CaseFigures:
    return CaseFigures(case.name, {**case.rates, **{name.replace("_", "-"): rate for name, rate in rates.items()}})


FLIPS: dict[str, tuple[Ruling, str]] = {
    "the waste that was claimed": (judge_short_wait(SLOTS, 0.84), "reproduced"),
    "another waste": (judge_short_wait(SLOTS._replace(wasted=0.7), 0.84), "false"),
    "short answers that do not wait": (judge_short_wait(SLOTS._replace(short_wait=1.0), 0.84), "false"),
    "more gained than there is": (judge_short_wait(SLOTS._replace(gain=7.0), 0.84), "impossible"),
    "waste within rounding": (judge_wasted(SLOTS._replace(wasted=0.951), 0.95), "reproduced"),
    "waste three points off": (judge_wasted(SLOTS._replace(wasted=0.92), 0.95), "false"),
    "gains of 2x to 8x": (judge_spread([SpreadPoint(0.5, 2.4, 2.4, 2.4), SpreadPoint(3, 9, 7, 8.3)]), "reproduced"),
    "gains of 2x to 4x": (judge_spread([SpreadPoint(0.5, 2.4, 2.4, 2.4), SpreadPoint(3, 4, 4, 4.0)]), "false"),
    "5x at typical spreads": (judge_spread([SpreadPoint(0.5, 5, 5, 5), SpreadPoint(3, 9, 9, 9)]), "baseline-dependent"),
    "a slow baseline": (judge_baseline(BASELINE), "baseline-dependent"),
    "23x by schedule and memory": (judge_baseline(BASELINE._replace(simulated=21.0)), "reproduced"),
    "nothing by schedule and memory": (judge_baseline(BASELINE._replace(equal_steps=1.1)), "false"),
    "Hugging Face at 2 % of the bound": (judge_launch(LAUNCH), "baseline-dependent"),
    "Hugging Face at 40 % of the bound": (judge_launch(LAUNCH._replace(baseline_share=0.4)), "false"),
    "24x by schedule": (judge_launch(LAUNCH._replace(simulated_hf=23.0)), "reproduced"),
    "TGI as fast as vLLM": (judge_launch(LAUNCH._replace(simulated_tgi=1.0)), "false"),
    "a ratio that holds at some levels": (judge_level(36.9, RATIOS), "undecidable"),
    "a ratio that holds at every level": (judge_level(3.0, RATIOS), "reproduced"),
    "a ratio that holds at no level": (judge_level(60.0, RATIOS), "false"),
    "no level that both reach": (judge_level(36.9, [LevelRatio(0.1, None)]), "undecidable"),
    "paged memory in shape": (judge_equal_latency([PAGED]), "reproduced"),
    "Orca faster than paged memory": (judge_equal_latency([slower(PAGED, orca_oracle=6.0)]), "false"),
    "Orca as fast but for 10 %": (
        judge_equal_latency([slower(PAGED, orca_oracle=5.0, orca_pow2=4.9, orca_max=4.8)]),
        "baseline-dependent",
    ),
    "Orca by limit before Orca by length": (judge_equal_latency([slower(PAGED, orca_max=3.0)]), "baseline-dependent"),
    "above the bound of 4 cards": (judge_70b(11_550, GROUPS), "impossible"),
    "below the bound, as fast as simulated": (judge_70b(4_600, GROUPS), "reproduced"),
    "below all bounds, never seen": (judge_70b(6_000, GROUPS), "false"),
    "above one bound, but measured": (
        judge_70b(11_550, [GROUPS[0], GROUPS[1]._replace(published_per_s=12_000)]),
        "undecidable",
    ),
    "above one bound, the other group never measured": (
        judge_70b(11_550, [GROUPS[0], GROUPS[1]._replace(published_per_s=None)]),
        "undecidable",
    ),
    "recompute by default": (judge_swap(SwapFigures(0, 841, 0, 10, 5)), "false"),
    "swap by default, and faster": (judge_swap(SwapFigures(841, 0, 0, 15, 0)), "reproduced"),
    "swap by default, slower somewhere": (judge_swap(SwapFigures(841, 0, 0, 10, 5)), "false"),
    "swap by default, TGI's among them": (judge_swap(SwapFigures(900, 0, 100, 15, 0)), "reproduced"),
    "nobody preempted": (judge_swap(SwapFigures(0, 0, 0, 10, 5)), "undecidable"),
    "a pool that shrinks": (judge_limit(limits(300, 200, 100)), "false"),
    "a pool that grows": (judge_limit(limits(100, 200, 300)), "reproduced"),
    "a pool that does both": (judge_limit(limits(100, 300, 200)), "baseline-dependent"),
    "a closed loop that scales": (judge_closed_loop(LEVELS), "reproduced"),
    "gaps that double": (judge_closed_loop([*LEVELS[:2], LEVELS[2]._replace(itl_s=0.03)]), "false"),
    "first tokens that come sooner": (judge_closed_loop([*LEVELS[:2], LEVELS[2]._replace(ttft_s=0.001)]), "false"),
    "output that falls": (judge_closed_loop([*LEVELS[:2], LEVELS[2]._replace(output_per_s=10.0)]), "false"),
    "gaps below the floor": (judge_closed_loop([LEVELS[0]._replace(itl_s=0.005), *LEVELS[1:]]), "impossible"),
}


@pytest.mark.parametrize("name", FLIPS)
def test_a_verdict_follows_from_the_figures(name: str) -> None:
    ruling, expected = FLIPS[name]
    assert ruling.verdict == expected, ruling.why
    assert ruling.why


def test_a_rate_at_a_level_lies_between_those_around_it() -> None:
    curve = [Point(1.0, 0.02), Point(2.0, 0.05), Point(4.0, 0.2)]
    assert rate_at(curve, 0.1) == pytest.approx(2.0 * 2.0**0.5)
    assert rate_at(curve, 0.01) is None
    assert rate_at(curve, 0.3) is None


# -- the command, the page, and another runner -------------------------------------------------------------------------


def test_claims_are_run_by_whatever_runs_a_run_toml() -> None:
    asked: list[Any] = []

    def runner(tables: Any) -> dict[str, Any]:
        asked.append(tables)
        return simulated(tables)

    found = claims(["c32"], run=runner)
    assert found["c32"].ruling == audit()["c32"].ruling
    assert [tables["workload"]["concurrency"] for tables in asked] == [1, 4, 8, 16, 32]


def test_an_executed_batch_wastes_the_slots_of_a_simulated_one() -> None:
    pytest.importorskip("torch")
    with trace_of([(4, 3), (4, 3), (4, 3), (4, 24)]) as path:
        tables: Tables = {"workload": {"trace": path}, "engine": {"preset": "ft-static", "max_num_seqs": 4}}
        measured, expected = executed(tables), simulated(tables)
    assert measured["side"] == "server-measured"
    assert measured["steps"]["slot_waste"] == expected["steps"]["slot_waste"] == pytest.approx(1 - 33 / 96)
    assert measured["steps"]["count"] == expected["steps"]["count"] == 24


def test_a_claim_about_a_card_is_not_executed() -> None:
    with pytest.raises(UserError, match="executed are slots-8, slots-32"):
        claims(["c32"], execute=True)


def test_it_says_what_timed_the_steps() -> None:
    (costs,) = audit()["c32"].costs
    assert costs.startswith("llama-2-7b on a100-80gb: cost file a100-80gb_llama-2-7b, error ")
    assert any(": roofline, " in costs for costs in audit()["anyscale-23x"].costs)


def test_a_run_that_does_not_complete_is_no_verdict() -> None:
    with pytest.raises(RunError, match="did not complete"):
        simulated({"workload": {"generator": "constant", "rate_per_s": 1, "num_requests": 3,
                                "prompt": {"dist": "fixed", "value": 5_000}, "output": {"dist": "fixed", "value": 5}}})


def test_an_unknown_claim_is_one_line() -> None:
    with pytest.raises(UserError, match="did you mean 'slots-32'"):
        claims(["slots-33"])
    assert batchscope("claims", "nothing").exit_code == 2


def test_the_list_runs_nothing() -> None:
    listed = batchscope("claims", "--list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(EXPECTED)
    assert [claim["id"] for claim in json.loads(batchscope("claims", "--list", "--json").stdout)] == list(EXPECTED)


@pytest.mark.usefixtures("in_empty_folder")
def test_the_command_prints_claim_bound_and_verdict_and_makes_a_page() -> None:
    done = batchscope("claims", "slots-8", "slots-32")
    assert done.exit_code == 0
    assert "verdict: REPRODUCED" in done.stdout
    assert "verdict: FALSE" in done.stdout
    assert "2 claims: 1 reproduced, 1 false." in done.stdout
    page = Page(Path("runs/claims-1.html").read_text(encoding="utf-8"))
    assert page.wrong == []
    assert page.texts("h2") == ["1. The verdicts", "2. slots-8: reproduced", "3. slots-32: false"]


@pytest.mark.usefixtures("in_empty_folder")
def test_json_is_one_object_and_writes_nothing() -> None:
    done = batchscope("claims", "slots-32", "--json")
    (claim,) = json.loads(done.stdout)["claims"]
    assert (claim["id"], claim["verdict"]) == ("slots-32", "false")
    assert claim["figures"]["alone"] == pytest.approx(0.95)
    assert not Path("runs").exists()


def test_the_page_of_all_claims_is_well_formed(tmp_path: Path) -> None:
    page = Page(audit().report(tmp_path / "claims.html").read_text(encoding="utf-8"))
    assert page.wrong == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for claim_id, verdict in EXPECTED.items():
        assert any(title.endswith(f"{claim_id}: {verdict}") for title in page.texts("h2"))
    assert len(page.plots) >= 6


def test_the_page_in_docs_lists_claims_and_verdicts() -> None:
    text = (Path(__file__).parents[2] / "docs/claims.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w.-]+)` \|.*\| ([\w-]+) \|$", text, re.MULTILINE)
    assert dict(listed) == EXPECTED
    for verdict, meaning in VERDICTS.items():
        assert f"| {verdict} | {meaning.split(',')[0]}" in text
