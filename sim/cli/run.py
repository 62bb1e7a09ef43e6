"""``batchscope run``: one workload under one policy."""

from __future__ import annotations

import sys

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", required=False, type=click.Path(dir_okay=False))
@click.option("--trace", type=click.Path(dir_okay=False), help="Trace file (CSV, JSONL, Azure; .gz too).")
@click.option("--policy", help="Preset (batchscope policies list) or FILE.py:CLASS.  [default: vllm-0.11]")
@click.option("--model", help="Model of the catalog.  [default: llama-2-7b]")
@click.option("--hardware", help="Card of the catalog.  [default: a100-80gb]")
@click.option("--out", type=click.Path(file_okay=False), help="New folder for the record.  [default: runs/PRESET-N]")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any key of RUN.toml, e.g. engine.max_num_seqs=64."
)
@click.option("--json", "as_json", is_flag=True, help="Print summary.json; without --out write no folder.")
def run(
    config: str | None,
    trace: str | None,
    policy: str | None,
    model: str | None,
    hardware: str | None,
    out: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Simulate one workload under one policy: CONFIG is a RUN.toml; options and --set come on top of it."""
    from sim.api import prepare, run_setup
    from sim.config import load_config
    from sim.progress import ProgressLine
    from sim.runs import next_folder
    from sim.summary import to_json

    loaded = load_config(config, overrides, trace=trace, policy=policy, model=model, hardware=hardware)
    if out is None and not as_json:
        out = str(next_folder(loaded))
    setup = prepare(loaded)
    progress = ProgressLine(setup.workload.num_requests)
    result = run_setup(setup, out=out, progress=progress)
    progress.close()
    if as_json:
        click.echo(to_json(result.summary), nl=False)
    else:
        from sim.cli.tables import run_table

        click.echo(run_table(result))
    if result.status in ("engine_died", "stuck"):
        click.echo(f"batchscope: {result.status}: {result.message}", err=True)
        sys.exit(3)
