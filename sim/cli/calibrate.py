"""``batchscope calibrate``: cost files from measured operator tables."""

from __future__ import annotations

import click

from sim.cli.group import verb_group


@verb_group()
def calibrate() -> None:
    """Fit cost models to measured operator tables."""


@calibrate.command("fit")
@click.option("--data", required=True, type=click.Path(), help="Folder of the operator tables.")
@click.option("--model", default="llama-2-7b", show_default=True, help="Model of the catalog.")
@click.option("--hardware", default="a100-80gb", show_default=True, help="Card of the catalog.")
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="Cost file to write.")
def fit(data: str, model: str, hardware: str, out: str) -> None:
    """Fit every term of a step, hold points out, print the errors, and write a cost file."""
    from importlib import import_module

    click.echo(import_module("calibrate.cli").run_fit(data, model, hardware, out))
