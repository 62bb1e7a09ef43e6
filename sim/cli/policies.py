"""``batchscope policies``: presets, what they do, and proof against recorded decisions."""

from __future__ import annotations

import sys

import click

from sim.cli.group import verb_group


@verb_group()
def policies() -> None:
    """List and explain presets; check decisions against recorded logs."""


@policies.command("list", short_help="All presets, by system and version.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of all presets, as show --json has each.")
def list_presets(as_json: bool) -> None:
    """All presets by system: name, version, and what each does."""
    from policies.presets import describe_all, presets, to_dict

    click.echo(_json([to_dict(preset) for preset in presets()]) if as_json else describe_all())


@policies.command("show", short_help="What preset NAME models, and its defaults.")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show(name: str, as_json: bool) -> None:
    """What preset NAME models, its defaults, and how it differs from the real engine."""
    from policies.presets import describe, preset, to_dict

    chosen = preset(name)
    click.echo(_json(to_dict(chosen)) if as_json else describe(chosen))


def _json(value: object) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=False)


@policies.command("conform", short_help="Replay recorded decision LOGS step by step.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
def conform(logs: tuple[str, ...]) -> None:
    """Replay recorded decision LOGS step by step; exit 1 at any difference, which is printed in full."""
    from pathlib import Path

    from policies.conformance.replay import conform as check

    sys.exit(check([Path(log) for log in logs], click.echo))
