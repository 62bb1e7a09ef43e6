"""``batchscope calibrate``: cost files from measured operator tables, and how far runs are off measured ones."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from sim.cli.group import verb_group


@verb_group()
def calibrate() -> None:
    """Measure a card, fit cost models to operators, check them against measured runs."""


@calibrate.command("fit", short_help="Fit every term of a step to measured operators.")
@click.option("--profile", type=click.Path(dir_okay=False), help="Profile of `calibrate measure` or `import`.")
@click.option("--data", type=click.Path(), help="Instead: folder of the known operator tables (docs/calibrate.md).")
@click.option("--model", help="With --data: model of the catalog.  [default: llama-2-7b]")
@click.option("--hardware", help="With --data: card of the catalog.  [default: a100-80gb]")
@click.option("--tp", type=click.IntRange(1), help="With --data: GPUs of a tensor-parallel group.  [default: 1]")
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="Cost file to write.")
@click.option("--report", type=click.Path(dir_okay=False), help="Page to write, with each held-out point's residual.")
def fit(
    profile: str | None,
    data: str | None,
    model: str | None,
    hardware: str | None,
    tp: int | None,
    out: str,
    report: str | None,
) -> None:
    """Fit every term of a step, hold points out, print the errors, and write a cost file.

    `run --set hardware.cost_model=FILE` takes the file. What the fit does and what its errors mean: docs/calibrate.md.
    """
    run_fit = import_module("calibrate.cli").run_fit
    click.echo(run_fit(data, model, hardware, out, tp, profile=profile, report=report))


@calibrate.command("import", short_help="Make a profile of other tools' operator tables.")
@click.argument("tool", metavar="TOOL")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--model", required=True, help="Model of the catalog.")
@click.option("--hardware", required=True, help="Card of the catalog that the tables were measured on.")
@click.option("--tp", default=1, show_default=True, type=click.IntRange(1), help="GPUs of a tensor-parallel group.")
@click.option("--date", help="When they were measured or published, for the provenance.")
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="Profile to write; gzipped as FILE.gz.")
def import_(
    tool: str, files: tuple[str, ...], model: str, hardware: str, tp: int, date: str | None, out: str
) -> None:
    """Make a profile of operator tables of TOOL: vidur, aiconfigurator, llmservingsim, splitwise-sim, or batchscope
    (profiles, to join them).

    With aiconfigurator a FILE may be `installed`: the tables of the aiconfigurator-core of this environment.
    """
    click.echo(import_module("calibrate.cli").run_import(tool, files, model, hardware, tp, out, date))


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
    command = import_module("calibrate.validation.command")
    if (len(files) > 0) + (named is not None) + (run is not None) != 1:
        raise click.UsageError("give files of measured cases, or --set NAME, or --run FILE")
    if run is not None:
        click.echo(command.validate_run(run, kind, config, part=part, fit_host=fit_host))
    elif named is not None:
        click.echo(command.validate_set(named, data))
    else:
        click.echo(command.validate_files(files, vary_pool=vary_pool))


@calibrate.command("measure", short_help="Time the executor's steps on this card or CPU.")
@click.argument("config", required=False)
@click.option("--out", required=True, type=click.Path(dir_okay=False), help="Profile to write; gzipped as FILE.gz.")
@click.option("--seconds", default=120.0, show_default=True, type=click.FloatRange(5.0), help="Time to measure for.")
@click.option("--model", metavar="NAME", help="Shape of the catalog, for random weights.  [default: llama-2-7b]")
@click.option("--policy", metavar="NAME", help="Preset whose limits say how far to measure.  [default: vllm-0.11]")
@click.option("--hardware", metavar="CARD", help="The card's name in the catalog.  [default: cpu on a CPU]")
@click.option("--weights", metavar="FOLDER", default="random", help="Hugging Face folder with safetensors, or random.")
@click.option("--device", metavar="NAME", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option("--ops", metavar="NAME", default="auto", help="auto, torch or triton.")
@click.option("--dtype", metavar="NAME", default="auto", help="auto, float32, float16 or bfloat16.")
@click.option("--graphs/--no-graphs", default=True, help="Decode through CUDA graphs.  [default: on CUDA]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any key of RUN.toml.")
def measure(config: str | None, out: str, seconds: float, hardware: str | None, **given: Any) -> None:
    """Time decode steps, chunks, both, unequal contexts, the head, the host and swapping, and write a profile.

    CONFIG is a RUN.toml whose model and engine limits are measured. Then `calibrate fit --profile FILE` makes the cost
    file that `run --set hardware.name=CARD --set hardware.cost_model=FILE` takes.
    """
    run = import_module("calibrate.measure").run_measure
    click.echo(run(config, out, seconds, hardware, tell=lambda text: click.echo(text, err=True), **given))
