"""Chosen requests as bars over their lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.report.charts import RIGHT_PX, Figure, Trace, axis, base_layout
from sim.report.lives import Life, in_words
from sim.report.palette import faded, part_colour, part_pattern
from sim.report.words import PHASES
from sim.wording import seconds

_ROW_PX = 24


def gantt(lives: Sequence[Life]) -> Figure:
    """One row a request, time since its own arrival; each bar says in words what it shows."""
    labels = [f"#{life.row.id}" for life in lives]
    traces: list[Trace] = []
    for kind, words in PHASES.items():
        bars = [
            (label, life, phase)
            for label, life in zip(labels, lives, strict=True)
            for phase in life.phases
            if phase.kind == kind
        ]
        if bars:
            traces.append(_bars(kind, words, bars))
    layout = base_layout(130 + _ROW_PX * len(lives), barmode="overlay", bargap=0.25, showlegend=True)
    layout["margin"] = {"l": 74, "r": RIGHT_PX, "t": 78, "b": 52}
    layout["xaxis"] = axis("seconds since the request arrived")
    layout["yaxis"] = {"autorange": "reversed", "type": "category", "categoryarray": labels, "dtick": 1}
    layout["legend"] = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "xref": "paper"}
    return Figure(traces, layout)


def _bars(kind: str, words: str, bars: Sequence[tuple[str, Life, Any]]) -> Trace:
    colour = part_colour(kind)
    marker: dict[str, Any] = {"color": faded(colour, 0.8), "line": {"color": colour, "width": 1}}
    if pattern := part_pattern(kind):
        marker["pattern"] = {"shape": pattern, "fgcolor": colour, "bgcolor": faded(colour, 0.2), "size": 6}
        marker["pattern"] |= {"fillmode": "replace", "solidity": 0.2}
    hovers = [
        f"{words}, for {seconds(phase.end_s - phase.start_s)}<br>{in_words(life).replace('. ', '.<br>')}"
        for _, life, phase in bars
    ]
    return {
        **{"type": "bar", "orientation": "h", "name": words, "marker": marker},
        "y": [label for label, _, _ in bars],
        "base": [float(f"{phase.start_s - life.row.arrival_s:.6g}") for _, life, phase in bars],
        "x": [float(f"{phase.end_s - phase.start_s:.6g}") for _, _, phase in bars],
        **{"customdata": hovers, "hovertemplate": "%{customdata}<extra></extra>"},
    }
