"""``batchscope calibrate``: cost files from measured operator tables."""

from __future__ import annotations

import click

from sim.cli.group import verb_group


@verb_group()
def calibrate() -> None:
    """Fit cost models to measured operator tables."""


@calibrate.command("fit", short_help="Fit every term of a step to operator tables.")
@click.option("--data", required=True, type=click.Path(), help="Folder of the operator tables (docs/calibrate.md).")
@click.option("--model", default="llama-2-7b", show_default=True, help="Model of the catalog.")
@click.option("--hardware", default="a100-80gb", show_default=True, help="Card of the catalog.")
@click.option("--tp", default=1, show_default=True, type=click.IntRange(1), help="GPUs of a tensor-parallel group.")
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="Cost file to write.")
def fit(data: str, model: str, hardware: str, tp: int, out: str) -> None:
    """Fit every term of a step, hold points out, print the errors, and write a cost file.

    Which public tables --data holds, what the fit does and what its errors mean: docs/calibrate.md.
    """
    from importlib import import_module

    click.echo(import_module("calibrate.cli").run_fit(data, model, hardware, out, tp))
