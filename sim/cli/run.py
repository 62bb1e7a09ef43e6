"""``batchscope run``: one workload under one policy."""

from __future__ import annotations

import sys

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", required=False)
@click.option("--trace", metavar="FILE", help="Trace file (CSV, JSONL, Azure, Mooncake; .gz too).")
@click.option("--profile", metavar="NAME", help="Requests like a real trace's (traces list), or FILE.json.")
@click.option("--policy", metavar="NAME", help="A preset (policies list) or FILE.py:CLASS.  [default: vllm-0.11]")
@click.option("--model", metavar="NAME", help="Model of the catalog.  [default: llama-2-7b]")
@click.option("--hardware", metavar="NAME", help="Card of the catalog.  [default: a100-80gb]")
@click.option("--vllm-args", metavar="TEXT", help="vLLM's own command line, e.g. '--max-num-seqs 128'.")
@click.option("--engine-log", metavar="FILE", help="Start-up log of a vLLM server: its KV blocks and settings.")
@click.option("--metrics-page", metavar="FILE", help="Saved /metrics page of a vLLM server: its KV blocks.")
@click.option("--out", metavar="FOLDER", help="New folder for the record.  [default: runs/PRESET-N]")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any key of RUN.toml, e.g. engine.max_num_seqs=64."
)
@click.option("--json", "as_json", is_flag=True, help="Print summary.json; without --out write no folder.")
@click.option("--report/--no-report", "page", default=None, help="Write report.html too.  [default: unless --json]")
def run(
    config: str | None,
    trace: str | None,
    profile: str | None,
    policy: str | None,
    model: str | None,
    hardware: str | None,
    vllm_args: str | None,
    engine_log: str | None,
    metrics_page: str | None,
    out: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
    page: bool | None,
) -> None:
    """Simulate one workload under one policy: CONFIG is a RUN.toml; options and --set come on top of it.

    'batchscope keys' lists every key of RUN.toml and --set.
    """
    from contextlib import redirect_stdout
    from pathlib import Path

    from sim.api import prepare, run_setup
    from sim.config import load_config
    from sim.progress import ProgressLine
    from sim.runs import check_new, make_next
    from sim.summary import to_json

    if out is not None:
        check_new(Path(out))
    remarks: list[str] = []
    taken: list[str] = []
    flags = {
        **{"trace": trace, "profile": profile, "policy": policy, "model": model, "hardware": hardware},
        **{"vllm_args": vllm_args, "engine_log": engine_log, "metrics_page": metrics_page},
    }
    loaded = load_config(config, overrides, remarks, taken=taken, **flags)
    for line in taken:
        click.echo(f"note: {line}", err=True)
    with redirect_stdout(sys.stderr):
        setup = prepare(loaded, remarks)
    if out is None and not as_json:
        out = str(make_next(loaded))
    wanted = out is not None and (not as_json if page is None else page)
    # A class from a file may print: that belongs to people, and the output of --json to programs.
    with redirect_stdout(sys.stderr), ProgressLine(setup.workload.num_requests) as progress:
        result = run_setup(setup, out=out, progress=progress, interruptible=True, keep=wanted)
    path = result.report() if wanted and result.summary["requests"]["offered"] else None
    if as_json:
        click.echo(to_json(result.summary), nl=False)
    else:
        from sim.cli.tables import run_table

        click.echo(run_table(result))
        if path is not None:
            click.echo(f"report: {path}")
    if result.exit_code:
        status = "" if result.status == "completed" else f"{result.status}: "
        click.echo(f"batchscope: {status}{result.message}", err=True)
        sys.exit(result.exit_code)
