"""Legends of markers, which pages of runs do not have: each symbol as a small picture."""

from __future__ import annotations

from sim.report.charts import Figure
from sim.report.document import Part
from sim.report.palette import line_sample

_SHAPES = {
    "circle": '<circle cx="8" cy="7" r="5" fill="{0}"/>',
    "x": '<path d="M3 2L13 12M13 2L3 12" stroke="{0}" stroke-width="3"/>',
    "star": '<path d="M8 0l2 5h5l-4 3 2 6-5-4-5 4 2-6-4-3h5z" fill="{0}"/>',
    "diamond": '<path d="M8 1l6 6-6 6-6-6z" fill="{0}"/>',
}


def with_markers(part: Part, figure: Figure) -> Part:
    """The part with samples of its markers in place of lines that are not drawn."""
    legend: dict[str, str] = {}
    for trace in figure.data:
        if trace.get("showlegend") is False or "name" not in trace:
            continue
        marker = trace.get("marker", {})
        if trace["mode"] == "markers":
            sample = _svg(16, _SHAPES[marker["symbol"]].format(marker["color"]))
        else:
            sample = line_sample(trace["line"]["color"], trace["line"].get("dash", "solid"))
        legend.setdefault(trace["name"], sample)
    return part._replace(legend=[(sample, name) for name, sample in legend.items()])


def _svg(width: int, shape: str) -> str:
    return f'<svg class="sample" width="{width}" height="14" aria-hidden="true">{shape}</svg>'
