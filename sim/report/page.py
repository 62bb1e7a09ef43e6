"""One self-contained HTML page for a run, or for several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sim.latencies import LATENCIES, SHOWN
from sim.report import bound, distributions, gantt
from sim.report.charts import one_panel
from sim.report.document import Chart, chart_of, part_of, rendered, write_html
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
from sim.report.view import RunView, arrival_and_end_rates, side_by_side
from sim.report.words import CAUSES, GLOSSARY
from sim.wording import digits, percent, seconds

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


def write_page(
    views: Sequence[RunView], path: Path | str, *, paired: bool = True, notices: Sequence[str] = ()
) -> Path:
    """Write the page of one run, or the comparison of several (the first one is the base); see ``page``.

    Takes the place of an older page; raises a UserError rather than of another file.
    """
    return write_html(path, page(views, paired=paired, notices=notices))


def page(views: Sequence[RunView], *, paired: bool = True, notices: Sequence[str] = ()) -> str:
    """The HTML text of the page. ``paired``: with differences request by request; ``notices`` say what a reader must
    know of them."""
    views = side_by_side(views)
    one = len(views) == 1
    spoken_of = [LATENCIES[name] for name in (*SHOWN, "queue_s")]
    return rendered(
        "page.html.j2",
        title=_title(views),
        intro=_INTRO,
        sections=[(key, f"{number}. {name}") for number, (key, name) in enumerate(SECTIONS.items(), 1)],
        finding=find(views),
        facts=[*shared_facts(views), *([("Comparison", list(notices))] if notices else [])],
        glossary=[*GLOSSARY.items(), *((of.short, of.meaning) for of in spoken_of)],
        figures_note=_INTERVALS,
        tables=_tables(views, paired),
        charts={name: list(make(views)) for name, make in _CHARTS.items()},
        distributions_note=_distributions_note(views),
        bound_note=_bound_note(views),
        bound_tables=_bound_tables(views),
        config_table=None if one else config_table(views),
        runs=[{"label": view.label, "toml": view.toml} for view in views],
    )


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
        parts.append(part_of(f"plot-time-{number}", panel.title, figure))
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
    for metric in SHOWN:
        short, _, meaning = LATENCIES[metric]
        caption = f"{meaning[0].upper()}{meaning[1:]}. Read: y % of the samples take at most x; further left is faster."
        yield from chart_of(metric, short, caption, distributions.ecdf(views, metric))
    area = "; the area holds the middle 80 %" if len(views) == 1 else ""
    for key, make, what in (
        ("prompt", distributions.ttft_by_prompt, "length of the prompt"),
        ("arrival", distributions.ttft_by_arrival, "time of arrival"),
    ):
        caption = f"Each point is the median of one of at most 20 equally large classes of requests{area}."
        yield from chart_of(f"ttft-{key}", f"TTFT by {what}", caption, make(views))
    header = ("cause", "gaps", "half are at most", "99 % are at most", "share of the time")
    for number, view in enumerate(views):
        of = f", {view.label}" if len(views) > 1 else ""
        table = Table(f"Gaps between tokens by cause{of}", header, distributions.gap_rows(view))
        caption = "From the median (circle) to the 99th percentile (diamond) of the gaps between tokens."
        title = f"Why gaps between tokens are long{of}"
        yield from chart_of(f"gaps-{number}", title, caption, distributions.gaps_by_cause(view, views), table)


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
        yield from chart_of(f"lives-{number}", f"Lives of requests{of}", caption, gantt.gantt(lives), table)


def _kinds(lives: Sequence[Any]) -> str:
    counts: dict[str, int] = {}
    for life in lives:
        counts[life.chosen] = counts.get(life.chosen, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _bound_charts(views: Sequence[RunView]) -> Iterable[Chart]:
    caption = "Solid: achieved over the whole run. Hatched: the bound."
    yield from chart_of("bound", "Output tokens a second", caption, bound.against_bound(views))


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
