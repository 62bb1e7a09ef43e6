"""``batchscope sweep``: many runs that differ in some keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sim.explore.sweep_result import SweepResult

_SHOWN = 20


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", metavar="SWEEP.toml", required=False)
@click.option("--jobs", type=int, metavar="N", help="Processes on this machine.  [default: one a core]")
@click.option("--ray", metavar="ADDRESS", help="Run on the Ray cluster at this address (auto: that of this machine).")
@click.option("--dask", metavar="ADDRESS", help="Run on the Dask cluster of the scheduler at this address.")
@click.option("--out", metavar="FOLDER", help="Where the sweep is kept, and goes on.  [default: runs/NAME of the file]")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any key of the base, e.g. workload.limit=500."
)
@click.option("--metrics", is_flag=True, help="List the metrics that a table can have.")
def sweep(
    file: str | None,
    jobs: int | None,
    ray: str | None,
    dask: str | None,
    out: str | None,
    overrides: tuple[str, ...],
    metrics: bool,
) -> None:
    """Run every point of SWEEP.toml: a [grid], [random] points or a [search] over keys of RUN.toml (docs/sweep.md).

    Each run is kept as soon as it is finished: the same command goes on where the last one was stopped or killed.
    """
    if metrics:
        click.echo(_metric_list())
        return
    if file is None:
        raise click.UsageError("name a SWEEP.toml")
    from pathlib import Path

    from policies.core.errors import UserError
    from sim.explore.progress import SweepLine
    from sim.explore.sweep import sweep as run_sweep
    from sim.explore.sweepfile import load_sweep
    from sim.runs import RUNS

    spec = load_sweep(file, overrides)
    folder = Path(out) if out else RUNS / Path(file).stem
    try:
        with SweepLine(spec.num_points * spec.config.repeats) as progress:
            result = run_sweep(spec, out=folder, jobs=jobs, ray=ray, dask=dask, progress=progress)
    except KeyboardInterrupt:
        click.echo(f"\nwhat has finished is kept in {folder}: the same command goes on from there", err=True)
        raise
    page = result.save()
    if len(result.failed) == len(result.points):
        raise UserError(f"no point could be run; the first one: {result.failed[0].message}")
    _show(result)
    click.echo(f"table: {folder / 'table.csv'} (and .parquet)")
    if spec.method == "search":
        click.echo(f"study: sqlite:///{folder / 'study.db'} (optuna-dashboard opens it)")
    click.echo(f"report: {page}")


def _show(result: SweepResult) -> None:
    """The front as a table, then what was found."""
    from sim.cli.tables import render
    from sim.explore.sweep_words import finding, measured, value_text

    columns = result.columns
    shown = result.front or result.points
    rows = []
    for point in shown[:_SHOWN]:
        settings = [value_text(point.settings[name]) for name in result.spec.space]
        mark = "*" if point is result.chosen else ""
        rows.append([f"{point.number}{mark}", *settings, *(measured(point, name) for name in columns)])
    what = "Pareto front of latency and throughput (* chosen)" if result.front else "points"
    click.echo(f"{what}{f', the first {_SHOWN}' if len(shown) > _SHOWN else ''}")
    keys = [name.partition(".")[2] for name in result.spec.space]
    click.echo(render(["point", *keys, *columns], rows))
    for sentence in finding(result):
        click.echo(sentence)


def _metric_list() -> str:
    from sim.cli.tables import render
    from sim.explore.metrics import METRICS

    return render(["metric", "what it is"], [[name, one.about] for name, one in METRICS.items()])
