"""Tables of figures: latencies with intervals, rates, groups, paired differences, configurations that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.latencies import FEW, LATENCIES, SHOWN, at_once, in_short
from sim.report.view import RunView
from sim.wording import digits, percent, seconds
from traces.metrics.intervals import Interval, interval, paired

PAIRED = ("ttft_s", "tpot_s", "e2e_s")
_STATISTICS = ("mean", "p50", "p99")
_CLASSES = {"client": "client", "priority": "priority", "prompt_tokens": "prompt length, tokens"}


class Table(NamedTuple):
    """A table of text: its caption, header, and rows that start with their name."""

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def latency_table(view: RunView) -> Table:
    """Mean, p50 and p99 of each latency, with 95 % intervals where there are enough samples and the run keeps up."""
    rows: list[tuple[str, ...]] = []
    for metric in SHOWN:
        stats = view.summary.get(metric)
        short, _, meaning = LATENCIES[metric]
        if stats is None:
            continue
        if at_once(metric, view.summary):
            rows.append((f"{short}: {meaning}", "all tokens", "come", "at once", f"{stats['n']:,}"))
            continue
        cells = (_latency_cell(view, metric, statistic, stats) for statistic in _STATISTICS)
        rows.append((f"{short}: {meaning}", *cells, f"{stats['n']:,}"))
    return Table("Latencies", ("", "mean", "p50", "p99", "samples"), rows)


def _latency_cell(view: RunView, metric: str, statistic: str, stats: Mapping[str, Any]) -> str:
    text = seconds(stats[statistic])
    if statistic == "p99" and stats["n"] < FEW:
        text += " (few samples)"
    if metric in PAIRED and view.keeps_up is not False:
        found = interval(view.values(metric), statistic)
        if found.half is not None:
            text += f" ± {seconds(found.half)}"
    return text


def rate_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and meaning of the other key figures of a run."""
    rates, kv, steps = summary["throughput"], summary["kv"], summary["steps"]
    parameters, paid = summary["config"]["parameters"], summary.get("cost", {})
    seats = f" of {parameters['max_num_seqs']:,}" if "max_num_seqs" in parameters else ""
    rows = [
        ("Output tokens a second, whole run", rates.get("output_tokens_per_s"), digits, "start and end included"),
        ("... steady", rates.get("steady_output_tokens_per_s"), digits, "first completion to last arrival"),
        ("... hardware bound", rates.get("bound_output_tokens_per_s"), digits, "no schedule on this card exceeds it"),
        ("Requests a second", rates.get("requests_per_s"), digits, "that finished"),
        ("Requests in a step", steps.get("rows_mean"), lambda x: digits(x) + seats, "mean, of the most allowed"),
        ("Batch slots wasted", steps.get("slot_waste"), percent, "spent on answers that had ended"),
        ("KV cache reserved", kv.get("utilization_mean"), percent, "mean over time"),
        ("... of it empty", kv.get("fragmentation_mean"), percent, "reserved but not filled"),
        ("Prefix cache hits", kv.get("prefix_hit_rate_new"), percent, "prompt tokens found in the cache"),
        ("Preemptions", _events(summary), str, "running requests pushed out for lack of KV cache"),
        ("Duration", summary["duration_s"], seconds, "first arrival to last completion"),
        ("USD for a million output tokens", paid.get("usd_per_million_output_tokens"), digits, "price: [price]"),
        ("... of prompts and answers", paid.get("usd_per_million_total_tokens"), digits, "likewise"),
        ("USD for a request", paid.get("usd_per_request"), digits, "that finished"),
        *_goodput_rows(summary),
    ]
    return [(name, words(value), meaning) for name, value, words, meaning in rows if value is not None]


def _events(summary: Mapping[str, Any]) -> str:
    counts = summary["preemptions"]
    parts = [f"{counts[kind]:,} by {kind}" for kind in ("recompute", "swap") if counts[kind]]
    return ", ".join(parts) or "none"


def _goodput_rows(summary: Mapping[str, Any]) -> list[tuple[str, Any, Any, str]]:
    goodput = summary.get("goodput")
    if goodput is None:
        return []
    limits = summary["config"].get("slo", {})
    stated = ", ".join(f"{LATENCIES[name].short} <= {seconds(limit)}" for name, limit in limits.items())
    return [
        ("Within all limits", goodput.get("attainment"), percent, f"of the requests: {stated}"),
        ("Goodput, requests a second", goodput["requests_per_s"], digits, "that finished within all limits"),
    ]


def overview_table(views: Sequence[RunView]) -> Table:
    """Several runs side by side."""
    rows: list[tuple[str, ...]] = []
    for metric in SHOWN:
        for statistic in _STATISTICS:
            cells = tuple(_overview_cell(view, metric, statistic) for view in views)
            if any(cell != "-" for cell in cells):
                rows.append((in_short(metric, statistic), *cells))
    by_name = [{name: value for name, value, _ in rate_rows(view.summary)} for view in views]
    for name in dict.fromkeys(name for values in by_name for name in values):
        rows.append((name, *(values.get(name, "-") for values in by_name)))
    return Table("The runs side by side", ("", *(view.label for view in views)), rows)


def _overview_cell(view: RunView, metric: str, statistic: str) -> str:
    stats = view.summary.get(metric)
    if stats is None:
        return "-"
    return "all at once" if at_once(metric, view.summary) else seconds(stats[statistic])


def group_tables(view: RunView) -> list[Table]:
    """Results by client, priority and class of prompt length, with the fairness indices in the caption."""
    tables = []
    for name, grouping in view.summary.get("groups", {}).items():
        rows = []
        for label, group in grouping["of"].items():
            times = [seconds(group[key][mark]) if key in group else "-" for key, mark in _GROUP_MARKS]
            counts = group["requests"]
            rate = digits(group.get("output_tokens_per_s", 0.0))
            rows.append((label, f"{counts['finished']:,} of {counts['offered']:,}", *times, rate))
        header = (_CLASSES[name], "finished", *(in_short(*mark) for mark in _GROUP_MARKS), "output tokens/s")
        tables.append(Table(f"By {_CLASSES[name]}{_fairness(grouping)}", header, rows))
    return tables


_GROUP_MARKS = (("ttft_s", "p50"), ("ttft_s", "p99"), ("tpot_s", "mean"), ("e2e_s", "p99"))


def _fairness(grouping: Mapping[str, Any]) -> str:
    known = [
        f"{words} {grouping[key]:.2f}"
        for key, words in (("jain_speed", "speed of answers"), ("jain_tokens", "tokens served"))
        if key in grouping
    ]
    count = len(grouping["of"]) + grouping.get("left_out", 0)
    left_out = f"; the {grouping['left_out']:,} smallest are not listed" if "left_out" in grouping else ""
    index = f"Jain's fairness index, from {1 / count:.2g} (one has it all) to 1 (all alike): {', '.join(known)}"
    return f" ({index}{left_out})" if known else ""


class Difference(NamedTuple):
    """A paired difference of two runs: ``values`` minus the base, in seconds, over ``n`` requests of both."""

    metric: str
    statistic: str
    base: float
    found: Interval
    n: int


def differences(view: RunView, base: RunView) -> list[Difference]:
    """Per metric and statistic, over the requests that have a value in both runs, in order of their arrival.

    An interval is given where both runs keep up; else the difference depends on the length of the run.
    """
    mine = view.requests.set_index("id")
    theirs = base.requests.set_index("id")
    mine, theirs = mine.loc[mine.index.isin(theirs.index)], theirs.loc[theirs.index.isin(mine.index)]
    theirs = theirs.reindex(mine.index)
    steady = view.keeps_up is not False and base.keeps_up is not False
    found = []
    for metric in PAIRED:
        if at_once(metric, view.summary) or at_once(metric, base.summary):
            continue
        x, y = mine[metric].to_numpy(np.float64), theirs[metric].to_numpy(np.float64)
        both = ~(np.isnan(x) | np.isnan(y))
        if not both.any():
            continue
        for statistic in _STATISTICS:
            change = paired(x[both], y[both], statistic)
            before = interval(y[both], statistic).value
            if not steady:
                change = Interval(change.value, None)
            found.append(Difference(metric, statistic, before, change, int(both.sum())))
    return found


def difference_table(view: RunView, base: RunView) -> Table:
    """The paired differences in words."""
    rows = []
    changes = differences(view, base)
    known = any(change.found.half is not None for change in changes)
    for metric, statistic, before, found, n in changes:
        change = f"{'+' if found.value > 0 else ''}{seconds(found.value)}"
        if found.half is not None:
            change += f" ± {seconds(found.half)}"
        clear = [_clear(found)] if known else []
        rows.append((in_short(metric, statistic), change, relative(found.value, before), *clear, f"{n:,}"))
    header = ("", "difference", "relative", *(["beyond chance?"] if known else []), "requests in both")
    caption = f"{view.label} minus {base.label}, request by request"
    return Table(caption if known or not rows else f"{caption} ({_no_interval(view, base)})", header, rows)


def relative(change: float, before: float) -> str:
    """A change in percent of what was there before; -100 % only where nothing is left."""
    if before <= 0:
        return "-"
    value = 100.0 * change / before
    return "< -99.9 %" if -100.0 < value <= -99.95 else f"{'+' if value > 0 else ''}{digits(value)} %"


def _no_interval(view: RunView, base: RunView) -> str:
    growing = [of.label for of in (base, view) if of.keeps_up is False]
    if not growing:
        return "too few requests for intervals"
    return f"without intervals: {' and '.join(growing)} {'does' if len(growing) == 1 else 'do'} not keep up"


def _clear(found: Interval) -> str:
    if found.half is None:
        return "no interval"
    return "yes" if found.excludes_zero else "no, the interval holds zero"


def config_table(views: Sequence[RunView]) -> Table:
    """Every key in which the configurations differ."""
    flat = [dict(_flattened(view.summary["config"])) for view in views]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows = []
    for key in keys:
        values = [values.get(key) for values in flat]
        if any(value != values[0] for value in values):
            rows.append((key, *("-" if value is None else str(value) for value in values)))
    return Table("What differs in the configurations", ("", *(view.label for view in views)), rows)


def _flattened(tables: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    flat = []
    for key, value in tables.items():
        name = f"{before}{key}"
        flat += _flattened(value, f"{name}.") if isinstance(value, Mapping) else [(name, value)]
    return flat
