"""The command line. Verbs are loaded when they are called, so that ``--help`` costs next to nothing."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NamedTuple

import click

from policies.core.errors import RunError, UserError, closest
from sim.cli.group import VerbGroup


class Verb(NamedTuple):
    """Where a command lives (``module:function``) and its line in the overview."""

    target: str
    summary: str


VERBS = {
    "demo": Verb("sim.cli.demo:demo", "Static, Orca and paged batching side by side on a built-in workload."),
    "run": Verb("sim.cli.run:run", "Simulate one workload under one policy."),
    "execute": Verb("calibrate.execute_cli:execute", "The same RUN.toml, or one prompt, on a real model."),
    "report": Verb("sim.cli.report:report", "Rebuild the page of a run; write its timeline for Perfetto."),
    "compare": Verb("sim.cli.compare:compare", "Several runs in one picture, with paired differences."),
    "explain": Verb("sim.cli.explain:explain", "Who waited for what, and why: one request or one step of a run."),
    "diagnose": Verb("sim.cli.diagnose:diagnose", "What limits a run, and what helps, each advice simulated."),
    "sweep": Verb("sim.cli.sweep:sweep", "Many runs that differ in some keys: grid, random or search; resumable."),
    "diff": Verb("sim.cli.diff:diff", "First differing decision of two runs, or of a measured run and its policy."),
    "claims": Verb("sim.cli.claims:claims", "Audit headline claims about continuous batching against runs and bounds."),
    "capacity": Verb("sim.cli.capacity:capacity", "Highest rate, fewest replicas or cheapest card within limits."),
    "keys": Verb("sim.cli.keys:keys", "List every key of RUN.toml and --set: kind, default, meaning."),
    "traces": Verb("sim.cli.traces:traces", "List workload profiles; inspect, make, convert and fit traces."),
    "policies": Verb("sim.cli.policies:policies", "List and explain presets; check decisions against recorded logs."),
    "hardware": Verb("sim.cli.hardware:hardware", "List cards; print every term of one card's costs and KV pool."),
    "calibrate": Verb("sim.cli.calibrate:calibrate", "Fit cost models to measured operator tables."),
}


class LazyGroup(VerbGroup):
    """A group whose commands are imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module, function = verb.target.split(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])


def _print_version(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    from policies.core import rows

    try:
        found = f"version {version('batchscope')}"
    except PackageNotFoundError:
        found = "not installed, running from a checkout"
    click.echo(f"batchscope, {found}, {'interpreted' if (rows.__file__ or '').endswith('.py') else 'compiled'}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show it.")
def cli() -> None:
    """Run one LLM scheduling policy in a simulator and see what it does to latency, throughput and memory."""


def main() -> None:
    """Entry point: what a user or a run did ends in one line, with its exit code; bugs keep their traceback, broken
    contracts among them."""
    # numpy's BLAS starts a thread a core when it is loaded, for matrix products that nothing here makes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _check_packages()
    try:
        cli(prog_name="batchscope", standalone_mode=False)
    except (UserError, RunError) as error:
        _end(f"batchscope: {error}", error.exit_code)
    except click.ClickException as error:
        _end(_usage(error), 2)
    except (click.Abort, KeyboardInterrupt):
        _end("batchscope: interrupted", 130)
    except BrokenPipeError:
        _close_quietly()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _end(f"batchscope: {where}{error.strerror or error}; check the path, its rights and the room on its disk", 2)


def _end(message: str, exit_code: int) -> None:
    """Exit with a message in one line, whatever a user's names may hold."""
    click.echo(message if message.startswith("Usage:") else " ".join(message.split()), err=True)
    sys.exit(exit_code)


def _usage(error: click.ClickException) -> str:
    """A usage error in one line; a group that was called without a command says what there is."""
    message = error.format_message()
    if message.startswith("Usage:"):
        return message
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "batchscope"
    if isinstance(error, click.NoSuchOption):
        message = f"No such option '{error.option_name}'{_meant(error)}"
    return f"batchscope: {' '.join(message.split()).rstrip('.')}; see '{command} --help'"


def _meant(error: click.NoSuchOption) -> str:
    """The option that was meant, by its letters: dashes alone make no two options alike."""
    parameters = error.ctx.command.params if error.ctx else ()
    names = [name for parameter in parameters for name in parameter.opts if name.startswith("--")]
    hint = closest(error.option_name.lstrip("-"), [name.removeprefix("--") for name in names])
    return hint.replace("mean '", "mean '--")


def _close_quietly() -> None:
    """Whoever read our output went away: say nothing, not even when the interpreter flushes its streams."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _check_packages() -> None:
    """Other distributions own the import names traces, policies and calibrate; mixing them would fail obscurely."""
    from importlib.util import find_spec
    from pathlib import Path

    home = Path(__file__).resolve().parents[2]
    for name in ("policies", "traces", "sim", "gpu_backend", "calibrate"):
        spec = find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parents[1] != home:
            where = "is missing" if spec is None else f"comes from {spec.origin}"
            _end(
                f"batchscope: package '{name}' {where}, not from {home}; another distribution owns that name: "
                "install batchscope in a virtual environment of its own",
                2,
            )


if __name__ == "__main__":
    main()
