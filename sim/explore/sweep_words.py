"""What a sweep found, in sentences, and its values in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.config_toml import toml_value
from sim.explore.metrics import METRICS
from sim.wording import digits

if TYPE_CHECKING:
    from sim.explore.sweep_result import PointResult, SweepResult


def value_text(value: object) -> str:
    """A value of a key as a reader sees it: numbers with four digits, texts without quotes."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    return toml_value(value)


def metric_title(name: str) -> str:
    """A metric as the title of an axis."""
    unit = " (s)" if name.endswith("_s") and not name.endswith("per_s") else ""
    about = METRICS[name].about
    return f"{about[0].upper()}{about[1:]}{unit}"


def settings_text(point: PointResult) -> str:
    """The settings of a point in a line."""
    return ", ".join(f"{name} = {value_text(value)}" for name, value in point.settings.items())


def measured(point: PointResult, name: str) -> str:
    """A metric of a point in words, with its interval where seeds give one."""
    value, half = point.mean(name), point.half(name)
    if value is None:
        return "-"
    words = METRICS[name].words
    return words(value) if half is None else f"{words(value)} ± {words(half)}"


def finding(result: SweepResult) -> list[str]:
    """What the sweep says: the chosen point, the ends of the front, what did not keep up or could not be run."""
    config, points = result.spec.config, result.points
    runs = f", {config.repeats} seeds each" if config.repeats > 1 else ""
    sentences = [f"{len(points):,} points over {_keys(result)}{runs}."]
    chosen = result.chosen
    if chosen is not None:
        values = "; ".join(f"{METRICS[name].about} {measured(chosen, name)}" for name in _of_interest(result))
        what = f"point {chosen.number} ({settings_text(chosen)})"
        sentences.append(f"Chosen: {what}: {values}. The rule: {result.how_chosen}.")
    elif result.spec.limits:
        sentences.append(f"No point has {result.how_chosen.partition(' with ')[2]}.{_nearest(result)}")
    else:
        sentences.append("No point completed and keeps up: there is none to choose.")
    if len(result.front) > 1:
        first, last = result.front[0], result.front[-1]
        sentences.append(
            f"The front has {len(result.front)} points, from {measured(first, config.latency)} at"
            f" {measured(first, config.throughput)} ({settings_text(first)}) to {measured(last, config.latency)} at"
            f" {measured(last, config.throughput)} ({settings_text(last)})."
        )
    return sentences + _troubles(result)


def _of_interest(result: SweepResult) -> list[str]:
    config = result.spec.config
    more = [objective.metric for objective in result.spec.objectives] + [limit.metric for limit in result.spec.limits]
    return list(dict.fromkeys([config.latency, config.throughput, *more]))


def _keys(result: SweepResult) -> str:
    *others, last = result.spec.space
    return f"{', '.join(others)} and {last}" if others else last


def _nearest(result: SweepResult) -> str:
    """How near the best point comes: by what factor the limit that it misses most is exceeded."""
    over = []
    for one in result.candidates:
        point = result.points[one.number]
        values = [(point.mean(limit.metric), limit) for limit in result.spec.limits]
        if all(value is not None for value, _ in values):
            worst = max((value / limit.limit_s, limit.in_words()) for value, limit in values if value is not None)
            over.append((worst[0], point.number, worst[1]))
    if not over:
        return ""
    factor, number, words = min(over)
    return f" Nearest comes point {number} ({settings_text(result.points[number])}): {digits(factor)} times {words}."


def _troubles(result: SweepResult) -> list[str]:
    sentences = []
    unstable = [point for point in result.points if not point.keeps_up]
    if unstable:
        sentences.append(
            f"{len(unstable):,} {_points(unstable)} not keep up with the arrivals: latencies then grow with the length"
            " of the run. Shown, and never chosen."
        )
    if result.failed:
        sentences.append(f"{len(result.failed):,} could not be run: {result.failed[0].message}")
    return sentences


def _points(some: Sequence[object]) -> str:
    return "point does" if len(some) == 1 else "points do"
