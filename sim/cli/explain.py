"""``batchscope explain``: who waited for what, and why."""

from __future__ import annotations

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", metavar="RUN")
@click.option("--request", "request_id", type=int, metavar="ID", help="A request, by its row in the workload (from 0).")
@click.option("--step", type=int, metavar="N", help="A step, from 0; needs a run with sim.record = steps.")
def explain(folder: str, request_id: int | None, step: int | None) -> None:
    """Say in plain words who waited for what, and why: RUN is a folder that 'batchscope run' wrote."""
    from sim.report.explain import explain_request, explain_step
    from sim.report.view import load_view

    if (request_id is None) == (step is None):
        raise click.UsageError("give either --request ID or --step N")
    view = load_view(folder)
    lines = explain_request(view, request_id) if request_id is not None else explain_step(view, step or 0)
    click.echo("\n".join(lines))
