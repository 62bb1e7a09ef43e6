"""``batchscope diff``: where two runs decide differently, or whether a measured run decides as its policy does."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folders", metavar="RUN [RUN]", nargs=-1)
def diff(folders: tuple[str, ...]) -> None:
    """The first decision in which two runs differ, and their metrics side by side; the first RUN is the base.

    With one RUN, a run of 'batchscope execute': its recorded times, arrivals, aborts and finishes are replayed through
    its policy, which must decide the same. Exit code 1 on any difference of decisions.
    """
    from pathlib import Path

    if not 1 <= len(folders) <= 2:
        raise click.UsageError("name one run of 'batchscope execute', or two runs")
    paths = [Path(folder) for folder in folders]
    same = _replayed(paths[0]) if len(paths) == 1 else _compared(paths[0], paths[1])
    if not same:
        sys.exit(1)


def _replayed(folder: Path) -> bool:
    from sim.replay import replay_run

    replay = replay_run(folder)
    what = f"{replay.plans:,} plans, {replay.steps:,} steps, {replay.arrivals:,} arrivals, {replay.aborts:,} aborts"
    if replay.decisions:
        what += f", {replay.decisions:,} lines of decisions"
    if replay.difference is None:
        click.echo(f"first differing decision: none ({what} replayed)")
        return True
    click.echo(f"first differing decision ({what} replayed before it):\n{replay.difference}")
    return False


def _compared(first: Path, second: Path) -> bool:
    from policies.core.errors import UserError
    from sim.cli.tables import render
    from sim.decisions import compare_decisions
    from sim.report.view import load_view, side_by_side

    views = side_by_side([load_view(folder) for folder in (first, second)])
    labels = (views[0].label, views[1].label)
    same = True
    try:
        found = compare_decisions(first, second, labels)
    except UserError as error:
        click.echo(f"decisions are not compared: {error}")
    else:
        same = found.difference is None
        where = "none" if same else f"after {found.alike:,} steps alike"
        click.echo(f"first differing decision: {where} of {found.total:,} steps")
        if found.difference is not None:
            click.echo(found.difference)
    rows = metric_rows(views[0].summary, views[1].summary)
    click.echo(f"\n{render(['', *labels, 'difference'], rows)}")
    for name in ("side", "hardware", "model"):
        values = [view.summary[name] for view in views]
        if values[0] != values[1]:
            click.echo(f"note: {name} differs: {values[0]} ({labels[0]}), {values[1]} ({labels[1]})")
    return same


def metric_rows(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Sequence[str]]:
    """Name, both values, and by how much the second exceeds the first, of every metric that is not 0 in both."""
    from sim.latencies import SHOWN, in_short
    from sim.wording import digits, percent, seconds

    rows: list[Sequence[str]] = []

    def add(name: str, words: Callable[[float], str], *path: str) -> None:
        one, other = _at(first, path), _at(second, path)
        if not one and not other:
            return
        change = "-" if one is None or other is None or not one else _signed(100 * (other - one) / one)
        rows.append([name, *("-" if value is None else words(value) for value in (one, other)), change])

    for latency in (*SHOWN, "queue_s"):
        for statistic in ("mean", "p50", "p99"):
            add(in_short(latency, statistic), seconds, latency, statistic)
    add("output tokens/s", digits, "throughput", "output_tokens_per_s")
    add("requests/s", digits, "throughput", "requests_per_s")
    add("duration", seconds, "duration_s")
    add("steps", digits, "steps", "count")
    add("requests in a step, mean", digits, "steps", "rows_mean")
    add("KV cache reserved, mean", percent, "kv", "utilization_mean")
    for kind in ("recompute", "swap"):
        add(f"preemptions by {kind}", digits, "preemptions", kind)
    for kind in ("finished", "rejected", "aborted", "failed", "unfinished"):
        add(f"requests {kind}", digits, "requests", kind)
    return rows


def _signed(change: float) -> str:
    return f"{change:+,.0f} %" if abs(change) >= 100 else f"{change:+.1f} %"


def _at(summary: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = summary
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else float(value)
