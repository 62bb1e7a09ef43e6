"""The page of a sweep: the finding, the front, the response to each key, the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sim.explore.markers import with_markers
from sim.explore.sweep_figures import pareto, response
from sim.explore.sweep_words import finding, measured, metric_title, value_text
from sim.report.document import Chart, DocumentSection, document, part_of, write_html
from sim.report.figures import Table

if TYPE_CHECKING:
    from sim.explore.sweep_result import PointResult, SweepResult

_INTRO = (
    "A sweep simulates the same requests under many settings of a server. Each point is one setting; latency says how"
    " long people wait, throughput how much the server makes of its card."
)
MOST_ROWS = 1_000
"""More rows are in the table's file alone."""


def write_sweep_page(result: SweepResult, path: Path | str) -> Path:
    """Write the page; takes the place of an older page, and raises a UserError rather than of another file."""
    return write_html(path, sweep_page(result))


def sweep_page(result: SweepResult) -> str:
    """The HTML text of the page."""
    base = result.spec.base
    model, card = (base.get(section, {}).get("name") for section in ("model", "hardware"))
    title = f"Sweep over {', '.join(result.spec.space)}"
    if model or card:
        title += f": {model or 'llama-2-7b'} on {card or 'a100-80gb'}"
    sections = [
        DocumentSection("finding", "The finding", text=finding(result), finding=True),
        DocumentSection("front", "Latency and throughput", text=[_about_front(result)], charts=list(_front(result))),
        DocumentSection("response", "Response to each key", text=[_ABOUT_RESPONSE], charts=list(_responses(result))),
        DocumentSection("table", "The table", text=[_about_table(result)], tables=[_table(result)]),
        DocumentSection("reproduce", "Reproduce", text=[_HOW], listings=[("sweep.toml", result.spec.to_toml())]),
    ]
    return document(title, _INTRO, sections)


_ABOUT_RESPONSE = (
    "Each key by itself: every point, and the mean over all points that share its value (of many values: over eight"
    " classes of neighbours), whatever the other keys are."
)
_HOW = (
    "Save this as sweep.toml, then: batchscope sweep sweep.toml. The seeds in it decide every random draw: the same"
    " file gives the same table on any number of processes or machines."
)


def _about_front(result: SweepResult) -> str:
    return (
        "Up and to the left is better. No point beats those on the front in both. The star is the chosen point:"
        f" {result.how_chosen}."
    )


def _front(result: SweepResult) -> Iterator[Chart]:
    config = result.spec.config
    caption = f"{metric_title(config.latency)} across, {metric_title(config.throughput).lower()} up."
    rows = [_row(result, point) for point in result.front]
    table = Table("The Pareto front, from the fastest point to the one of most throughput", _header(result), rows)
    figure = pareto(result)
    part = with_markers(part_of("plot-front", "", figure), figure)
    yield Chart("chart-front", "Pareto front", caption, [part], table)


def _responses(result: SweepResult) -> Iterator[Chart]:
    config = result.spec.config
    for number, name in enumerate(result.spec.space):
        parts = []
        for place, metric in enumerate(dict.fromkeys((config.latency, config.throughput))):
            figure = response(result, name, metric)
            if figure.data:
                part = part_of(f"plot-response-{number}-{place}", metric_title(metric), figure)
                parts.append(with_markers(part, figure))
        if parts:
            caption = "Circles are points that keep up, crosses those that do not or did not complete."
            yield Chart(f"chart-response-{number}", name, caption, parts, None)


def _about_table(result: SweepResult) -> str:
    interval = ""
    if result.spec.config.repeats > 1:
        interval = " ± is half of a 95 % interval of the mean, from independent seeds (Student's t)."
    shown = len(result.points)
    rest = f" The first {MOST_ROWS:,} of {shown:,}: all are in table.csv." if shown > MOST_ROWS else ""
    return f"All points in order; times are those of docs/metrics.md.{interval}{rest}"


def _table(result: SweepResult) -> Table:
    rows = [_row(result, point) for point in result.points[:MOST_ROWS]]
    return Table("Points of the sweep", _header(result), rows)


def _header(result: SweepResult) -> tuple[str, ...]:
    return ("point", *result.spec.space, *result.columns, "keeps up", "remark")


def _row(result: SweepResult, point: PointResult) -> tuple[str, ...]:
    settings = (value_text(point.settings[name]) for name in result.spec.space)
    metrics = (measured(point, name) for name in result.columns)
    verdicts = {row.stable for row in point.runs}
    keeps_up = "no" if False in verdicts else "yes" if verdicts == {True} else "-"
    return (str(point.number), *settings, *metrics, keeps_up, point.message)
