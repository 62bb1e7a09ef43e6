"""``batchscope report``: the page of a run, built anew from its folder."""

from __future__ import annotations

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN")
@click.option("--perfetto", is_flag=True, help="Write perfetto.json too, for https://ui.perfetto.dev.")
@click.option("--out", metavar="FILE", help="Where the page goes.  [default: RUN/report.html]")
def report(folder: str, perfetto: bool, out: str | None) -> None:
    """Rebuild the page of a run: RUN is a folder that 'batchscope run' wrote."""
    from pathlib import Path

    from sim.report.page import REPORT_NAME, write_page
    from sim.report.perfetto import PERFETTO_NAME, write_timeline
    from sim.report.view import load_view

    view = load_view(folder)
    path = write_page([view], Path(out) if out else Path(folder) / REPORT_NAME)
    click.echo(f"report: {path}")
    if perfetto:
        timeline = write_timeline(view, Path(folder) / PERFETTO_NAME)
        click.echo(f"timeline: {timeline} (open it at https://ui.perfetto.dev, which reads it in the browser)")
