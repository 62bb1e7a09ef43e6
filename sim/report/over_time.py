"""What happened over time, on one shared axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.report.charts import Figure, Floats, Panel, Trace, band, line, rounded, stacked_panels
from sim.report.palette import COLOURS, faded, part_colour, part_pattern
from sim.report.view import RunView, arrival_and_end_rates
from sim.report.words import CAUSES, SHORT_CAUSES, TERMS
from traces.metrics.digest import Digest

_GREY = COLOURS[9]
_NUM_RATES = 60
_AT = "around %{x:.3~s} s"


X_TITLE = "seconds since the start of the run"


def over_time(views: Sequence[RunView]) -> Figure:
    """All panels of one run, or the same panels of several runs laid over each other, in one figure."""
    panels, x_range = time_panels(views)
    return stacked_panels(panels, X_TITLE, x_range)


def time_panels(views: Sequence[RunView]) -> tuple[list[Panel], tuple[float, float]]:
    """The panels, and the range of the time axis that they share."""
    ends_s = [max((view.summary["duration_s"], *_last_s(view))) for view in views]
    known = [view for view in views if view.digest is not None]
    panels = _of_one(views[0]) if len(views) == 1 else _of_several(views, known, max(ends_s))
    return panels, (_first_s(views), max(ends_s))


def _first_s(views: Sequence[RunView]) -> float:
    starts = [float(view.requests["arrival_s"].min()) for view in views if len(view.requests)]
    first_s = min(starts, default=0.0)
    # From zero, unless a trace begins long after it.
    return first_s if first_s > 0.2 * max(max(_last_s(view), default=0.0) for view in views) else 0.0


def _last_s(view: RunView) -> tuple[float, ...]:
    ended = view.requests["finish_s"].max()
    return (float(ended),) if ended == ended else ()


def _edges_s(view: RunView, end_s: float) -> Floats:
    start_s = float(view.requests["arrival_s"].min()) if len(view.requests) else 0.0
    return np.linspace(start_s, max(end_s, start_s + 1e-3), min(_NUM_RATES, max(4, len(view.requests) // 8)) + 1)


def _of_one(view: RunView) -> list[Panel]:
    panels = [_rates([view], max((view.summary["duration_s"], *_last_s(view))))]
    digest = view.digest
    if digest is None:
        return panels
    panels += [_requests_of_one(digest), _kv([view])]
    panels += [_step_time(digest)] if digest.terms else [_step_s([view])]
    return [*panels, _limits(view, "What kept further requests out, % of busy time", legend_lines=3)]


def _of_several(views: Sequence[RunView], known: Sequence[RunView], end_s: float) -> list[Panel]:
    panels = [_rates(views, end_s)]
    if not known:
        return panels
    for level, words in (("running", "Requests running in a step"), ("waiting", "Requests waiting in the queue")):
        panels.append(Panel(words, [trace for view in known for trace in _level(view, level)]))
    panels += [_kv(known), _step_s(known)]
    for view in known:
        panels.append(_limits(view, f"{view.label}: what kept further requests out, % of busy time", height_px=70))
    return panels


def _rates(views: Sequence[RunView], end_s: float) -> Panel:
    traces: list[Trace] = []
    for number, view in enumerate(views):
        edges_s = _edges_s(view, end_s)
        middle_s = (edges_s[1:] + edges_s[:-1]) / 2
        arrived, ended = arrival_and_end_rates(view, edges_s)
        if number == 0:
            hover = f"{_AT}: %{{y:.3g}} requests a second arrive"
            shown = _until(edges_s, float(view.requests["arrival_s"].max()))
            traces.append(line(middle_s[shown], arrived[shown], "arrive", _GREY, "longdashdot", hover=hover))
        one = len(views) == 1
        name, hover = "finish" if one else f"finish, {view.label}", f"{_AT}: %{{y:.3g}} requests a second finish"
        shown = _until(edges_s, max((view.summary["duration_s"], *_last_s(view))))
        dash = "solid" if one else view.dash
        traces.append(line(middle_s[shown], ended[shown], name, view.colour, dash, hover=hover))
    return Panel("Requests that arrive and finish, per second", traces, legend_lines=1 if len(views) == 1 else 2)


def _until(edges_s: Floats, last_s: float) -> slice:
    """The intervals up to the one after ``last_s``, in which a line comes down to zero and ends."""
    return slice(int(np.searchsorted(edges_s, last_s)) + 1)


def _requests_of_one(digest: Digest) -> Panel:
    traces: list[Trace] = []
    looks = (("running", COLOURS[0], "solid"), ("waiting", COLOURS[1], "dash"), ("swapped", COLOURS[3], "dot"))
    for level, colour, dash in looks:
        if level == "swapped" and not digest.mean(level).any():
            continue
        traces += band(digest.middle_s, digest.least(level), digest.most(level), colour)
        hover = f"{_AT}: %{{y:.3g}} requests {level} on average"
        traces.append(line(digest.middle_s, digest.mean(level), level, colour, dash, hover=hover))
    return Panel("Requests in the engine (line: mean; area: least to most)", traces, 170)


def _level(view: RunView, level: str) -> list[Trace]:
    assert view.digest is not None
    hover = f"{view.label}, {_AT}: %{{y:.3g}} requests {level} on average"
    return [line(view.digest.middle_s, view.digest.mean(level), view.label, view.colour, view.dash, hover=hover)]


def _kv(views: Sequence[RunView]) -> Panel:
    traces: list[Trace] = []
    for view in views:
        digest = view.digest
        assert digest is not None
        scale = 100.0 / max(digest.num_gpu_blocks, 1)
        if len(views) == 1:
            least, most = digest.least("used_blocks") * scale, digest.most("used_blocks") * scale
            traces += band(digest.middle_s, least, most, view.colour)
        hover = f"{view.label}, {_AT}: %{{y:.3g}} % of the KV cache is reserved on average"
        used = digest.mean("used_blocks") * scale
        named = {} if len(views) > 1 else {"showlegend": False}
        traces.append(line(digest.middle_s, used, view.label, view.colour, view.dash, hover=hover) | named)
    return Panel("KV cache reserved, %", traces, top=104, legend_lines=0 if len(views) == 1 else 1)


def _step_time(digest: Digest) -> Panel:
    """Mean duration of the steps that end in each bin, stacked by term."""
    steps = np.maximum(digest.total("steps"), 1.0)
    traces: list[Trace] = []
    totals = {term: float(digest.total(f"term.{term}").sum()) for term in digest.terms}
    for term in digest.terms:
        if totals[term] <= 1e-3 * sum(totals.values()):
            continue
        colour, pattern = part_colour(term), part_pattern(term)
        hover = f"{_AT}: {TERMS[term]} takes %{{y:.3g}} ms of a step on average"
        area = line(digest.middle_s, digest.total(f"term.{term}") / steps * 1e3, TERMS[term], colour, hover=hover)
        area |= {"stackgroup": "terms", "line": {"color": colour, "width": 1}, "fillcolor": faded(colour, 0.55)}
        if pattern:
            area["fillpattern"] = {"shape": pattern, "fgcolor": colour, "bgcolor": faded(colour, 0.18), "size": 7}
        traces.append(area)
    return Panel("Mean duration of a step by what it does, ms", traces, 170, legend_lines=3)


def _step_s(views: Sequence[RunView]) -> Panel:
    traces: list[Trace] = []
    for view in views:
        digest = view.digest
        assert digest is not None
        mean_ms = digest.total("step_s") / np.maximum(digest.total("steps"), 1.0) * 1e3
        mean_ms = np.where(digest.total("steps") > 0, mean_ms, np.nan)
        hover = f"{view.label}, {_AT}: a step takes %{{y:.3g}} ms on average"
        traces.append(line(digest.middle_s, mean_ms, view.label, view.colour, view.dash, hover=hover))
    return Panel("Mean duration of a step, ms", traces)


def _limits(view: RunView, title: str, *, height_px: int = 90, legend_lines: int = 2) -> Panel:
    """What kept admission back, as stacked shares of the busy time of each interval."""
    assert view.digest is not None
    digest, by_cause = view.digest, view.digest.limited_by()
    busy_s = np.maximum(sum(by_cause.values(), np.zeros(len(digest.middle_s))), 1e-12)
    traces: list[Trace] = []
    for cause, time_s in sorted(by_cause.items(), key=lambda item: -float(item[1].sum())):
        share = 100.0 * time_s / busy_s
        if float(share.max(initial=0.0)) < 0.1:
            continue
        colour = part_colour(cause)
        marker = {"color": faded(colour, 0.75), "line": {"width": 0}}
        if pattern := part_pattern(cause):
            solid = {"fgcolor": colour, "bgcolor": faded(colour, 0.25), "fillmode": "replace"}
            marker["pattern"] = {"shape": pattern, "size": 6, "solidity": 0.4, **solid}
        traces.append(
            {
                **{"type": "bar", "x": rounded(digest.middle_s), "y": rounded(share), "width": digest.width_s},
                **{"name": SHORT_CAUSES.get(cause, cause), "marker": marker},
                "hovertemplate": f"{_AT}, %{{y:.3g}} % of the busy time: {CAUSES.get(cause, cause)}<extra></extra>",
            }
        )
    return Panel(title, traces, height_px, top=100, legend_lines=legend_lines, axis={"fixedrange": True})
