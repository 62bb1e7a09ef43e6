"""``batchscope policies``: presets, what they do, and proof against recorded decisions."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sim.cli.group import verb_group


@verb_group()
def policies() -> None:
    """List and explain presets; check decisions against recorded logs."""


@policies.command("list", short_help="All presets, by system and version.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of all presets, as show --json has each.")
def list_presets(as_json: bool) -> None:
    """All presets by system: name, version, and what each does; then the policies of other distributions."""
    from policies.plugins import describe_plugins
    from policies.presets import describe_all, presets, to_dict

    if as_json:
        click.echo(_json([to_dict(preset) for preset in presets()]))
    else:
        click.echo(describe_all() + describe_plugins())


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


@policies.command("check", short_help="Check a class of your own: FILE.py:CLASS.")
@click.argument("policy", metavar="FILE.py:CLASS")
@click.option("--preset", default=None, metavar="NAME", help="Whose parameters it gets.  [default: vllm-0.11]")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="engine.KEY or policy.KEY; repeatable.")
@click.option("--chunked", is_flag=True, help="It splits prompts: try budgets below the longest prompt.")
@click.option("--batch-end", is_flag=True, help="Its answers return together, when their batch ends.")
def check(policy: str, preset: str | None, overrides: tuple[str, ...], chunked: bool, batch_end: bool) -> None:
    """Check a class of your own, FILE.py:CLASS or the name of an entry point: a line for each of some 40 checks, and
    the first that fails in words, with the fewest requests that show it. Exit 1 if one fails."""
    from importlib.util import find_spec

    from policies.kit.hang import ends_hangs
    from policies.kit.own import own_kit
    from policies.kit.runner import run_checks
    from sim.config import load_config

    # The scenarios are the workload; a configuration has to name one.
    config = load_config({"workload": {"trace": "scenarios"}}, overrides, policy=policy)
    chosen = preset or config.engine.preset
    given = config.engine.to_dict()
    kit = own_kit(policy, chosen, given, config.policy.to_dict(), chunked=chunked, deliver_at_batch_end=batch_end)
    with ends_hangs(policy):
        exit_code = run_checks(kit, click.echo)
    if find_spec("hypothesis") is None:
        click.echo("note: there is no hypothesis here; with it, a test of policies.testing tries any number of other")
        click.echo("workloads: pip install 'batchscope[testing]'")
    sys.exit(exit_code)


@policies.command("conform", short_help="Replay recorded decision LOGS step by step.")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
def conform(logs: tuple[str, ...]) -> None:
    """Replay recorded decision LOGS step by step; exit 1 at any difference, which is printed in full."""
    from policies.conformance.replay import conform as check

    sys.exit(check([Path(log) for log in logs], click.echo))


@policies.command("record", short_help="Record a log from the vLLM installed here.")
@click.argument("out", metavar="OUT.jsonl", type=click.Path(path_type=Path))
@click.option("--like", metavar="LOG", type=click.Path(path_type=Path), help="Its requests and settings, once more.")
@click.option("--seed", default=0, show_default=True, help="Of random requests.")
@click.option("--requests", "num_requests", default=60, show_default=True, help="Number of random requests.")
@click.option("--aborts", default=0.0, show_default=True, help="Share of random requests that are given up.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the log; repeatable.")
def record(
    out: Path, like: Path | None, seed: int, num_requests: int, aborts: float, settings: tuple[str, ...]
) -> None:
    """Record what the scheduler of the vLLM installed here decides, on the CPU and without a model, into a new log for
    'policies conform'; see CONTRIBUTING.md."""
    from policies.conformance.installed_vllm import record_installed

    given = dict(map(_setting, settings))
    said = record_installed(
        out, like=like, settings=given, seed=seed, num_requests=num_requests, abort_share=aborts
    )
    click.echo(said)


def _setting(text: str) -> tuple[str, object]:
    """``KEY=VALUE``: a number, true, false, or a word."""
    import json

    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"'{text}' is not KEY=VALUE", param_hint="--set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
