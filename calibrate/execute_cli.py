"""``batchscope execute``: one workload, or one question, on a real model."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from calibrate.execute import Options
    from sim.result import Result

_SOURCES = ("trace", "profile", "policy", "model")
_HOW = ("device", "ops", "dtype", "weights", "seed", "temperature", "top_p", "batch_invariant", "graphs", "overlap")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", required=False)
@click.option("--trace", metavar="FILE", help="Trace file, as for 'run'.")
@click.option("--profile", metavar="NAME", help="Requests like a real trace's, as for 'run'.")
@click.option("--policy", metavar="NAME", help="A preset (policies list) or FILE.py:CLASS.  [default: vllm-0.11]")
@click.option("--model", metavar="NAME", help="Shape of the catalog, for random weights.  [default: llama-2-7b]")
@click.option("--weights", metavar="FOLDER", default="random", help="Hugging Face folder with safetensors, or random.")
@click.option("--device", metavar="NAME", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option("--ops", metavar="NAME", default="auto", help="auto, torch or triton.")
@click.option("--dtype", metavar="NAME", default="auto", help="auto, float32, float16 or bfloat16.")
@click.option("--batch-invariant", is_flag=True, help="Products in fixed tiles: no token depends on its batch.")
@click.option("--graphs/--no-graphs", default=True, help="Decode through CUDA graphs.  [default: on CUDA]")
@click.option("--overlap/--no-overlap", default=True, help="Plan ahead where the policy does.  [default: overlap]")
@click.option("--seed", type=int, default=0, metavar="N", help="Of random weights, prompts and samples.  [default: 0]")
@click.option("--temperature", type=float, default=0.0, metavar="X", help="0: the most likely token.  [default: 0]")
@click.option("--top-p", type=float, default=1.0, metavar="X", help="Share of probability to draw from.  [default: 1]")
@click.option("--prompt", metavar="TEXT", help="Answer this text, token by token; needs --model-folder.")
@click.option("--model-folder", metavar="DIR", help="Folder with weights and tokenizer, for --prompt.")
@click.option("--max-tokens", type=int, default=256, metavar="N", help="Longest answer to --prompt.  [default: 256]")
@click.option("--out", metavar="FOLDER", help="New folder for the record.  [default: runs/PRESET-N; none for --prompt]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any key of RUN.toml.")
@click.option("--json", "as_json", is_flag=True, help="Print summary.json; without --out write no folder.")
@click.option("--report/--no-report", "page", default=None, help="Write report.html too.  [default: unless --json]")
def execute(config: str | None, **given: Any) -> None:
    """Run one workload on a real model, with real times: CONFIG is the RUN.toml of 'run'.

    A run without --weights draws them at random: times are those of the shape, and answers are as long as the workload
    says. With --prompt TEXT --model-folder DIR a model answers in the terminal.
    """
    from calibrate.execute import Options, check_choices

    options = Options(**{name: given[name] for name in _HOW})
    check_choices(options)
    sources = {name: given[name] for name in _SOURCES}
    if given["prompt"] is not None:
        from calibrate.execute_prompt import answer

        result = answer(
            given["prompt"],
            given["model_folder"],
            config,
            options,
            given["overrides"],
            out=given["out"],
            max_tokens=given["max_tokens"],
            quiet=given["as_json"],
            **sources,
        )
    else:
        rest = {name: given[name] for name in ("overrides", "out", "as_json", "page")}
        result = _run(config, options, **rest, **sources)
    _show(result, as_json=given["as_json"], is_answer=given["prompt"] is not None)


def _run(
    config: str | None,
    options: Options,
    *,
    overrides: tuple[str, ...],
    out: str | None,
    as_json: bool,
    page: bool | None,
    **sources: Any,
) -> Result:
    from contextlib import redirect_stdout
    from functools import partial
    from pathlib import Path

    from calibrate.execute import open_machine, prepare_on, run_on, with_weights
    from sim.config import load_config
    from sim.progress import ProgressLine
    from sim.runs import check_new, make_next

    if out is not None:
        check_new(Path(out))
    remarks: list[str] = []
    loaded = load_config(config, with_weights(overrides, options), remarks, **sources)
    with redirect_stdout(sys.stderr):
        machine = open_machine(loaded, options)
        setup = prepare_on(machine, loaded, remarks)
    folder = partial(make_next, loaded) if out is None and not as_json else out
    with redirect_stdout(sys.stderr), ProgressLine(setup.workload.num_requests, passed="") as progress:
        result = run_on(machine, setup, options, out=folder, progress=progress, interruptible=True)
    wanted = folder is not None and (not as_json if page is None else page)
    if wanted and result.summary["requests"]["offered"]:
        click.echo(f"report: {result.report()}", err=as_json)
    return result


def _show(result: Result, *, as_json: bool, is_answer: bool) -> None:
    """The summary or a table, and the exit code of the run."""
    from sim.summary import to_json

    if as_json:
        click.echo(to_json(result.summary), nl=False)
    elif not is_answer:
        from sim.cli.tables import run_table

        click.echo(run_table(result))
    if result.exit_code:
        status = "" if result.status == "completed" else f"{result.status}: "
        click.echo(f"batchscope: {status}{result.message}", err=True)
        sys.exit(result.exit_code)
