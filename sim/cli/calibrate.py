"""``batchscope calibrate``: cost files from measured operator tables, and how far runs are off measured ones."""

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


@calibrate.command("validate", short_help="Measured runs against their simulation, with the errors.")
@click.argument("files", nargs=-1, metavar="[FILE.jsonl]...")
@click.option("--set", "named", metavar="NAME", help="A named set, e.g. argonne (docs/validate.md lists them).")
@click.option("--data", type=click.Path(), help="Folder of the measured data of a set.  [default: $BATCHSCOPE_DATA]")
@click.option("--run", metavar="FILE", help="Result of a load generator, or requests that a server recorded.")
@click.option("--format", "kind", metavar="NAME", help="What wrote it: vllm-bench, guidellm, aiperf, llmservingsim.")
@click.option("--config", metavar="RUN.toml", help="Engine, model and hardware of the server of --run.")
@click.option("--part", type=click.IntRange(1), help="Which benchmark of a guidellm report.")
@click.option("--fit-host", is_flag=True, help="Fit the host's time to --run before comparing.")
@click.option("--vary-pool/--no-vary-pool", default=True, help="Also with 5 % fewer and more KV blocks.")
def validate(
    files: tuple[str, ...],
    named: str | None,
    data: str | None,
    run: str | None,
    kind: str | None,
    config: str | None,
    part: int | None,
    fit_host: bool,
    vary_pool: bool,
) -> None:
    """Run measured cases, a named set of them, or a recorded run through the simulator, and print the errors.

    Formats of cases and results, and what the errors mean: docs/validate.md.
    """
    from importlib import import_module

    command = import_module("calibrate.validation.command")
    if (len(files) > 0) + (named is not None) + (run is not None) != 1:
        raise click.UsageError("give files of measured cases, or --set NAME, or --run FILE")
    if run is not None:
        click.echo(command.validate_run(run, kind, config, part=part, fit_host=fit_host))
    elif named is not None:
        click.echo(command.validate_set(named, data))
    else:
        click.echo(command.validate_files(files, vary_pool=vary_pool))
