"""What all pages share: templates, style and script in one file, charts with legends, sections of text and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from policies.core.errors import UserError
from sim.report.charts import TOP_PX, Figure
from sim.report.figures import Table
from sim.report.palette import area_sample, line_sample
from sim.runs import write_whole
from sim.summary import VERSION

HERE = Path(__file__).parent

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


class DocumentSection(NamedTuple):
    """A section of a document: paragraphs, points as (what, text), charts, tables, and texts to copy as (name, text),
    in this order. ``finding`` sets its paragraphs in the size of a finding."""

    id: str
    title: str
    text: Sequence[str] = ()
    points: Sequence[tuple[str, str]] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    listings: Sequence[tuple[str, str]] = ()
    finding: bool = False


def document(title: str, intro: str, sections: Sequence[DocumentSection]) -> str:
    """The HTML text of a page of sections, in the style of a run's page; ids are to differ all over the page."""
    return rendered("document.html.j2", title=title, intro=intro, sections=sections)


def rendered(template: str, **context: Any) -> str:
    """A template of this folder with style, script, plotly and version filled in."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=False, finalize=_glued)
    return environment.get_template(template).render(
        version=VERSION,
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
        plotly_js=_plotly_js(),
        **context,
    )


def write_html(path: Path | str, html: str) -> Path:
    """Write a page; takes the place of an older page, and raises a UserError rather than of another file."""
    path = check_page(path)
    write_whole(path, html)
    return path


def check_page(path: Path | str) -> Path:
    """The path, if a page may be written there; raises a UserError where another file lies. What takes long asks before
    it begins."""
    path = Path(path)
    if path.is_file() and not _is_page(path):
        raise UserError(f"{path}: exists and is no page; name a new file")
    return path


def _is_page(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(20).lstrip().lower().startswith(b"<!doctype html") or not path.stat().st_size


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


def chart_of(
    key: str, title: str, caption: str, figure: Figure | None, table: Table | None = None
) -> Iterable[Chart]:
    """The chart of a figure, its ids made from ``key``; none without a figure."""
    if figure is not None:
        yield Chart(f"chart-{key}", title, caption, [part_of(f"plot-{key}", "", figure)], table)


def part_of(key: str, title: str, figure: Figure) -> Part:
    """A figure as a plot of a page, its legend above it, where it wraps with the page."""
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
