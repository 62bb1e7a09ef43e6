"""``batchscope diagnose``: what limits a run, and what helps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from sim.explore.diagnose import Diagnosis
    from sim.explore.diagnose_advice import Advice
    from sim.report.figures import Table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run", metavar="RUN")
@click.option("--requests", "max_requests", type=click.IntRange(1), default=2_000, show_default=True, metavar="N",
              help="Try advice on the first N requests.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any key of RUN.toml, over the file.")
@click.option("--out", metavar="FILE", help="Where the page goes.  [default: RUN/diagnosis.html, runs/diagnose-N.html]")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON; without --out write no page.")
def diagnose(run: str, max_requests: int, overrides: tuple[str, ...], out: str | None, as_json: bool) -> None:
    """Say what limits a run, what shows it, and what helps: RUN is a folder that 'batchscope run' wrote, or a RUN.toml,
    which is run first.

    Each piece of advice is simulated with the same requests; its effect on the metric that suffers is printed with a
    95 % interval, and so is that some of it does not help.
    """
    import json
    from contextlib import redirect_stdout
    from pathlib import Path

    from policies.core.errors import UserError
    from sim.explore.diagnose import diagnose as find
    from sim.progress import on_terminal
    from sim.report.document import check_page

    if out is not None:
        check_page(out)
    if overrides and Path(run).is_dir():
        raise UserError(f"--set {overrides[0]}: {run} holds a run that is over; give its run.toml, which is run anew")
    # A class from a file may print: that belongs to people, and the output of --json to programs.
    with redirect_stdout(sys.stderr):
        found = find(run, overrides=overrides, max_requests=max_requests, progress=_progress)
    on_terminal()
    wanted = out is not None or not as_json
    # The page is written before what a closed pipe may cut off.
    path = found.report(out if out is not None else _page_of(run)) if wanted else None
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        click.echo(in_words(found))
    if path is not None:
        click.echo(f"report: {path}", err=as_json)
    if found.view.summary["status"] != "completed":
        sys.exit(130 if found.view.summary["status"] == "interrupted" else 3)


def in_words(found: Diagnosis) -> str:
    """The diagnosis as a terminal shows it."""
    from textwrap import wrap

    from sim.explore.diagnose_text import evidence_table, gaps_table, life_table, limits_table

    summary = found.view.summary
    lines = [f"{summary['preset']}, {summary['model']} on {summary['hardware']} ({summary['side']})", ""]
    for sentence in found.finding:
        lines += wrap(sentence, 110, break_on_hyphens=False)
    for table in (life_table(found), evidence_table(found), limits_table(found), gaps_table(found)):
        if table.rows:
            lines += ["", table.caption, _rendered(table)]
    if found.tried:
        lines += ["", *_advice(found)]
    lines += ["", "Running out of memory"]
    for text in found.memory.sentences():
        lines += wrap(text, 110, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


def _advice(found: Diagnosis) -> list[str]:
    """What was tried, each with its effect on the metric that suffers and on the rate."""
    from sim.explore.diagnose_text import advice_table
    from sim.latencies import in_short

    table = advice_table(found)
    metric = in_short(*found.metric)
    lines = [f"What was tried on the same {found.requests:,} requests; differences of {metric} with 95 % intervals"]
    for text, effect, change, *_, rate in table.rows:
        lines.append(f"  {effect}: {text}")
        if change != "-":
            lines.append(f"      {metric} {change}; {rate} output tokens/s")
    return lines


def _rendered(table: Table) -> str:
    """Name and value; what a row means is on the page."""
    from sim.cli.tables import render

    width = 2 if table.header[-1] == "what it is" else len(table.header)
    return render(table.header[:width], [row[:width] for row in table.rows])


def _progress(number: int, total: int, advice: Advice) -> None:
    """One line on a terminal, rewritten."""
    from sim.progress import on_terminal

    on_terminal(f"trying {number} of {total}: {advice.lever}")


def _page_of(run: str) -> Path:
    """In the folder of the run, or the first free name beside other runs."""
    from pathlib import Path

    from sim.runs import next_page

    return Path(run) / "diagnosis.html" if Path(run).is_dir() else next_page("diagnose")
