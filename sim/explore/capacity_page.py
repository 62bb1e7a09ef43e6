"""The page of a capacity search: the answer, latency and throughput along the rate, settings, cards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sim.explore.capacity_figures import along_rate, pareto
from sim.explore.capacity_words import finding, headline, lever_words
from sim.explore.markers import with_markers
from sim.report.document import Chart, DocumentSection, document, part_of, write_html
from sim.report.figures import Table
from sim.wording import digits, seconds

if TYPE_CHECKING:
    from sim.explore.capacity_result import CapacityResult, CurvePoint

_INTRO = (
    "Capacity is the most load that a server carries while stated limits are kept. The same requests are simulated at"
    " many rates, only closer together; independent samples of requests give the interval."
)


def write_capacity_page(result: CapacityResult, path: Path | str) -> Path:
    """Write the page; takes the place of an older page, and raises a UserError rather than of another file."""
    return write_html(path, capacity_page(result))


def capacity_page(result: CapacityResult) -> str:
    """The HTML text of the page."""
    facts = result.loads.source.facts()
    title = f"Capacity of {facts['model']} on {facts['hardware']}"
    sections = [DocumentSection("finding", "The finding", text=finding(result), points=_points(result), finding=True)]
    if result.curve:
        charts, rows = [*_along(result), *_pareto(result)], [_curve(result)]
        sections.append(DocumentSection("rate", "Along the rate", text=[_ABOUT_RATE], charts=charts, tables=rows))
    if result.levers:
        sections.append(DocumentSection("settings", "Other settings", text=[_ABOUT_SETTINGS], tables=[_levers(result)]))
    if result.cards:
        sections.append(DocumentSection("cards", "Cards", tables=[_cards(result)]))
    toml = ("run.toml", result.loads.source.config.to_toml())
    sections.append(DocumentSection("reproduce", "Reproduce", text=[_command(result)], listings=[toml]))
    return document(title, _INTRO, sections)


def tables(result: CapacityResult) -> list[Table]:
    """The tables of the answer: along the rate, settings, cards."""
    found = [(result.curve, _curve), (result.levers, _levers), (result.cards, _cards)]
    return [make(result) for there, make in found if there]


_ABOUT_RATE = (
    "Means over three samples. The shaded band is the 95 % interval of the highest rate; the dashed line is the limit;"
    " crosses do not keep up."
)
_ABOUT_SETTINGS = "The highest rate again with one key changed, from two samples, so that it is known to some percent."


def _points(result: CapacityResult) -> list[tuple[str, str]]:
    facts, loads = result.loads.source.facts(), result.loads
    engine = facts["policy"] if ":" in facts["policy"] else facts["preset"]
    points = [
        ("Answer", headline(result)),
        ("Engine", f"{engine} on {facts['hardware']}, server-simulated"),
        ("Requests", f"{loads.source.description}; {len(loads.draws)} samples of {loads.num_requests:,}"),
        ("Cost model", facts["cost_model"]),
    ]
    if loads.replicas > 1 or result.replicas is not None:
        points.append(("Router", loads.router.replace("_", " ")))
    return points + [("Note", note) for note in loads.source.notices]


def _along(result: CapacityResult) -> Iterator[Chart]:
    parts = []
    for number, limit in enumerate(result.loads.limits):
        parts.append(part_of(f"plot-rate-{number}", limit.in_words(), along_rate(result, number)))
    yield Chart(
        "chart-rate", "Latency along the rate", "Each limited statistic against requests a second.", parts, None
    )


def _pareto(result: CapacityResult) -> Iterator[Chart]:
    figure = pareto(result)
    part = with_markers(part_of("plot-front", "", figure), figure)
    caption = f"Up and to the left is better: {result.loads.limits[0].title} across, output tokens a second up."
    yield Chart("chart-front", "Latency and throughput", caption, [part], None)


def _curve(result: CapacityResult) -> Table:
    priced = result.usd_per_hour is not None
    header = (
        "requests/s",
        *(limit.name for limit in result.loads.limits),
        "output tokens/s",
        *(("USD/M output tokens", "USD/M tokens", "USD/request") if priced else ()),
        "verdict",
    )
    return Table(
        "Latency, throughput and cost along the rate", header, [_curve_row(result, point) for point in result.curve]
    )


def _curve_row(result: CapacityResult, point: CurvePoint) -> tuple[str, ...]:
    values = ("-" if reading.value_s is None else seconds(reading.value_s) for reading in point.readings)
    broken = [reading.limit.title for reading in point.readings if not reading.met]
    verdict = "does not keep up" if point.unstable else f"too slow: {', '.join(broken)}" if broken else "kept"
    costs = (f"{value:.3g}" for value in result.cost_of(point).values())
    return (digits(point.rate_per_s), *values, digits(point.output_tokens_per_s), *costs, verdict)


def _levers(result: CapacityResult) -> Table:
    rows = [(lever.title, lever_words(lever)) for lever in result.levers]
    return Table("The highest rate with other settings", ("setting", "requests a second"), rows)


def _cards(result: CapacityResult) -> Table:
    rows = []
    for card in result.cards:
        number = card.message or ("no number is enough" if card.replicas is None else str(card.replicas))
        usd = "-" if card.usd_per_hour is None else digits(card.usd_per_hour)
        chosen = "cheapest" if card is result.card else ""
        rows.append((card.name, digits(card.usd_per_hour_each), number, usd, chosen))
    header = ("card", "USD an hour for one replica", "replicas", "USD an hour", "")
    return Table(f"Cards for {digits(result.for_rate_per_s or 0.0)} requests a second", header, rows)


def _command(result: CapacityResult) -> str:
    loads = result.loads
    words = [*(f'--slo "{limit.text}"' for limit in loads.limits), f"--find {result.find}"]
    if result.for_rate_per_s is not None:
        words.append(f"--rate {result.for_rate_per_s!r}")
    elif loads.replicas > 1:
        words.append(f"--replicas {loads.replicas}")
    words += [f"--router {loads.router}", f"--samples {len(loads.draws)}", f"--requests {result.asked_requests}"]
    words += [f'--try "{lever.setting}"' for lever in result.levers]
    return f"Save this as run.toml, then: batchscope capacity run.toml {' '.join(words)}"
