"""A result in Python and in notebooks: tables, figures, a page, and how it shows itself."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import pytest

from policies.core.errors import UserError
from sim import simulate
from sim.result import FIGURES, Result
from sim.wording import seconds
from tests.command import CHAT
from tests.pages import Page

pytestmark = pytest.mark.usefixtures("in_empty_folder")
RUN = [*CHAT, "workload.rate_per_s=30", "workload.num_requests=60", "engine.num_gpu_blocks=150"]


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(overrides=RUN)


def test_every_figure_is_a_plotly_figure(result: Result) -> None:
    for name in FIGURES:
        figure = result.figure(name)
        assert isinstance(figure, go.Figure)
        assert len(figure.data) > 0
        assert figure.layout.font.size >= 14
    assert result.figure().layout.showlegend


def test_another_name_is_answered_with_those_there_are(result: Result) -> None:
    with pytest.raises(UserError, match=r"^figure 'over-time': use one of over_time, .*; did you mean 'over_time'\?$"):
        result.figure("over-time")


def test_figures_of_several_runs_are_laid_over_each_other(result: Result) -> None:
    other = simulate(overrides=RUN, preset="vllm-0.6-swap")
    for name in ("over_time", "ttft", "ttft_by_prompt"):
        names = {trace.name for trace in result.figure(name, other).data}
        assert {result.view.label, other.view.label} <= names, name
    with pytest.raises(UserError, match="figure 'requests' shows one run; draw it for each result"):
        result.figure("requests", other)


def test_a_figure_without_samples_says_so() -> None:
    batch = simulate(overrides=[*CHAT, "workload.rate_per_s=30", "workload.num_requests=8"], preset="ft-static")
    with pytest.raises(UserError, match="figure 'itl': this run has no samples for it"):
        batch.figure("itl")


def test_it_shows_itself_as_a_table_and_a_picture_without_scripts(result: Result) -> None:
    html = result._repr_html_()
    made = Page(html)
    assert made.wrong == []
    assert {"script", "style", "link", "img"} & {tag for tag, _ in made.elements} == set()
    assert len(made.all("polyline")) == 2
    assert made.all("svg")[0]["role"] == "img"
    assert seconds(result.summary["ttft_s"]["p50"]) in " ".join(made.texts("td"))
    assert len(html) < 50_000


def test_its_page_goes_where_it_is_told(result: Result) -> None:
    with pytest.raises(UserError, match=r"this run has no folder; name the file: result\.report\('report\.html'\)"):
        result.report()
    assert result.report("page.html") == Path("page.html")
    written = simulate(overrides=RUN, out="folder")
    assert written.report() == Path("folder/report.html")
    one, two = (Page(Path(path).read_text()) for path in ("page.html", "folder/report.html"))
    assert one.plots == two.plots
