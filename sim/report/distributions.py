"""How latencies are spread: cumulative shares, what they depend on, and why gaps between tokens are long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.latencies import LATENCIES, at_once
from sim.report.charts import BOTTOM_PX, Figure, Floats, Trace, axis, band, base_layout, line, log_axis, rounded
from sim.report.palette import COLOURS, part_colour
from sim.report.view import RunView
from sim.report.words import GAP_CAUSES
from sim.wording import seconds

_SHARES = np.concatenate((np.linspace(0, 0.98, 99), np.linspace(0.98, 1.0, 41)[1:]))
_LOG_SPREAD = 30.0
"""A log axis is used, and said, where the 99th percentile exceeds the 5th this many times."""

_LOG_TAIL = 5.0
"""So it is where the largest value exceeds the 99th percentile this many times."""

_NUM_CLASSES = 20
_HEIGHT_PX = 320


def ecdf(views: Sequence[RunView], metric: str) -> Figure | None:
    """Share of the samples that are at most as large as x; None where there are none."""
    curves = [(view, curve) for view in views if (curve := _curve(view, metric)) is not None]
    if not curves:
        return None
    unit_s, unit = _unit([curve[0] for _, curve in curves])
    log = _is_wide([curve for _, curve in curves])
    traces = []
    for view, (values_s, shares) in curves:
        hover = f"{view.label}: %{{y:.3g}} % of the samples take at most %{{x:.3~g}} {unit}"
        traces.append(line(values_s / unit_s, 100 * shares, view.label, view.colour, view.dash, hover=hover))
    title = f"{LATENCIES[metric].short}, {unit}"
    layout = _layout(legend=len(views) > 1)
    layout["xaxis"] = _axis(title, [values_s / unit_s for _, (values_s, _) in curves], log)
    layout["yaxis"] = axis("share of the samples, %", range=[0, 101])
    _draw_limits(layout, views, metric, unit_s, log)
    return Figure(traces, layout)


def ttft_by_prompt(views: Sequence[RunView]) -> Figure | None:
    """TTFT against the length of the prompt: median, and in a single run the middle 80 %."""
    return _by(views, "prompt_tokens", "prompt length, tokens")


def ttft_by_arrival(views: Sequence[RunView]) -> Figure | None:
    """TTFT against the time of arrival."""
    return _by(views, "arrival_s", "arrival, seconds from the start")


def gaps_by_cause(view: RunView, beside: Sequence[RunView] = ()) -> Figure | None:
    """Median and p99 of the gaps between tokens by cause, with the share of the waiting that each makes up; on the
    scale that the runs ``beside`` it have, too."""
    gaps = {cause: gaps for cause, gaps in _gaps(view).items() if cause != "batch"}
    if not gaps:
        return None
    total_s = sum(of.total_s for of in gaps.values()) or 1.0
    traces: list[Trace] = []
    for cause, of in gaps.items():
        low_s, high_s = of.quantile(0.5), of.quantile(0.99)
        words = GAP_CAUSES.get(cause, cause)
        hover = (
            f"{words}: half of these {of.n:,} gaps are at most {seconds(low_s)}, 99 % at most {seconds(high_s)};"
            f" {100 * of.total_s / total_s:.3g} % of all the time between tokens"
        )
        traces.append(
            {
                **{"type": "scatter", "mode": "lines+markers", "x": rounded(np.array([low_s, high_s]) * 1e3)},
                **{"y": [_wrapped(words)] * 2, "line": {"color": part_colour(cause), "width": 4}, "name": words},
                "marker": {"size": 13, "symbol": ["circle", "diamond"], "color": part_colour(cause)},
                "showlegend": False,
                "hovertemplate": f"{hover}<extra></extra>",
            }
        )
    layout = base_layout(90 + 60 * len(gaps), margin={"l": 150, "r": 20, "t": 6, "b": BOTTOM_PX})
    shown = [of for each in (view, *beside) for cause, of in _gaps(each).items() if cause != "batch"]
    high_ms = max(of.quantile(0.99) for of in shown) * 1e3
    low_ms = min(max(of.quantile(0.5), 1e-6) for of in shown) * 1e3
    log = high_ms > _LOG_SPREAD * low_ms
    layout["xaxis"] = _axis("gap, ms", [np.array([low_ms, high_ms])], log)
    if not log:
        layout["xaxis"]["range"] = [0, 1.06 * high_ms]
    layout["yaxis"] = {"automargin": False, "range": [len(gaps) - 0.4, -0.6]}
    return Figure(traces, layout)


def gap_rows(view: RunView) -> list[tuple[str, str, str, str, str]]:
    """The same in a table: cause, number, median, p99, share of the time between tokens."""
    gaps = _gaps(view)
    total_s = sum(of.total_s for of in gaps.values()) or 1.0
    return [
        (GAP_CAUSES.get(cause, cause), f"{of.n:,}", seconds(of.quantile(0.5)), seconds(of.quantile(0.99)),
         f"{100 * of.total_s / total_s:.3g} %")
        for cause, of in gaps.items()
    ]  # fmt: skip


def _gaps(view: RunView) -> dict[str, Any]:
    if view.digest is None:
        return {}
    order = list(GAP_CAUSES)
    known = [(cause, of) for cause, of in view.digest.gaps.items() if of.n]
    return dict(sorted(known, key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def _curve(view: RunView, metric: str) -> tuple[Floats, Floats] | None:
    """Values and the share of the samples that do not exceed them, at most some hundred points."""
    if at_once(metric, view.summary):
        return None
    if metric == "itl_s":
        gaps = _gaps(view).values()
        if not gaps:
            return None
        values = np.concatenate([of.gap_s for of in gaps])
        counts = np.concatenate([of.counts for of in gaps])
        order = np.argsort(values, kind="stable")
        return values[order], np.cumsum(counts[order]) / counts.sum()
    values = view.values(metric)
    return (np.quantile(values, _SHARES), _SHARES) if len(values) else None


def _by(views: Sequence[RunView], column: str, title: str) -> Figure | None:
    curves = [(view, found) for view in views if (found := _classes(view, column)) is not None]
    if not curves:
        return None
    highest = [found[3] if len(views) == 1 else found[2] for _, found in curves]
    unit_s, unit = _unit(highest)
    log = max(float(np.nanmax(x)) for x in highest) > _LOG_SPREAD * min(float(np.nanmin(x)) for x in highest) > 0
    traces: list[Trace] = []
    for view, (middles, low_s, median_s, high_s) in curves:
        if len(views) == 1:
            traces += band(middles, low_s / unit_s, high_s / unit_s, view.colour)
        hover = f"{view.label}, around %{{x:.3~s}}: half of the requests have a first token within %{{y:.3~g}} {unit}"
        trace = line(middles, median_s / unit_s, view.label, view.colour, view.dash, hover=hover)
        traces.append(trace | {"mode": "lines+markers"})
    layout = _layout(legend=len(views) > 1)
    layout["xaxis"] = axis(title, nticks=6)
    extremes = [marks / unit_s for _, found in curves for marks in (found[1:] if len(views) == 1 else found[2:3])]
    layout["yaxis"] = _axis(f"TTFT, {unit}", extremes, log)
    _draw_limits(layout, views, "ttft_s", unit_s, log, vertical=False)
    return Figure(traces, layout)


def _classes(view: RunView, column: str) -> tuple[Floats, Floats, Floats, Floats] | None:
    """Middle of each class of equally many requests, and p10, median and p90 of their TTFT."""
    table = view.requests[[column, "ttft_s"]].dropna().sort_values(column, kind="stable")
    count = min(_NUM_CLASSES, len(table) // 20)
    if count < 2 or table[column].nunique() < 2:
        return None
    x, y = table[column].to_numpy(np.float64), table["ttft_s"].to_numpy(np.float64)
    parts = list(zip(np.array_split(x, count), np.array_split(y, count), strict=True))
    marks = np.array([np.quantile(values, (0.1, 0.5, 0.9)) for _, values in parts])
    return np.array([np.median(places) for places, _ in parts]), marks[:, 0], marks[:, 1], marks[:, 2]


def _axis(title: str, values: Sequence[Floats], log: bool) -> dict[str, Any]:
    if not log:
        return axis(title, nticks=6)
    known = np.concatenate(values)
    known = known[known > 0.0]
    return log_axis(title, 0.8 * float(known.min()), 1.2 * float(known.max()))


def _layout(*, legend: bool) -> dict[str, Any]:
    layout = base_layout(_HEIGHT_PX + (52 if legend else 0))
    if legend:
        layout |= {"showlegend": True, "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}}
        layout["margin"] = {**layout["margin"], "t": 58}
    return layout


def _draw_limits(
    layout: dict[str, Any], views: Sequence[RunView], metric: str, unit_s: float, log: bool, *, vertical: bool = True
) -> None:
    """A labelled line at the limit that [slo] states."""
    limits = {view.summary["config"].get("slo", {}).get(metric) for view in views} - {None}
    for limit_s in sorted(limits):
        place = limit_s / unit_s
        along, across = ("x", "y") if vertical else ("y", "x")
        layout.setdefault("shapes", []).append(
            {
                **{"type": "line", f"{along}0": place, f"{along}1": place, f"{across}0": 0, f"{across}1": 1},
                **{f"{across}ref": "paper", "line": {"color": COLOURS[7], "dash": "dash", "width": 2}},
            }
        )
        where = {along: float(np.log10(place)) if log else place, across: 0.04, f"{across}ref": "paper"}
        text = {"text": f"limit {seconds(limit_s)}", "showarrow": False, "xanchor": "left", "yanchor": "bottom"}
        layout.setdefault("annotations", []).append({**where, **text})


def _unit(curves: Sequence[Floats]) -> tuple[float, str]:
    """Milliseconds where everything is below two seconds."""
    return (1e-3, "ms") if max(float(np.nanmax(curve)) for curve in curves) < 2.0 else (1.0, "s")


def _is_wide(curves: Sequence[tuple[Floats, Floats]]) -> bool:
    lows = [float(values[np.searchsorted(shares, 0.05)]) for values, shares in curves]
    highs = [float(values[min(int(np.searchsorted(shares, 0.99)), len(values) - 1)]) for values, shares in curves]
    most = max(float(values[-1]) for values, _ in curves)
    return min(lows) > 0.0 and (max(highs) > _LOG_SPREAD * min(lows) or most > _LOG_TAIL * max(highs))


def _wrapped(words: str) -> str:
    """In two lines or three, for the left margin."""
    lines, current = [], ""
    for word in words.split():
        if current and len(current) + len(word) > 17:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}".strip()
    return "<br>".join([*lines, current])
