"""Figures of a capacity search: latencies along the rate with their limits, and latency against throughput."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sim.explore.limits import Limit
from sim.report.charts import Figure, Trace, axis, base_layout, rounded
from sim.report.palette import COLOURS, faded
from sim.wording import digits, seconds

if TYPE_CHECKING:
    from sim.explore.capacity_result import CapacityResult, CurvePoint

LINE, LIMIT, MARK, FRONT = COLOURS[0], COLOURS[7], COLOURS[3], COLOURS[1]


def along_rate(result: CapacityResult, number: int) -> Figure:
    """The statistic of limit ``number`` along the rate, the limit, and the interval of the highest rate."""
    limit = result.loads.limits[number]
    points = [(point, _value(point, number)) for point in result.curve]
    known = [(point, value) for point, value in points if value is not None]
    rates = [point.rate_per_s for point, _ in known]
    traces: list[Trace] = [
        {
            **{"type": "scatter", "mode": "lines+markers", "name": limit.title, "x": rounded(rates)},
            "y": rounded([value for _, value in known]),
            "line": {"color": LINE, "width": 2},
            "marker": {"size": 9, "symbol": ["x" if point.unstable else "circle" for point, _ in known]},
            "text": [_hover(point) for point, _ in known],
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]
    if known:
        ends = [0.0, max(rates)]
        traces.append(_rule(ends, [limit.limit_s, limit.limit_s], LIMIT, f"limit {seconds(limit.limit_s)}", "dash"))
    layout = base_layout(240)
    layout["margin"] = {**layout["margin"], "l": 84}
    layout["xaxis"] = axis("requests a second", nticks=6)
    layout["yaxis"] = axis("seconds", nticks=5)
    layout["shapes"] = [_band(result)] if result.interval is not None else []
    return Figure(traces, layout)


def pareto(result: CapacityResult) -> Figure:
    """The first limit's latency across, output tokens a second up, one point a rate."""
    limit = result.loads.limits[0]
    shown = [(point, _value(point, 0)) for point in result.curve]
    known = [(point, value) for point, value in shown if value is not None]
    groups = (
        ("keeps all limits", "circle", LINE, [one for one in known if one[0].met]),
        ("does not", "x", LIMIT, [one for one in known if not one[0].met]),
    )
    traces: list[Trace] = []
    front = [(point, _value(point, 0)) for point in result.front]
    if len(front) > 1:
        x, y = [value for _, value in front], [point.output_tokens_per_s for point, _ in front]
        traces.append(_rule(x, y, FRONT, "Pareto front", "dash"))
    for name, symbol, colour, some in groups:
        if some:
            traces.append(_markers(name, symbol, colour, some))
    at = result.at_rate
    if at is not None and (value := _value(at, 0)) is not None:
        traces.append(_markers("the highest rate", "star", MARK, [(at, value)], 17))
    layout = base_layout(380)
    layout["margin"] = {**layout["margin"], "l": 84}
    layout["xaxis"] = axis(f"{limit.title} (s)", nticks=6)
    layout["yaxis"] = axis("output tokens a second", nticks=6, tickformat=",")
    return Figure(traces, layout)


def _band(result: CapacityResult) -> dict[str, Any]:
    """The interval of the highest rate, as a background."""
    low, high = result.interval or (0.0, 0.0)
    return {
        **{"type": "rect", "xref": "x", "yref": "paper", "x0": low, "x1": high, "y0": 0, "y1": 1},
        **{"fillcolor": faded(MARK, 0.25), "line": {"width": 0}, "layer": "below"},
    }


def _markers(name: str, symbol: str, colour: str, some: list[tuple[CurvePoint, float]], size: int = 10) -> Trace:
    return {
        **{"type": "scatter", "mode": "markers", "name": name, "x": rounded([value for _, value in some])},
        "y": rounded([point.output_tokens_per_s for point, _ in some]),
        "marker": {"color": colour, "symbol": symbol, "size": size},
        "line": {"color": colour},
        "text": [_hover(point) for point, _ in some],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _rule(x: list[Any], y: list[float], colour: str, name: str, dash: str) -> Trace:
    line = {"color": colour, "width": 2, "dash": dash}
    return {
        **{"type": "scatter", "mode": "lines", "name": name, "x": rounded(x), "y": rounded(y), "line": line},
        "hoverinfo": "skip",
    }


def _value(point: CurvePoint, number: int) -> float | None:
    value = point.readings[number].value_s
    return value if value is not None and math.isfinite(value) else None


def _hover(point: CurvePoint) -> str:
    values = [(reading.limit, reading.value_s) for reading in point.readings]
    lines = [
        f"{digits(point.rate_per_s)} requests a second",
        f"{digits(point.output_tokens_per_s)} output tokens a second",
    ]
    lines += [_reading(limit, value) for limit, value in values if value is not None]
    return "<br>".join(lines + (["does not keep up"] if point.unstable else []))


def _reading(limit: Limit, value_s: float) -> str:
    return f"{limit.name}: {seconds(value_s)}"
