"""The command line. Verbs are loaded when they are called, so that ``--help`` costs next to nothing."""

from __future__ import annotations

import importlib
import sys
from typing import NamedTuple

import click

from policies.core.errors import BatchscopeError


class Verb(NamedTuple):
    """Where a command lives (``module:function``) and its line in the overview."""

    target: str
    summary: str


VERBS = {
    "demo": Verb("sim.cli.demo:demo", "Static, Orca and paged batching side by side on a built-in workload."),
    "run": Verb("sim.cli.run:run", "Simulate one workload under one policy."),
    "policies": Verb("sim.cli.policies:policies", "List and explain presets; check decisions against recorded logs."),
    "hardware": Verb("sim.cli.hardware:hardware", "List cards; print every term of one card's costs and KV pool."),
    "calibrate": Verb("sim.cli.calibrate:calibrate", "Fit cost models to measured operator tables."),
}


class LazyGroup(click.Group):
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


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="batchscope", prog_name="batchscope")
def cli() -> None:
    """Run one LLM scheduling policy in a simulator and see what it does to latency, throughput and memory."""


def main() -> None:
    """Entry point: errors made on purpose end in one line, with their exit code."""
    _check_packages()
    try:
        cli(standalone_mode=False)
    except BatchscopeError as error:
        click.echo(f"batchscope: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("batchscope: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        click.echo(f"batchscope: {error.strerror}: {error.filename}", err=True)
        sys.exit(2)


def _check_packages() -> None:
    """Other distributions own the import names traces, policies and calibrate; mixing them would fail obscurely."""
    from importlib.util import find_spec
    from pathlib import Path

    home = Path(__file__).resolve().parents[2]
    for name in ("policies", "traces", "sim", "gpu_backend", "calibrate"):
        spec = find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).resolve().parents[1] != home:
            where = "is missing" if spec is None else f"comes from {spec.origin}"
            click.echo(
                f"batchscope: package '{name}' {where}, not from {home}; another distribution owns that name: "
                "install batchscope in a virtual environment of its own",
                err=True,
            )
            sys.exit(2)


if __name__ == "__main__":
    main()
