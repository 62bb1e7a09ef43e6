"""``batchscope policies``: presets, what they do, and proof against recorded decisions."""

from __future__ import annotations

import sys

import click

from sim.cli.group import verb_group


@verb_group()
def policies() -> None:
    """List and explain presets; check decisions against recorded logs."""


@policies.command("list")
def list_presets() -> None:
    """All presets: the system and version each stands for, and its source."""
    from policies.presets import describe_all

    click.echo(describe_all())


@policies.command("show")
@click.argument("name")
def show(name: str) -> None:
    """What preset NAME models, its defaults, and how it differs from the real engine."""
    from policies.presets import describe, preset

    click.echo(describe(preset(name)))


@policies.command("conform")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
def conform(logs: tuple[str, ...]) -> None:
    """Replay recorded decision LOGS step by step; exit 1 at any difference, which is printed in full."""
    from pathlib import Path

    from policies.conformance.replay import conform as check

    sys.exit(check([Path(log) for log in logs], click.echo))
