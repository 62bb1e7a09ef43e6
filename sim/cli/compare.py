"""``batchscope compare``: several runs in one picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sim.report.figures import Table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folders", metavar="RUN RUN...", nargs=-1)
@click.option("--out", metavar="FILE", help="Where the page goes.  [default: runs/compare-N.html]")
@click.option("--unpaired", is_flag=True, help="Compare runs of different workloads, without differences by request.")
def compare(folders: tuple[str, ...], out: str | None, unpaired: bool) -> None:
    """Compare runs of one workload, request by request; the first RUN is the base of every difference."""
    from pathlib import Path

    from sim.cli.tables import comparison_table
    from sim.report.figures import config_table, difference_table
    from sim.report.page import write_page
    from sim.report.pairing import check_pairing
    from sim.report.view import load_view, side_by_side
    from sim.runs import next_page

    if len(folders) < 2:
        raise click.UsageError("name at least two run folders; 'batchscope report RUN' shows one")
    views = side_by_side([load_view(folder) for folder in folders])
    notices = [] if unpaired else check_pairing(views)
    click.echo(comparison_table([view.summary for view in views], [view.label for view in views]))
    for view in () if unpaired else views[1:]:
        _show(difference_table(view, views[0]))
    _show(config_table(views))
    for notice in notices:
        click.echo(f"note: {notice}")
    path = write_page(views, Path(out) if out else next_page("compare"), paired=not unpaired, notices=notices)
    click.echo(f"report: {path}")


def _show(table: Table) -> None:
    from sim.cli.tables import render

    click.echo(f"\n{table.caption}")
    click.echo(render(table.header, table.rows) if table.rows else "nothing\n")
