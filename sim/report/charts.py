"""What all figures share: text size, axes from zero, stacked panels on one time axis."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.report.palette import faded

if TYPE_CHECKING:
    import plotly.graph_objects as go

Floats = NDArray[np.float64]
Trace = dict[str, Any]


class Figure(NamedTuple):
    """A figure in plotly's JSON schema. Kept plain: checking every property takes plotly longer than all the rest."""

    data: Sequence[Trace]
    layout: Mapping[str, Any]

    def plotly(self) -> go.Figure:
        """As plotly's own object, checked."""
        import plotly.graph_objects as go

        return go.Figure({"data": list(self.data), "layout": dict(self.layout)})

    def with_legend(self) -> Figure:
        """With the names of its lines above it, for where no page tells them."""
        layout = {**self.layout, "showlegend": True, "legend": _legend(1.0)}
        layout["margin"] = {**self.layout["margin"], "t": TOP_PX + 2 * _LEGEND_LINE_PX}
        layout["height"] = self.layout["height"] + 2 * _LEGEND_LINE_PX
        return Figure(self.data, layout)

    def to_json(self) -> str:
        """Its JSON text."""
        return json.dumps({"data": self.data, "layout": self.layout}, separators=(",", ":"), allow_nan=False)


FONT_PX = 14
LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 62, 14, 6, 52
_TITLE_PX, _LEGEND_LINE_PX = 26, 24
_DECADES = 1.5
"""A log axis over more than this has ticks at powers of ten alone."""


@dataclass(frozen=True)
class Panel:
    """One chart of a stack: ``title`` says what and in which unit; ``legend_lines`` is the room that the names of its
    lines need on a narrow page; a ``band`` runs from 0 to ``top``."""

    title: str
    traces: Sequence[Trace]
    height_px: int = 150
    top: float | None = None
    legend_lines: int = 1
    axis: Mapping[str, Any] = field(default_factory=dict)


def base_layout(height_px: int, **more: Any) -> dict[str, Any]:
    """Layout of any figure; colours of text and grid come from the page, or from the notebook's theme."""
    return {
        "height": height_px,
        "margin": {"l": LEFT_PX, "r": RIGHT_PX, "t": TOP_PX, "b": BOTTOM_PX},
        "font": {"size": FONT_PX, "family": "system-ui, sans-serif"},
        "hoverlabel": {"font": {"size": FONT_PX}, "align": "left"},
        "hovermode": "closest",
        "showlegend": False,
        "autosize": True,
        **more,
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis from zero unless told otherwise."""
    return {"title": {"text": title, "standoff": 8}, "rangemode": "tozero", "automargin": False, **more}


def log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis, which says so, from ``low`` to ``high`` (above 0), with plain numbers at its ticks."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1,) if math.log10(high / low) > _DECADES else (1, 2, 5)
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    bounds = [math.log10(low), math.log10(high)]
    return {
        **{"title": {"text": f"{title} (log scale)", "standoff": 8}, "type": "log", "range": bounds},
        **{"tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks], "automargin": False},
    }


def stacked_panels(panels: Sequence[Panel], x_title: str, x_range: Sequence[float]) -> Figure:
    """Panels one above the other on one shared x axis, each with its title and the names of its lines above it."""
    heads = [_TITLE_PX + _LEGEND_LINE_PX * panel.legend_lines for panel in panels]
    inner_px = sum(heads) + sum(panel.height_px for panel in panels)
    layout = base_layout(inner_px + TOP_PX + BOTTOM_PX, annotations=[])
    traces, top_px = [], 0
    for number, (panel, head_px) in enumerate(zip(panels, heads, strict=True), 1):
        upper = 1 - (top_px + head_px) / inner_px
        lower = max(upper - panel.height_px / inner_px, 0.0)
        suffix = "" if number == 1 else str(number)
        y_axis = axis(domain=[lower, upper], anchor="x", nticks=4, **panel.axis)
        if panel.top is not None:
            y_axis["range"] = [0, panel.top]
        layout[f"yaxis{suffix}"] = y_axis
        layout["annotations"].append(_panel_title(panel.title, 1 - top_px / inner_px))
        layout[f"legend{suffix}"] = _legend(upper)
        for trace in panel.traces:
            traces.append({**trace, "xaxis": "x", "yaxis": f"y{suffix}", "legend": f"legend{suffix}"})
        top_px += head_px + panel.height_px
    bottom = f"y{len(panels)}" if len(panels) > 1 else "y"
    layout["xaxis"] = axis(x_title, range=list(x_range), anchor=bottom)
    layout["showlegend"] = True
    layout["barmode"] = "stack"
    layout["bargap"] = 0
    return Figure(traces, layout)


def one_panel(panel: Panel, x_title: str, x_range: Sequence[float], *, last: bool) -> Figure:
    """A panel as a figure of its own, with the same margins as its neighbours; the page gives it title and legend. Only
    the ``last`` one of a stack says what the axis is."""
    bottom_px = BOTTOM_PX if last else 14
    layout = base_layout(panel.height_px + TOP_PX + bottom_px, barmode="stack", bargap=0)
    layout["margin"] = {**layout["margin"], "b": bottom_px}
    layout["xaxis"] = axis(x_title if last else "", range=list(x_range), showticklabels=last, nticks=6)
    layout["yaxis"] = axis(nticks=4, **panel.axis)
    if panel.top is not None:
        layout["yaxis"]["range"] = [0, panel.top]
    return Figure(panel.traces, layout)


def _panel_title(text: str, y: float) -> dict[str, Any]:
    return {
        **{"text": f"<b>{text}</b>", "showarrow": False, "xref": "paper", "yref": "paper", "x": 0, "y": y},
        **{"xanchor": "left", "yanchor": "top", "font": {"size": FONT_PX}},
    }


def _legend(y: float) -> dict[str, Any]:
    return {
        **{"orientation": "h", "x": 0, "xanchor": "left", "y": y, "yanchor": "bottom", "font": {"size": FONT_PX}},
        **{"itemwidth": 40, "tracegroupgap": 0, "bgcolor": "rgba(0,0,0,0)"},
    }


def line(x: Any, y: Any, name: str, colour: str, dash: str = "solid", *, hover: str, **more: Any) -> Trace:
    """A line; ``hover`` is a sentence with ``%{x}`` and ``%{y}`` in it."""
    return {
        **{"type": "scatter", "mode": "lines", "x": rounded(x), "y": rounded(y), "name": name},
        **{"line": {"color": colour, "dash": dash, "width": 2}, "hovertemplate": f"{hover}<extra></extra>", **more},
    }


def band(x: Floats, low: Floats, high: Floats, colour: str) -> list[Trace]:
    """The area between the least and the most, without a name of its own."""
    known = ~(np.isnan(low) | np.isnan(high))
    around = np.concatenate((x[known], x[known][::-1]))
    area = np.concatenate((high[known], low[known][::-1]))
    return [
        {
            **{"type": "scatter", "x": rounded(around), "y": rounded(area), "mode": "lines", "fill": "toself"},
            **{"line": {"width": 0}, "fillcolor": faded(colour, 0.22), "hoverinfo": "skip", "showlegend": False},
        }
    ]


def rounded(values: Iterable[Any]) -> list[Any]:
    """Five significant digits of numbers, null where there is none: what a picture can show, in few bytes."""
    plain = values.tolist() if isinstance(values, np.ndarray) else values
    return [_rounded(value) if isinstance(value, float) else value for value in plain]


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
