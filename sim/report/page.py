"""One self-contained HTML page for a run, or for several side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from policies.core.errors import UserError
from sim.report import bound, distributions, gantt
from sim.report.charts import TOP_PX, Figure, one_panel
from sim.report.figures import (
    Table,
    config_table,
    difference_table,
    group_tables,
    latency_table,
    overview_table,
    rate_rows,
)
from sim.report.finding import find, shared_facts
from sim.report.lives import chosen_lives, in_words
from sim.report.over_time import X_TITLE, time_panels
from sim.report.palette import area_sample, line_sample
from sim.report.view import RunView, arrival_and_end_rates, side_by_side
from sim.report.words import CAUSES, GLOSSARY, METRICS
from sim.runs import write_whole
from sim.summary import VERSION
from sim.wording import digits, percent, seconds

HERE = Path(__file__).parent
REPORT_NAME = "report.html"
"""Its file in a run folder."""

SECTIONS = {
    "finding": "The finding",
    "figures": "Key figures",
    "time": "Over time",
    "distributions": "Distributions",
    "requests": "Requests",
    "bound": "Against the bound",
    "reproduce": "Reproduce",
}
_INTRO = (
    "A server for a large language model works on many requests at once, in steps: in each step every running request"
    " gains one token. A scheduling policy decides who runs and who waits. This page shows what a policy does to"
    " the people who wait, and why."
)
_INTERVALS = (
    "Each time is over the requests that have it (docs/metrics.md of batchscope defines them). ± is half of a 95 %"
    " interval, from 10 windows of neighbouring requests; where there is none, samples are too few or the run does"
    " not keep up."
)

_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|%|GB|MB)(?!\w))|(?<=[<>]) (?=-?\d)")


class Chart(NamedTuple):
    """A figure on the page, with what it says in words, and the same as a table."""

    id: str
    title: str
    caption: str
    parts: list[Part]
    table: Table | None


class Part(NamedTuple):
    """A plot of a chart: its own title, the names of its lines as (sample, name), and what plotly draws."""

    id: str
    title: str
    legend: list[tuple[str, str]]
    json: str
    height_px: int


def write_page(
    views: Sequence[RunView], path: Path | str, *, paired: bool = True, notices: Sequence[str] = ()
) -> Path:
    """Write the page of one run, or the comparison of several (the first one is the base); see ``page``.

    Takes the place of an older page; raises a UserError rather than of another file.
    """
    path = Path(path)
    if path.is_file() and not _is_page(path):
        raise UserError(f"{path}: exists and is no page; name a new file")
    write_whole(path, page(views, paired=paired, notices=notices))
    return path


def _is_page(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(20).lstrip().lower().startswith(b"<!doctype html") or not path.stat().st_size


def page(views: Sequence[RunView], *, paired: bool = True, notices: Sequence[str] = ()) -> str:
    """The HTML text of the page. ``paired``: with differences request by request; ``notices`` say what a reader must
    know of them."""
    from jinja2 import Environment, FileSystemLoader

    views = side_by_side(views)
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=False, finalize=_glued)
    one = len(views) == 1
    return environment.get_template("page.html.j2").render(
        version=VERSION,
        title=_title(views),
        intro=_INTRO,
        sections=[(key, f"{number}. {name}") for number, (key, name) in enumerate(SECTIONS.items(), 1)],
        finding=find(views),
        facts=[*shared_facts(views), *([("Comparison", list(notices))] if notices else [])],
        glossary=[*GLOSSARY.items(), *METRICS.values()],
        figures_note=_INTERVALS,
        tables=_tables(views, paired),
        charts={name: list(make(views)) for name, make in _CHARTS.items()},
        distributions_note=_distributions_note(views),
        bound_note=_bound_note(views),
        bound_tables=_bound_tables(views),
        config_table=None if one else config_table(views),
        runs=[{"label": view.label, "toml": view.toml} for view in views],
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
        plotly_js=_plotly_js(),
    )


def _glued(value: object) -> object:
    """Numbers stay in one line with their units, in all text but what is escaped already: scripts and run.toml."""
    return _UNIT.sub("\u00a0", value) if type(value) is str else value


def _plotly_js() -> str:
    """The library as plotly ships it, found without importing plotly."""
    from importlib.util import find_spec

    found = find_spec("plotly")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _title(views: Sequence[RunView]) -> str:
    summary = views[0].summary
    return f"{', '.join(view.label for view in views)}: {summary['model']} on {summary['hardware']}"


def _tables(views: Sequence[RunView], paired: bool) -> list[Table]:
    if len(views) == 1:
        (view,) = views
        rates = Table("Rates, memory, preemptions", ("", "value", "what it is"), rate_rows(view.summary))
        return [latency_table(view), rates, *group_tables(view)]
    base, *others = views
    tables = [overview_table(views), *(difference_table(view, base) for view in others if paired)]
    for view in views:
        tables += [table._replace(caption=f"{view.label}: {table.caption}") for table in group_tables(view)]
    return tables


def _chart(
    key: str, title: str, caption: str, figure: Figure | None, table: Table | None = None
) -> Iterable[Chart]:
    if figure is not None:
        yield Chart(f"chart-{key}", title, caption, [_part(f"plot-{key}", "", figure)], table)


def _part(key: str, title: str, figure: Figure) -> Part:
    # The legend stands above the plot, where it wraps with the page.
    margin = figure.layout["margin"]
    height_px = figure.layout["height"] - (margin["t"] - TOP_PX)
    layout = {**figure.layout, "showlegend": False, "margin": {**margin, "t": TOP_PX}, "height": height_px}
    # "</" would end the script element that holds it.
    text = Figure(figure.data, layout).to_json().replace("</", "<\\/")
    legend = legend_of(figure, key)
    return Part(key, title, legend if len(legend) > 1 or title else [], text, int(height_px))


def legend_of(figure: Figure, key: str) -> list[tuple[str, str]]:
    """Sample and name of each line and area that has a name."""
    entries: dict[str, str] = {}
    for number, trace in enumerate(figure.data):
        if trace.get("showlegend") is False or "name" not in trace:
            continue
        if trace["type"] == "bar":
            marker = trace["marker"]
            pattern = marker.get("pattern", {})
            colour = pattern.get("fgcolor") or marker["color"]
            sample = area_sample(colour, pattern.get("shape", ""), f"{key}-{number}")
        elif "stackgroup" in trace:
            shape = trace.get("fillpattern", {}).get("shape", "")
            sample = area_sample(trace["line"]["color"], shape, f"{key}-{number}")
        else:
            sample = line_sample(trace["line"]["color"], trace["line"].get("dash", "solid"))
        entries.setdefault(trace["name"], sample)
    return [(sample, name) for name, sample in entries.items()]


def _time_charts(views: Sequence[RunView]) -> Iterable[Chart]:
    caption = (
        "All panels share the time axis; drag to zoom, double-click to come back. Bands tell, for each interval, why"
        " no further request was let into the batch."
    )
    if all(view.digest is None for view in views):
        caption = "This record has no steps: run again with sim.record = steps to see the engine over time."
    table = _time_table(views[0]) if len(views) == 1 else _compared_table(views)
    panels, x_range = time_panels(views)
    parts = []
    for number, panel in enumerate(panels):
        figure = one_panel(panel, X_TITLE, x_range, last=number == len(panels) - 1)
        parts.append(_part(f"plot-time-{number}", panel.title, figure))
    yield Chart("chart-time", "The run over time" if len(views) == 1 else "The runs over time", caption, parts, table)


def _time_table(view: RunView) -> Table | None:
    """Twelve intervals of the run in figures."""
    digest = view.digest
    if digest is None or not len(digest.middle_s):
        return None
    parts = np.array_split(np.arange(len(digest.middle_s)), min(12, len(digest.middle_s)))
    limits = digest.limited_by()
    rows = []
    for part in parts:
        low_s = digest.start_s + part[0] * digest.width_s
        high_s = digest.start_s + (part[-1] + 1) * digest.width_s
        arrived, ended = arrival_and_end_rates(view, np.array([low_s, high_s]))
        used = digest.mean("used_blocks")[part].mean() / max(digest.num_gpu_blocks, 1)
        steps = float(digest.total("steps")[part].sum())
        step = seconds(float(digest.total("step_s")[part].sum()) / steps) if steps else "-"
        held = {cause: float(time_s[part].sum()) for cause, time_s in limits.items()}
        cause = max(held, key=lambda name: held[name]) if any(held.values()) else ""
        rows.append(
            (
                f"{digits(low_s)} to {digits(high_s)}",
                *(digits(float(rate[0])) for rate in (arrived, ended)),
                *(digits(float(digest.mean(level)[part].mean())) for level in ("running", "waiting")),
                *(percent(float(used)), step, CAUSES.get(cause, "the engine was idle")),
            )
        )
    header = ("seconds", "arrive/s", "finish/s", "running", "waiting", "KV cache", "step", "mostly kept out by")
    return Table("The run in twelve intervals", header, rows)


def _compared_table(views: Sequence[RunView]) -> Table | None:
    """Requests running and waiting in each run, in twelve intervals."""
    digests = [(view.label, view.digest) for view in views if view.digest is not None and len(view.digest.middle_s)]
    if not digests:
        return None
    end_s = max(float(digest.middle_s[-1]) + digest.width_s / 2 for _, digest in digests)
    edges_s = np.linspace(min(digest.start_s for _, digest in digests), end_s, 13)
    rows = []
    for low_s, high_s in pairwise(edges_s.tolist()):
        cells = []
        for _, digest in digests:
            inside = (digest.middle_s >= low_s) & (digest.middle_s < high_s)
            levels = [digest.mean(level)[inside] for level in ("running", "waiting")]
            cells += [digits(float(values.mean())) if len(values) else "over" for values in levels]
        rows.append((f"{digits(low_s)} to {digits(high_s)}", *cells))
    header = ("seconds", *(f"{label}: {level}" for label, _ in digests for level in ("running", "waiting")))
    return Table("Requests running and waiting, mean of each interval", header, rows)


def _distribution_charts(views: Sequence[RunView]) -> Iterable[Chart]:
    for metric in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        short, meaning = METRICS[metric]
        caption = f"{meaning[0].upper()}{meaning[1:]}. Read: y % of the samples take at most x; further left is faster."
        yield from _chart(metric, short, caption, distributions.ecdf(views, metric))
    area = "; the area holds the middle 80 %" if len(views) == 1 else ""
    for key, make, what in (
        ("prompt", distributions.ttft_by_prompt, "length of the prompt"),
        ("arrival", distributions.ttft_by_arrival, "time of arrival"),
    ):
        caption = f"Each point is the median of one of at most 20 equally large classes of requests{area}."
        yield from _chart(f"ttft-{key}", f"TTFT by {what}", caption, make(views))
    header = ("cause", "gaps", "half are at most", "99 % are at most", "share of the time")
    for number, view in enumerate(views):
        of = f", {view.label}" if len(views) > 1 else ""
        table = Table(f"Gaps between tokens by cause{of}", header, distributions.gap_rows(view))
        caption = "From the median (circle) to the 99th percentile (diamond) of the gaps between tokens."
        title = f"Why gaps between tokens are long{of}"
        yield from _chart(f"gaps-{number}", title, caption, distributions.gaps_by_cause(view, views), table)


def _request_charts(views: Sequence[RunView]) -> Iterable[Chart]:
    for number, view in enumerate(views):
        lives = chosen_lives(view)
        if len(views) > 1:
            lives = lives[:: max(1, len(lives) * len(views) // 60 + 1)]
        if not lives:
            continue
        of = f", {view.label}" if len(views) > 1 else ""
        vague = " When they were preempted is not in this record: run again with sim.record = tokens to see it."
        scale = " The time axis is this run's own." if len(views) > 1 else ""
        caption = (
            f"{len(lives)} of {len(view.requests):,} requests, by number, each from its own arrival on:"
            f" {_kinds(lives)}.{scale}{vague if any(life.vague for life in lives) else ''}"
        )
        rows = [(f"#{life.row.id}", life.chosen, in_words(life)) for life in lives]
        table = Table(f"These requests in words{of}", ("request", "chosen as", "what happened"), rows)
        yield from _chart(f"lives-{number}", f"Lives of requests{of}", caption, gantt.gantt(lives), table)


def _kinds(lives: Sequence[Any]) -> str:
    counts: dict[str, int] = {}
    for life in lives:
        counts[life.chosen] = counts.get(life.chosen, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _bound_charts(views: Sequence[RunView]) -> Iterable[Chart]:
    caption = "Solid: achieved over the whole run. Hatched: the bound."
    yield from _chart("bound", "Output tokens a second", caption, bound.against_bound(views))


_CHARTS: dict[str, Callable[[Sequence[RunView]], Iterable[Chart]]] = {
    "time": _time_charts,
    "distributions": _distribution_charts,
    "requests": _request_charts,
    "bound": _bound_charts,
}


def _distributions_note(views: Sequence[RunView]) -> str:
    whole = [view.label for view in views if view.at_batch_end]
    if not whole:
        return ""
    return (
        f"{', '.join(whole)}: a batch is answered as a whole when its last answer ends; there are no gaps between"
        " tokens, and TTFT equals E2E."
    )


def _bound_note(views: Sequence[RunView]) -> str:
    counts = [view.summary["requests"] for view in views]
    served = [of["finished"] >= 0.99 * of["offered"] for of in counts]
    ahead = [view.label for view, all_of_them in zip(views, served, strict=True) if view.keeps_up and all_of_them]
    whose = "" if len(views) == 1 else f" by {', '.join(ahead)}"
    idle = f" The tokens made{whose} are all that the requests asked for: more load would bring more." if ahead else ""
    return (
        "The bound is what the card's data sheet allows for this mix of lengths: weights and KV cache read at full"
        " bandwidth, matrix work at full speed, as many requests at once as the memory holds and max_num_seqs allows."
        f"{idle} The tables hold the time of the steps against the least that the hardware needs for them (floor)."
    )


def _bound_tables(views: Sequence[RunView]) -> list[Table]:
    header = ("", "steps", "took", "floor", "floor / took")
    tables = []
    for view in views:
        rows = bound.floor_rows(view)
        of = f"{view.label}: " if len(views) > 1 else ""
        steps = view.summary["steps"]
        if "occupancy_mean" in steps:
            share, waste = percent(steps["occupancy_mean"]), percent(steps.get("slot_waste", 0.0))
            of_them = f"Running requests filled {share} of the allowed batch (mean over time); {waste} of slots wasted"
            tables.append(Table(f"{of}Time of steps against the hardware floor. {of_them}.", header, rows))
    return tables
