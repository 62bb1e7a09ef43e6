"""Runs as tables for people: three significant digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.latencies import FEW, LATENCIES, at_once, in_short
from sim.summary import policy_name
from sim.wording import digits, percent, seconds
from traces.record.schema import outcome

if TYPE_CHECKING:
    from sim.api import Result

Summary = Mapping[str, Any]


class Cell(NamedTuple):
    """A value in words, and the number of samples behind it (None: no statistic)."""

    text: str
    n: int | None = None


NOTHING = Cell("-")
Row = Callable[[Summary], Cell]


def _time(name: str, statistic: str) -> Row:
    def cell(summary: Summary) -> Cell:
        stats = summary.get(name)
        if stats is None:
            return NOTHING
        if at_once(name, summary):
            return Cell("all at once")
        few = " (n small)" if statistic == "p99" and stats["n"] < FEW else ""
        return Cell(seconds(stats[statistic]) + few, stats["n"])

    return cell


def _value(words: Callable[[float], str], *path: str) -> Row:
    def cell(summary: Summary) -> Cell:
        value: Any = summary
        for key in path:
            value = value.get(key) if value is not None else None
        return NOTHING if value is None else Cell(words(value))

    return cell


def _requests(summary: Summary) -> str:
    counts = summary["requests"]
    parts = [f"{counts['finished']:,} of {counts['offered']:,} finished"]
    parts += [f"{counts[name]:,} {name}" for name in ("rejected", "aborted", "failed", "unfinished") if counts[name]]
    return ", ".join(parts)


def _keeps_up(summary: Summary) -> Cell:
    verdict = summary.get("stability")
    if verdict is None:
        closed = summary["config"]["workload"].get("concurrency") is not None
        return Cell("closed loop" if closed else "not enough data")
    growth = digits(verdict["queue_slope_per_s"])
    return Cell("yes" if verdict["stable"] else f"no: queue grows by {growth}/s")


def _in_a_step(summary: Summary) -> Cell:
    rows = summary["steps"].get("rows_mean")
    return NOTHING if rows is None else Cell(f"{digits(rows)} (of {summary['config']['parameters']['max_num_seqs']:,})")


def _preemptions(summary: Summary) -> Cell:
    counts = summary["preemptions"]
    moved_bytes = counts["swapped_out_bytes"] + counts["swapped_in_bytes"]
    prices = {
        "recompute": f"{counts['recomputed_tokens']:,} tokens again",
        "swap": f"{digits(moved_bytes / 1e9)} GB moved",
    }
    parts = [f"{counts[kind]:,} by {kind} ({price})" for kind, price in prices.items() if counts[kind]]
    return Cell(", ".join(parts) or "0")


def _limited_by(summary: Summary) -> Cell:
    shares = sorted(summary["limited_by"].items(), key=lambda item: -item[1])
    return Cell(", ".join(f"{cause} {100 * share:.0f} %" for cause, share in shares if share >= 0.005) or "-")


_TIMES = (
    *(("ttft_s", statistic) for statistic in ("mean", "p50", "p99")),
    *(("itl_s", "mean"), ("itl_s", "p99"), ("tpot_s", "mean"), ("e2e_s", "mean"), ("e2e_s", "p99")),
)

ROWS: dict[str, Row] = {
    "keeps up": _keeps_up,
    **{in_short(*of): _time(*of) for of in _TIMES},
    "output tokens/s, whole run": _value(digits, "throughput", "output_tokens_per_s"),
    "output tokens/s, steady": _value(digits, "throughput", "steady_output_tokens_per_s"),
    "hardware bound, tokens/s": _value(digits, "throughput", "bound_output_tokens_per_s"),
    "requests in a step, mean": _in_a_step,
    "slots wasted": _value(percent, "steps", "slot_waste"),
    "KV cache reserved, mean": _value(percent, "kv", "utilization_mean"),
    "... of it empty": _value(percent, "kv", "fragmentation_mean"),
    "preemptions": _preemptions,
    "limited by": _limited_by,
    "duration": _value(seconds, "duration_s"),
}

PRICED: dict[str, Row] = {
    "USD/million output tokens": _value(digits, "cost", "usd_per_million_output_tokens"),
    "USD/million tokens, all": _value(digits, "cost", "usd_per_million_total_tokens"),
    "USD/request": _value(digits, "cost", "usd_per_request"),
}
"""Rows of runs with a price."""


def _limits(summaries: Sequence[Summary]) -> dict[str, Row]:
    """Rows of runs that state limits in [slo]: each limit in words, then all together."""
    rows: dict[str, Row] = {}
    for summary in summaries:
        for name, limit_s in summary["config"].get("slo", {}).items():
            short = "mean ITL of a request" if name == "itl_s" else LATENCIES[name].short
            rows[f"{short} <= {seconds(limit_s)}"] = _within(name, limit_s)
    if rows:
        rows["within all limits"] = _value(percent, "goodput", "attainment")
        rows["goodput, requests/s"] = _value(digits, "goodput", "requests_per_s")
    return rows


def _within(name: str, limit_s: float) -> Row:
    def cell(summary: Summary) -> Cell:
        stated = summary["config"].get("slo", {}).get(name) == limit_s
        share = summary.get("goodput", {}).get("within", {}).get(name)
        return Cell(percent(share)) if stated and share is not None else NOTHING

    return cell


def _rows(summaries: Sequence[Summary]) -> list[tuple[str, list[Cell]]]:
    rows = ROWS | (PRICED if any("cost" in summary for summary in summaries) else {}) | _limits(summaries)
    return [(name, [cell(summary) for summary in summaries]) for name, cell in rows.items()]


def run_table(result: Result) -> str:
    """One run: what it was, its requests, its metrics, what to know, and where the record is."""
    summary = result.summary
    rows = [[name, cell.text, "" if cell.n is None else f"{cell.n:,}"] for name, (cell,) in _rows([summary])]
    lines = [
        *_unserved(summary),
        f"{_engine(summary)}, {summary['model']} on {summary['hardware']} ({summary['side']})",
        *([] if summary["status"] == "completed" else [f"status: {summary['status']}"]),
        _requests(summary),
        *_reasons(summary),
        "",
        render(["", "value", "n"], rows),
        *(f"note: {notice}" for notice in result.notices),
    ]
    if result.folder is not None:
        lines.append(f"record: {result.folder}")
    return "\n".join(lines)


def _engine(summary: Summary) -> str:
    """The preset, or the class that ran in its place."""
    preset, policy = summary["preset"], summary["policy"]
    name = policy.replace("\\", "/").rpartition("/")[2]
    return f"{name} (parameters and KV memory of {preset})" if ":" in policy else str(preset)


def _unserved(summary: Summary) -> list[str]:
    """A warning where more than 1 % of the requests did not finish: the other figures are those of the rest."""
    counts = summary["requests"]
    missing = counts["offered"] - counts["finished"]
    if missing <= 0.01 * counts["offered"]:
        return []
    reasons = [f"{name} {n:,}" for name, n in counts["reasons"].items() if outcome(name) != "finished"]
    return [f"WARNING: {missing:,} of {counts['offered']:,} requests were not served ({', '.join(reasons)})"]


def _reasons(summary: Summary) -> list[str]:
    reasons = summary["requests"]["reasons"]
    return ["reasons: " + ", ".join(f"{name} {count:,}" for name, count in reasons.items())] if reasons else []


def comparison_table(summaries: Sequence[Summary], names: Sequence[str] | None = None) -> str:
    """Several runs side by side, one column each under its name (that of its policy)."""
    rows = [["requests", *(_requests(summary) for summary in summaries)]]
    rows += [
        [name, *(_with_n(cell, summary) for cell, summary in zip(cells, summaries, strict=True))]
        for name, cells in _rows(summaries)
    ]
    return render(["", *(names or [policy_name(summary) for summary in summaries])], rows)


def _with_n(cell: Cell, summary: Summary) -> str:
    """With the number of samples where that is neither the number of finished requests, give or take 1 %, nor that of
    their gaps."""
    finished, gaps = summary["requests"]["finished"], summary.get("itl_s", {}).get("n")
    usual = cell.n in (None, gaps) or abs(cell.n - finished) <= 0.01 * finished
    return cell.text if usual else f"{cell.text} (n {cell.n:,})"


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
