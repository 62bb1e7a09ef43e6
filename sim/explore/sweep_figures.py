"""Figures of a sweep: the Pareto front, and the response of latency and throughput to each key."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from sim.explore.metrics import METRICS
from sim.explore.space import Range
from sim.explore.sweep_words import metric_title, value_text
from sim.report.charts import Figure, Trace, axis, base_layout, log_axis, rounded
from sim.report.palette import COLOURS, faded

if TYPE_CHECKING:
    from sim.explore.sweep_result import PointResult, SweepResult

POINT, FRONT, CHOSEN, UNSTABLE = COLOURS[0], COLOURS[1], COLOURS[3], COLOURS[9]
_BINS = 8
"""A key with more values than twice as many is averaged over classes of neighbouring values."""


def pareto(result: SweepResult) -> Figure:
    """Latency across, throughput up: all points, the front, the chosen one."""
    config = result.spec.config
    traces: list[Trace] = []
    good = [point for point in result.points if point.is_valid]
    bad = [point for point in result.points if not point.is_valid]
    if bad:
        traces.append(
            _cloud(result, bad, config.latency, config.throughput, "x", UNSTABLE, "does not keep up, or incomplete")
        )
    traces.append(_cloud(result, good, config.latency, config.throughput, "circle", POINT, "point"))
    traces.append(
        {
            **{"type": "scatter", "mode": "lines", "name": "Pareto front", "hoverinfo": "skip"},
            "x": [point.mean(config.latency) for point in result.front],
            "y": [point.mean(config.throughput) for point in result.front],
            "line": {"color": FRONT, "width": 2, "dash": "dash"},
        }
    )
    if result.chosen is not None:
        cloud = _cloud(result, [result.chosen], config.latency, config.throughput, "star", CHOSEN, "chosen")
        traces.append({**cloud, "marker": {**cloud["marker"], "size": 17}})
    layout = base_layout(420)
    layout["xaxis"] = axis(metric_title(config.latency), nticks=6)
    layout["yaxis"] = axis(metric_title(config.throughput), nticks=6, tickformat=",")
    layout["margin"] = {**layout["margin"], "l": 84}
    return Figure([trace for trace in traces if trace["x"]], layout)


def response(result: SweepResult, name: str, metric: str | None = None) -> Figure:
    """A metric (by default latency) against the values of a key: every point, and the mean over all other keys."""
    metric = result.spec.config.latency if metric is None else metric
    points = [point for point in result.points if point.mean(metric) is not None]
    numeric = all(_is_number(point.settings[name]) for point in points)
    texts = {point.number: value_text(point.settings[name]) for point in points}
    place: dict[int, Any] = {point.number: point.settings[name] for point in points} if numeric else dict(texts)
    traces: list[Trace] = []
    for valid, symbol, colour, label in (
        (True, "circle", POINT, "point"),
        (False, "x", UNSTABLE, "does not keep up, or incomplete"),
    ):
        some = [point for point in points if point.is_valid == valid]
        if some:
            cloud = _cloud(result, some, None, metric, symbol, faded(colour, 0.6), label)
            traces.append({**cloud, "x": [place[point.number] for point in some]})
    x, y = _means([point for point in points if point.is_valid], place, metric, numeric)
    # Between names there is nothing, so that their means are not joined.
    traces.append(
        {
            **{"type": "scatter", "mode": "lines+markers" if numeric else "markers", "x": x, "y": y},
            **{"name": "mean of the points that keep up", "line": {"color": FRONT, "width": 3}},
            "marker": {"color": FRONT, "size": 9 if numeric else 13, "symbol": "diamond"},
            "hovertemplate": "%{x}: mean %{y:.4g}<extra></extra>",
        }
    )
    layout = base_layout(260)
    layout["margin"] = {**layout["margin"], "l": 84}
    if numeric and _is_log(result, name):
        layout["xaxis"] = log_axis(name, *_ends(list(place.values())))
    else:
        more: dict[str, Any] = {"nticks": 6} if numeric else {"type": "category"}
        layout["xaxis"] = axis(name, **more)
    layout["yaxis"] = axis("", nticks=5)
    return Figure([trace for trace in traces if trace["x"]], layout)


def _cloud(
    result: SweepResult, points: Sequence[PointResult], x: str | None, y: str, symbol: str, colour: str, label: str
) -> Trace:
    """Points as markers; each tells its settings."""
    return {
        **{"type": "scatter", "mode": "markers", "name": label},
        "x": rounded(None if x is None else point.mean(x) for point in points),
        "y": rounded(point.mean(y) for point in points),
        "marker": {"color": colour, "symbol": symbol, "size": 9, "line": {"width": 0}},
        "line": {"color": colour},
        "text": [_hover(point, result.columns) for point in points],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _hover(point: PointResult, columns: Sequence[str]) -> str:
    settings = [f"{name} = {value_text(value)}" for name, value in point.settings.items()]
    values = [(name, point.mean(name)) for name in columns]
    metrics = [f"{name}: {METRICS[name].words(value)}" for name, value in values if value is not None]
    return "<br>".join([f"point {point.number}", *settings, *metrics])


def _means(
    points: Sequence[PointResult], place: dict[int, Any], metric: str, numeric: bool
) -> tuple[list[Any], list[float]]:
    """Means by value; of many numbers by class, each at the mean of its values."""
    groups: dict[Any, list[PointResult]] = {}
    for point in sorted(points, key=lambda one: place[one.number]) if numeric else points:
        groups.setdefault(place[point.number], []).append(point)
    if numeric and len(groups) > 2 * _BINS:
        ordered = [point for group in groups.values() for point in group]
        size = -(-len(ordered) // _BINS)
        classes = [ordered[low : low + size] for low in range(0, len(ordered), size)]
        groups = {mean(place[point.number] for point in some): some for some in classes}
    return rounded(groups), rounded(_mean(some, metric) for some in groups.values())


def _mean(points: Sequence[PointResult], metric: str) -> float:
    return mean(value for point in points if (value := point.mean(metric)) is not None)


def _ends(values: list[float]) -> tuple[float, float]:
    """Just beyond the least and the largest."""
    return min(values) / 1.06, max(values) * 1.06


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_log(result: SweepResult, name: str) -> bool:
    """Whether the key was varied evenly in its logarithm, or by factors."""
    domain = result.spec.space[name]
    if isinstance(domain, Range):
        return domain.log
    values = [value for value in domain.values if isinstance(value, int | float)]
    return len(values) > 2 and min(values) > 0 and max(values) / min(values) >= 8
