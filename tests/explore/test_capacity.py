"""``capacity``: the rate, the replicas, the card, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policies.core.errors import ConfigError
from sim import capacity, simulate
from sim.explore.capacity_result import CapacityResult
from sim.explore.capacity_words import finding
from sim.explore.limits import parse_limit
from tests.command import batchscope, message_of
from tests.pages import Page

pytestmark = pytest.mark.usefixtures("in_empty_folder")

SHORT = [
    "workload.generator=poisson",
    "workload.prompt={dist='uniform', low=20, high=400}",
    "workload.output={dist='uniform', low=5, high=80}",
]
LIMITS = ["ttft_p99_s=0.3", "itl_p99_s=0.03"]
MORE: dict[str, Any] = {"samples": 3, "num_requests": 200}
OPTIONS = [part for key in SHORT for part in ("--set", key)] + ["--samples", "2", "--requests", "200"]


@pytest.fixture(scope="module")
def found() -> CapacityResult:
    return capacity(slo=LIMITS, overrides=[*SHORT, "price.a100-80gb=1.5"], **MORE)


def test_the_rate_keeps_the_limits_and_a_higher_one_does_not(found: CapacityResult) -> None:
    rate = found.rate
    assert rate is not None
    assert found.feasible
    assert rate.low <= rate.rate_per_s <= rate.high
    for place, critical in enumerate(rate.rates):
        assert found.loads.probe(place, critical * 1.3).verdict.met is False
        assert found.loads.probe(place, critical / 1.3).verdict.met is True
    assert rate.causes
    assert rate.causes[0].share == 1.0


def test_simulate_agrees_well_below_and_above_the_rate(found: CapacityResult) -> None:
    rate = found.rate_per_s
    assert rate is not None
    met = []
    for factor in (0.7, 1.5):
        sent = [*SHORT, f"workload.rate_per_s={factor * rate}", "workload.num_requests=900", "workload.seed=77"]
        summary = simulate(overrides=sent).summary
        met.append(summary["ttft_s"]["p99"] <= 0.3 and summary["itl_s"]["p99"] <= 0.03)
    assert met == [True, False]


def test_the_longer_runs_are_of_other_requests_at_both_ends(found: CapacityResult) -> None:
    assert found.rate is not None
    assert [probe.rate_per_s for probe in found.rate.confirmed] == [found.rate.low, found.rate.high]


def test_the_curve_tells_latency_throughput_and_cost(found: CapacityResult) -> None:
    table = found.table
    assert table["rate_per_s"].is_monotonic_increasing
    assert {"ttft_p99_s", "itl_p99_s", "output_tokens_per_s", "usd_per_request"} <= set(table.columns)
    middle = table[table["rate_per_s"] == found.rate_per_s].iloc[0]
    expected = 1.5 / 3600 / middle["output_tokens_per_s"] * 1e6
    assert middle["usd_per_million_output_tokens"] == pytest.approx(expected)
    assert len(found.front) >= 2
    assert found.at_rate is not None


def test_smaller_chunks_are_tried_where_gaps_between_tokens_stop_it(found: CapacityResult) -> None:
    settings = [lever.setting for lever in found.levers]
    assert settings == [f"engine.max_num_batched_tokens={tokens}" for tokens in (1024, 512, 256)]
    assert all(lever.result is not None and lever.result.feasible for lever in found.levers)


def test_the_answer_is_json_and_a_page(found: CapacityResult) -> None:
    answer = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert answer["rate"]["rate_per_s"] == found.rate_per_s
    assert answer["rate"]["stopped_by"][0]["by"] in LIMITS
    assert answer["usd_per_hour"] == 1.5
    page = Page(found.report("capacity.html").read_text(encoding="utf-8"))
    assert page.wrong == []
    assert "requests a second (95 % interval" in page.visible.replace("\u00a0", " ")
    assert {"plot-rate-0", "plot-rate-1", "plot-front"} <= page.plots.keys()


def test_an_impossible_limit_is_refused_with_the_bound() -> None:
    result = capacity(slo=["itl_p99_s=0.001"], overrides=SHORT, **MORE)
    assert not result.feasible
    assert result.rate is not None
    (refusal,) = result.rate.refused
    assert refusal.floor_s is not None
    assert 0.001 < refusal.floor_s < refusal.alone_s
    # The floor: 13.0 GB of weights that are read at 2.039 TB/s, and the KV cache of a short request.
    assert 0.0063 < refusal.floor_s < 0.0068
    assert "no software on it can" in refusal.in_words()
    assert result.curve == []


def test_a_limit_between_floor_and_latency_alone_is_refused_without_that_word() -> None:
    result = capacity(slo=["itl_p50_s=0.008"], overrides=SHORT, **MORE)
    assert result.rate is not None
    (refusal,) = result.rate.refused
    assert "no software" not in refusal.in_words()


def test_unstable_rates_are_not_carried_however_loose_the_limits() -> None:
    few = [*SHORT, "engine.max_num_seqs=2"]
    result = capacity(slo=["itl_p50_s=60"], overrides=few, samples=2, num_requests=200, curve=False, levers=[])
    assert result.rate is not None
    assert any(cause.limit is None for cause in result.rate.causes)


def test_replicas_of_the_cheapest_card(found: CapacityResult) -> None:
    assert found.rate_per_s is not None
    wanted, prices = 1.7 * found.rate_per_s, ["price.a100-80gb=1.0", "price.h100-80gb=50.0"]
    cards = capacity(
        slo=LIMITS, find="card", rate_per_s=wanted, overrides=[*SHORT, *prices], samples=2, num_requests=150
    )
    assert cards.card is not None
    assert cards.card.name == "a100-80gb"
    assert {card.name for card in cards.cards} == {"a100-80gb", "h100-80gb"}
    assert cards.card.usd_per_hour == cards.card.replicas
    assert cards.replicas is not None
    assert cards.replicas.replicas in (2, 3)
    assert cards.replicas.is_confirmed
    assert not cards.loads.probe(0, wanted, 1).verdict.met


def test_the_command_prints_the_answer_and_writes_a_page() -> None:
    ended = batchscope("capacity", "--slo", "ttft_p99_s=0.3", *OPTIONS, "--try", "engine.max_num_seqs=4")
    assert ended.exit_code == 0, ended.stderr
    assert "requests a second (95 % interval" in ended.stdout
    assert "What stops it there" in ended.stdout
    assert "max_num_seqs = 4" in ended.stdout
    assert Path("runs/capacity-1.html").is_file()


def test_an_infeasible_search_prints_json_and_exits_with_1() -> None:
    ended = batchscope("capacity", "--slo", "itl_p99_s=0.001", *OPTIONS, "--json")
    assert ended.exit_code == 1
    assert ended.summary["feasible"] is False
    assert ended.summary["rate"]["refused"][0]["limit"] == "itl_p99_s=0.001"
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--slo is missing"),
        (["--slo", "ttft_p99_s"], "write METRIC=SECONDS"),
        (["--slo", "tft_p99_s=1"], "did you mean 'ttft_p99_s'?"),
        (["--slo", "ttft_p99_s=-1"], "is no limit in seconds"),
        (["--slo", "itl_p99_s=1@prompt<=9"], "limit tpot_p99_s"),
        (["--slo", "ttft_p99_s=1@prompt"], "write @prompt<=1000"),
        (["--slo", "ttft_p99_s=1@9<prompt<=9"], "no prompt is that long"),
        (["--slo", "ttft_p99_s=1", "--slo", "ttft_p99_s=2"], "is limited twice"),
        (["--slo", "ttft_p99_s=1", "--find", "cards"], "did you mean 'card'?"),
        (["--slo", "ttft_p99_s=1", "--find", "card", "--rate", "2"], "no card has a price"),
        (["--slo", "ttft_p99_s=1", "--find", "replicas"], "say for which rate"),
        (["--slo", "ttft_p99_s=1", "--router", "random"], "use one of round_robin"),
        (["--slo", "ttft_p99_s=1", "--samples", "1"], "give at least 2"),
        (["--slo", "ttft_p99_s=1", "--price", "a100=1"], "unknown card 'a100'"),
        (["--slo", "ttft_p99_s=1", "--price", "a100-80gb"], "write CARD=USD"),
        (["--slo", "ttft_p99_s=1", "--price", "a100-80gb=-1"], "give a number above 0"),
        (["--slo", "ttft_p99_s=1", "--requests", "0"], "requests = 0: give at least 100"),
        (["--slo", "ttft_p99_s=1", "--replicas", "0"], "replicas = 0: give a whole number"),
        (["--slo", "ttft_p99_s=1", "--replicas", "5000"], "of at most 4096"),
        (["--slo", "ttft_p99_s=1", "--rate", "3"], "the rate is what is found"),
        (["--slo", "ttft_p99_s=1", "--find", "replicas", "--rate", "-3"], "a number above 0"),
        (["--slo", "ttft_p99_s=1", "--find", "replicas", "--rate", "0"], "a number above 0"),
        (["--slo", "ttft_p99_s=1", "--find", "replicas", "--rate", "nan"], "a number above 0"),
        (["--slo", "ttft_p99_s=1", "--find", "replicas", "--rate", "inf"], "of at most 1e+06"),
        (["--slo", "ttft_p99_s=1", "--find", "replicas", "--rate", "3", "--replicas", "2"], "belongs to find = rate"),
        (["--slo", "ttft_p99_s=1", "--try", "engine.max_num_seqs"], "write KEY=VALUE"),
        (["--slo", "ttft_p99_s=1", "--try", "engine.max_num_sqs=4"], "did you mean 'max_num_seqs'?"),
    ],
)
def test_mistakes_end_in_one_line(arguments: list[str], expected: str) -> None:
    assert expected in message_of("capacity", *arguments, files={})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft_p99_s=0.5", "TTFT p99 <= 500 ms"),
        ("ttft_p99_s <= 0.5 @ prompt <= 1000", "TTFT p99 <= 500 ms of prompts of at most 1,000 tokens"),
        ("e2e_mean_s=20@1000<prompt<=4000", "E2E mean <= 20 s of prompts of 1,001 to 4,000 tokens"),
        ("ttft_p90_s=0.2+0.0005*prompt", "TTFT p90 <= 200 ms + 0.5 ms a prompt token"),
    ],
)
def test_limits_in_words(text: str, words: str) -> None:
    assert parse_limit(text).in_words() == words


def test_more_replicas_than_are_tried_are_said_with_the_bound() -> None:
    result = capacity(
        slo=["ttft_p99_s=1"], find="replicas", rate_per_s=9e5, overrides=SHORT, samples=2, num_requests=100
    )
    assert not result.feasible
    assert "do not carry 900,000 requests a second: by the hardware bound alone that takes" in " ".join(finding(result))


def test_the_page_says_how_to_find_the_same_again() -> None:
    prices = ["price.a100-80gb=1.5"]
    more = {"overrides": [*SHORT, *prices], "samples": 2, "num_requests": 110}
    result = capacity(slo=["ttft_p99_s=0.3"], find="card", rate_per_s=60, **more)  # type: ignore[arg-type]
    page = Page(result.report("card.html").read_text(encoding="utf-8"))
    assert '--slo "ttft_p99_s=0.3" --find card --rate 60' in page.visible.replace("\u00a0", " ")
    assert "--router round_robin --samples 2 --requests 110" in page.visible.replace("\u00a0", " ")


def test_samples_that_are_too_short_are_said_to_be() -> None:
    result = capacity(slo=["ttft_p99_s=1"], overrides=SHORT, samples=2, num_requests=100, curve=False, levers=[])
    assert result.rate is not None
    assert result.rate.capped
    words = " ".join(finding(result))
    if result.rate.confirmed[0].verdict.met:
        assert "may lie above this interval" in words
    else:
        assert "end before the server has filled up; give more (--requests)" in words
        assert "hardware bound" not in words


def test_gaps_of_answers_that_come_whole_limit_nothing() -> None:
    of = {"overrides": SHORT, "samples": 2, "num_requests": 100, "curve": False, "levers": []}
    result = capacity(slo=["ttft_p99_s=3", "itl_p99_s=0.001"], preset="ft-static", **of)  # type: ignore[arg-type]
    assert "ITL limits nothing" in " ".join(finding(result))


def test_a_class_without_requests_is_said() -> None:
    with pytest.raises(ConfigError, match="no request of this workload has such a latency"):
        capacity(slo=["ttft_p99_s=1@prompt>5000"], overrides=SHORT, **MORE)


def test_the_example_of_the_guide_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "capacity.md").read_text(encoding="utf-8")
    exec(text.partition("```python\n")[2].partition("```")[0], {})
    assert "rate_per_s" in capsys.readouterr().out
    assert Path("capacity.html").is_file()
