"""A page explains itself: how each policy works, what was asked of it, and differences that mean what they say."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from policies.presets import Preset, presets
from sim import simulate
from sim.report.figures import difference_table, relative
from sim.report.mechanism import how_it_works
from sim.report.page import page
from sim.report.view import RunView
from sim.wording import digits
from tests.command import CHAT
from tests.pages import Page

SHORT = [*CHAT, "workload.rate_per_s=12", "workload.num_requests=240", "engine.num_gpu_blocks=1024"]


@pytest.fixture(scope="module")
def views() -> list[RunView]:
    return [simulate(overrides=SHORT, preset=name).view for name in ("ft-static", "orca-max", "vllm-0.11")]


@pytest.fixture(scope="module")
def compared(views: list[RunView]) -> Page:
    return Page(page(views))


@pytest.mark.parametrize("chosen", presets(), ids=lambda chosen: chosen.name)
def test_every_preset_is_explained_in_words_of_nobody(chosen: Preset) -> None:
    """Nobody joins a static batch; all others take requests in between steps. Names of keys explain nothing."""
    config = {"parameters": {"max_model_len": 4096}}
    words = how_it_works({"preset": chosen.name, "policy": "Class", "config": config})
    static = "static" in f"{chosen.name} {chosen.summary}" or chosen.delivery == "batch_end"
    assert ("nobody joins it" in words) is static
    assert ("join and leave the batch between any two steps" in words) is not static
    assert ("all answers come then" in words) is (chosen.delivery == "batch_end")
    assert "KV cache" in words
    assert "_" not in words
    assert ("4,096 tokens" in words) is (chosen.blocks in ("slot", "reserved"))


def test_of_a_class_of_the_users_nothing_is_claimed_but_its_memory() -> None:
    config = {"parameters": {"max_model_len": 4096}}
    assert how_it_works({"preset": "vllm-0.11", "policy": "mine.py:Mine", "config": config}) == ""
    assert "whatever its own length" in how_it_works({"preset": "orca-max", "policy": "mine.py:Mine", "config": config})


def test_a_comparison_says_how_each_policy_works_and_what_was_asked_of_it(views: list[RunView], compared: Page) -> None:
    for view in views:
        assert how_it_works(view.summary) in compared.visible, view.label
    assert compared.texts("dt").count("Workload") == 1
    prompts = views[0].requests["prompt_tokens"]
    for words in ("generated, poisson arrivals", f"prompts of {digits(prompts.mean())} tokens on average, at most "):
        assert words in compared.visible
    assert re.search(r"It reserved [\d.]+ % of the KV cache on average; [\d.]+ % of that was empty", compared.visible)
    single = Page(page([views[2]]))
    assert single.texts("dd")[1] == how_it_works(views[2].summary)


def test_a_figure_reads_the_same_wherever_it_stands(views: list[RunView], compared: Page) -> None:
    rates = [digits(view.summary["throughput"]["bound_output_tokens_per_s"]) for view in views]
    assert f"... hardware bound {' '.join(rates)}" in compared.visible
    assert [trace["text"][0] for trace in compared.plots["plot-bound"]["data"]][::2] == rates


@pytest.mark.parametrize(
    ("change", "before", "words"),
    [(-214.99, 215, "< -99.9 %"), (-215, 215, "-100 %"), (-3, 4, "-75 %"), (30, 2, "+1,500 %"), (1, 0, "-")],
)
def test_only_what_is_gone_is_less_by_100_percent(change: float, before: float, words: str) -> None:
    assert relative(change, before) == words


def test_without_intervals_a_table_says_why_and_has_no_column_for_them(views: list[RunView]) -> None:
    static, _, paged = views
    growing = {"stability": {"stable": False, "queue_slope_per_s": 1.0}}
    table = difference_table(paged, replace(static, summary=static.summary | growing))
    without = "without intervals: ft-static does not keep up"
    assert table.caption == f"vllm-0.11 minus ft-static, request by request ({without})"
    assert table.header == ("", "difference", "relative", "requests in both")
    assert {len(row) for row in table.rows} == {4}
    again = difference_table(paged, paged)
    assert "beyond chance?" in again.header
    assert {len(row) for row in again.rows} == {5}


def test_a_line_ends_where_its_run_ends(views: list[RunView], compared: Page) -> None:
    ends_s = {trace["name"]: trace["x"][-1] for trace in compared.plots["plot-time-0"]["data"]}
    last_s = views[0].requests["arrival_s"].max()
    width_s = views[0].summary["duration_s"] / 30
    assert ends_s["arrive"] <= last_s + 2 * width_s < ends_s["finish, ft-static"]
    paged_s = views[2].requests["finish_s"].max()
    assert ends_s["finish, vllm-0.11"] <= paged_s + 2 * width_s


def test_charts_that_stand_side_by_side_have_one_scale(compared: Page) -> None:
    ranges = [plot["layout"]["xaxis"]["range"] for key, plot in compared.plots.items() if key.startswith("plot-gaps")]
    assert len(ranges) == 2
    assert ranges[0] == ranges[1]


def test_numbers_stay_with_their_units_and_run_toml_stays_as_it_is(views: list[RunView], compared: Page) -> None:
    bodies = re.findall(r"<(?:td|dd|li|figcaption|caption)\b[^>]*>([^<]*)<", compared.html)
    assert len(bodies) > 60
    assert not [body for body in bodies if re.search(r"\d (s|ms|%|GB)\b", body)]
    shown = [unescape(text) for text in re.findall(r"<pre[^>]*>(.*?)</pre>", compared.html, re.DOTALL)]
    assert shown == [view.toml for view in views]
