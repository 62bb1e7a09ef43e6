"""Runs as tables for people: three significant digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.api import Result

Summary = Mapping[str, Any]


def _time(name: str, statistic: str) -> Callable[[Summary], str]:
    def cell(summary: Summary) -> str:
        stats = summary.get(name)
        if stats is None:
            return "-"
        if summary["delivery"] == "batch_end" and name in ("itl_s", "tpot_s"):
            return "all at once"
        return seconds(stats[statistic])

    return cell


def _number(*path: str, unit: str = "", scale: float = 1.0) -> Callable[[Summary], str]:
    def cell(summary: Summary) -> str:
        value: Any = summary
        for key in path:
            value = value.get(key) if value is not None else None
        return "-" if value is None else _digits(value * scale) + unit

    return cell


def seconds(value_s: float) -> str:
    """A duration in milliseconds below one second."""
    return f"{_digits(value_s)} s" if value_s >= 1.0 else f"{_digits(value_s * 1e3)} ms"


def _digits(value: float) -> str:
    """Three significant digits, thousands grouped."""
    if isinstance(value, int) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _requests(summary: Summary) -> str:
    counts = summary["requests"]
    parts = [f"{counts['finished']:,} of {counts['offered']:,} finished"]
    parts += [f"{counts[name]:,} {name}" for name in ("rejected", "aborted", "failed", "unfinished") if counts[name]]
    return ", ".join(parts)


def _stable(summary: Summary) -> str:
    verdict = summary.get("stability")
    if verdict is None:
        return "-"
    return "yes" if verdict["stable"] else f"no: queue grows by {_digits(verdict['queue_slope_per_s'])}/s"


def _preemptions(summary: Summary) -> str:
    counts = summary["preemptions"]
    return f"{counts['recompute'] + counts['swap']:,}"


ROWS: dict[str, Callable[[Summary], str]] = {
    "stable": _stable,
    "TTFT mean": _time("ttft_s", "mean"),
    "TTFT p99": _time("ttft_s", "p99"),
    "ITL mean": _time("itl_s", "mean"),
    "ITL p99": _time("itl_s", "p99"),
    "TPOT mean": _time("tpot_s", "mean"),
    "E2E mean": _time("e2e_s", "mean"),
    "E2E p99": _time("e2e_s", "p99"),
    "output tokens/s, whole run": _number("throughput", "output_tokens_per_s"),
    "output tokens/s, steady": _number("throughput", "steady_output_tokens_per_s"),
    "hardware bound, tokens/s": _number("throughput", "bound_output_tokens_per_s"),
    "batch occupancy": _number("steps", "occupancy_mean", unit=" %", scale=100.0),
    "slots wasted": _number("steps", "slot_waste", unit=" %", scale=100.0),
    "KV cache used, mean": _number("kv", "utilization_mean", unit=" %", scale=100.0),
    "preemptions": _preemptions,
    "decode-only steps between plans": _number("steps", "quiet_run_mean"),
    "duration": _number("duration_s", unit=" s"),
}

WITH_LIMITS: dict[str, Callable[[Summary], str]] = {
    "within all limits": _number("goodput", "attainment", unit=" %", scale=100.0),
    "goodput, requests/s": _number("goodput", "requests_per_s"),
}
"""Rows of runs that state limits in [slo]."""


def _rows(summaries: Sequence[Summary]) -> list[list[str]]:
    limits = WITH_LIMITS if any("goodput" in summary for summary in summaries) else {}
    return [[name, *(cell(summary) for summary in summaries)] for name, cell in (ROWS | limits).items()]


def run_table(result: Result) -> str:
    """One run: what it was, its requests, its metrics, what to know, and where the record is."""
    summary = result.summary
    lines = [
        f"{summary['preset']}, {summary['model']} on {summary['hardware']} ({summary['side']})",
        *([] if summary["status"] == "completed" else [f"status: {summary['status']}"]),
        _requests(summary),
        *_reasons(summary),
        "",
        render(["", "value"], _rows([summary])),
        *(f"note: {notice}" for notice in result.notices),
    ]
    if result.folder is not None:
        lines.append(f"record: {result.folder}")
    return "\n".join(lines)


def _reasons(summary: Summary) -> list[str]:
    reasons = summary["requests"]["reasons"]
    return ["reasons: " + ", ".join(f"{name} {count:,}" for name, count in reasons.items())] if reasons else []


def comparison_table(summaries: Sequence[Summary]) -> str:
    """Several runs side by side, one column each."""
    rows = [["requests", *(_requests(summary) for summary in summaries)]]
    rows += _rows(summaries)
    return render(["", *(str(summary["preset"]) for summary in summaries)], rows)


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain-text table that reads the same on a terminal and in a file."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    stream = StringIO()
    Console(file=stream, width=200).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
