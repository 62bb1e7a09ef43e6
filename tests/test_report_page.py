"""A report page is complete, self-contained, and says what the run says; without a browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from sim import simulate
from sim.report.page import SECTIONS, page
from sim.report.palette import COLOURS, policy_colour
from sim.report.view import RunView
from sim.wording import seconds
from tests.command import CHAT
from tests.pages import Page

LOAD = [*CHAT, "workload.rate_per_s=12", "workload.num_requests=240", "sim.record=tokens"]
AMPLE = (*LOAD, "engine.num_gpu_blocks=1024")
RUNS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("ft-static", "orca-max", "vllm-0.11"), AMPLE),
    "vllm-0.6-swap": [*LOAD, "engine.num_gpu_blocks=220", "slo.ttft_s=0.5", "slo.tpot_s=0.05"],
}


@pytest.fixture(scope="module")
def views() -> dict[str, RunView]:
    return {name: simulate(overrides=overrides, preset=name).view for name, overrides in RUNS.items()}


@pytest.fixture(scope="module")
def pages(views: dict[str, RunView]) -> dict[str, Page]:
    made = {name: Page(page([view])) for name, view in views.items()}
    made["comparison"] = Page(page([views[name] for name in ("ft-static", "orca-max", "vllm-0.11")]))
    return made


NAMES = [*RUNS, "comparison"]


@pytest.mark.parametrize("name", NAMES)
def test_it_has_the_seven_sections_and_well_formed_elements(pages: dict[str, Page], name: str) -> None:
    made = pages[name]
    assert made.wrong == []
    assert made.texts("h2") == [f"{number}. {title}" for number, title in enumerate(SECTIONS.values(), 1)]
    assert len(made.texts("h1")) == 1
    assert made.all("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in made.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in made.all("a"):
        assert link["href"].removeprefix("#") in ids
    for title in made.all("section"):
        assert title["aria-labelledby"] in ids


@pytest.mark.parametrize("name", NAMES)
def test_it_is_one_file_that_asks_for_nothing_else(pages: dict[str, Page], name: str) -> None:
    made = pages[name]
    for tag, attributes in made.elements:
        assert tag not in {"link", "img", "iframe", "object", "base"}
        assert "src" not in attributes
    policies = [meta["content"] for meta in made.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'")
    assert not re.search(r"https?:|url\(\s*['\"]?(?!#)", re.sub(r"<script.*?</script>", "", made.html, flags=re.DOTALL))
    assert len(made.html.encode()) < 8_000_000


@pytest.mark.parametrize("name", NAMES)
def test_every_plot_is_valid_readable_and_has_words(pages: dict[str, Page], name: str) -> None:
    made = pages[name]
    places = [attributes for _, attributes in made.elements if attributes.get("class") == "plot"]
    assert [place["id"] for place in places] == list(made.plots)
    assert len(places) >= 10
    for place in places:
        assert place["role"] == "img"
        assert len(place["aria-label"]) > 20
    for figure in made.plots.values():
        checked = go.Figure(figure)
        assert checked.layout.font.size >= 14
        assert not checked.layout.showlegend
        for key, axis in figure["layout"].items():
            if re.fullmatch(r"[xy]axis", key) and axis.get("type") == "log":
                assert "log scale" in axis["title"]["text"]
            elif re.fullmatch(r"[xy]axis", key) and "range" not in axis and "categoryarray" not in axis:
                assert axis.get("rangemode") == "tozero" or "title" not in axis
        for trace in figure["data"]:
            hover = trace.get("hovertemplate", "")
            assert trace.get("hoverinfo") == "skip" or (hover.endswith("<extra></extra>") and len(hover) > 25), trace


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_told_by_colour_alone(pages: dict[str, Page], name: str) -> None:
    """Lines of one plot differ in their dashes, areas and bars in their patterns."""
    for key, figure in pages[name].plots.items():
        if key.startswith("plot-gaps"):
            continue  # each line has a row of its own, with its name beside it
        lines = [trace for trace in figure["data"] if trace["type"] == "scatter" and "stackgroup" not in trace]
        named = [trace["line"]["dash"] for trace in lines if trace.get("showlegend") is not False]
        assert len(named) == len(set(named)), key
        areas = [trace.get("fillpattern", {}).get("shape", "") for trace in figure["data"] if "stackgroup" in trace]
        assert len(areas) == len(set(areas)), key
        bars = {trace["name"]: trace["marker"].get("pattern", {}).get("shape", "") for trace in figure["data"]
                if trace["type"] == "bar"}  # fmt: skip
        assert len(bars) == len(set(bars.values())), key


@pytest.mark.parametrize("name", NAMES)
def test_figures_have_three_digits_and_units(pages: dict[str, Page], name: str) -> None:
    text = pages[name].visible.rpartition("7. Reproduce")[0]
    found = re.findall(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?) (?:s|ms|%|GB)(?![\w/])", text)
    assert len(found) > 30
    for number in found:
        digits = number.replace(",", "").lstrip("0.").replace(".", "")
        assert len(digits.rstrip("0") if "." not in number else digits) <= 3, number


def test_the_finding_says_what_the_run_says(views: dict[str, RunView], pages: dict[str, Page]) -> None:
    summary = views["vllm-0.6-swap"].summary
    text = pages["vllm-0.6-swap"].visible
    events = summary["preemptions"]["swap"]
    assert events > 0
    for words in (
        f"first token within {seconds(summary['ttft_s']['p50'])}",
        f"pushed out {events:,} times",
        "vLLM 0.6.3 (V0 scheduler)",
        "cost model a100-80gb_llama-2-7b",
        "240 of 240 finished; none refused, aborted or cut off",
        "simulated, seen from the server",
        "TTFT <= 500 ms, TPOT <= 50 ms",
    ):
        assert words in text, words
    assert "of the batch's slots were spent on answers that had already ended" in pages["ft-static"].visible
    assert "a batch is answered as a whole" in pages["ft-static"].visible
    assert "of the reserved KV cache" in pages["orca-max"].visible


def test_limits_are_drawn_and_words_are_explained(pages: dict[str, Page]) -> None:
    plots = pages["vllm-0.6-swap"].plots
    assert plots["plot-ttft_s"]["layout"]["annotations"][0]["text"] == "limit 500 ms"
    assert plots["plot-tpot_s"]["layout"]["shapes"][0]["line"]["dash"] == "dash"
    assert "annotations" not in pages["vllm-0.11"].plots["plot-ttft_s"]["layout"]
    for word in ("TTFT", "ITL", "TPOT", "E2E", "KV cache", "preemption", "prefill", "decode", "step", "batch"):
        assert word in pages["vllm-0.11"].texts("dt"), word


def test_a_policy_has_one_colour_on_all_pages(pages: dict[str, Page]) -> None:
    for name in ("orca-max", "vllm-0.11"):
        alone = pages[name].plots["plot-e2e_s"]["data"]
        together = [trace for trace in pages["comparison"].plots["plot-e2e_s"]["data"] if trace["name"] == name]
        assert [trace["line"]["color"] for trace in (*alone, *together)] == [policy_colour(name)] * 2
    assert policy_colour("MyOwnPolicy") == policy_colour("MyOwnPolicy")
    assert policy_colour("ft-static") != policy_colour("orca-max") != policy_colour("vllm-0.11")


def test_colours_can_be_seen_on_white_and_on_near_black() -> None:
    def light(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in COLOURS:
        assert (light("#ffffff") + 0.05) / (light(colour) + 0.05) >= 3
        assert (light(colour) + 0.05) / (light("#15181d") + 0.05) >= 3


def test_a_gantt_shows_at_most_sixty_lives_and_tells_each_in_words(pages: dict[str, Page]) -> None:
    bars = pages["vllm-0.6-swap"].plots["plot-lives-0"]["data"]
    requests = {label for trace in bars for label in trace["y"]}
    assert 20 <= len(requests) <= 60
    kinds = {trace["name"] for trace in bars}
    assert {"making tokens (decode)", "swapped out to CPU memory"} <= kinds
    for trace in bars:
        assert all(value >= 0 for value in (*trace["base"], *trace["x"]))
        for hover in trace["customdata"]:
            assert re.search(r"Request \d+: \d+ tokens of prompt, \d+ of answer\.<br>First token after ", hover)


def test_a_comparison_has_all_runs_in_each_chart_and_lists_what_differs(pages: dict[str, Page]) -> None:
    made = pages["comparison"]
    for key in ("plot-ttft_s", "plot-time-1", "plot-time-2", "plot-time-3"):
        assert {trace["name"] for trace in made.plots[key]["data"]} == {"ft-static", "orca-max", "vllm-0.11"}
    text = made.visible
    assert "What differs in the configurations" in text
    assert "engine.preset ft-static orca-max vllm-0.11" in text
    assert "orca-max minus ft-static, request by request" in text
    start = "Simulated: the model llama-2-7b on a100-80gb answers the same 240 requests, "
    names = r"ft-static, orca-max and vllm-0\.11\."
    assert re.search(rf"{start}1\d\.\d a second, under 3 scheduling policies: {names}", text)


def test_series_of_a_long_run_are_binned(pages: dict[str, Page]) -> None:
    for figure in pages["vllm-0.11"].plots.values():
        for trace in figure["data"]:
            assert len(trace.get("x", ())) <= 2 * 256


def test_what_a_user_names_is_text_and_not_markup(views: dict[str, RunView], tmp_path: Path) -> None:
    from dataclasses import replace

    view: Any = replace(views["vllm-0.11"], toml="name = '</pre><script>alert(1)</script>'", label="a<b>&c")
    html = page([view, views["orca-max"]])
    assert "<script>alert" not in html
    assert "&lt;/pre&gt;&lt;script&gt;" in html
    assert Page(html).wrong == []


def test_who_got_no_answer_is_part_of_the_finding(tmp_path: Path) -> None:
    overrides = [*CHAT, "workload.rate_per_s=12", "workload.num_requests=80", "engine.num_gpu_blocks=150"]
    left = Page(page([simulate(overrides=[*overrides, "workload.abort_after_s=4"]).view])).visible
    counts = simulate(overrides=[*overrides, "workload.abort_after_s=4"]).summary["requests"]
    assert counts["aborted"] > 1
    lost = counts["aborted"]
    assert f"{lost} of 80 requests got no whole answer ({lost} given up by their clients)." in left
    assert "no whole answer" not in Page(page([simulate(overrides=overrides).view])).visible


def test_a_roofline_states_its_band() -> None:
    overrides = [*CHAT, "workload.rate_per_s=4", "workload.num_requests=20", "hardware.cost_model=roofline"]
    result = simulate(overrides=overrides, hardware="l40s-48gb")
    text = Page(page([result.view])).visible
    band = result.summary["cost_model"]["band"]
    assert f"its times were {band['p5']:.2f} to {band['p95']:.2f} of measured ones in 90 %" in text
