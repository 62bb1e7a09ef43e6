"""``batchscope traces``: profiles and formats; look into a trace, make, convert and summarize one."""

from __future__ import annotations

import sys

import click

from sim.cli.group import verb_group


@verb_group()
def traces() -> None:
    """List workload profiles and trace formats; inspect, make, convert and fit traces."""


@traces.command("list", short_help="Workload profiles with their figures, and the formats that are read.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_profiles(name: str | None, as_json: bool) -> None:
    """All workload profiles and the formats that are read; or profile NAME (or FILE.json) in full."""
    from sim.cli.traces_text import describe_formats, describe_profile, describe_profiles, figures
    from traces.workload.profile import load_profile, shipped

    profiles = [load_profile(known) for known in ([name] if name else shipped())]
    if as_json:
        click.echo(_json([figures(profile) for profile in profiles]))
    elif name:
        click.echo(describe_profile(profiles[0], name))
    else:
        click.echo(f"{describe_profiles(profiles)}\n\n{describe_formats()}")


@traces.command("inspect", short_help="What FILE holds, and what is wrong in it.")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def inspect(file: str, as_json: bool) -> None:
    """Counts, rate, lengths, bursts and shared prefixes of a trace, and rows that cannot be read (exit 1 if any)."""
    from sim.cli.traces_text import describe_trace
    from traces.workload.inspection import inspect_trace

    found = inspect_trace(file)
    click.echo(_json(found.to_dict()) if as_json else describe_trace(found))
    sys.exit(1 if found.num_invalid else 0)


@traces.command("synth", short_help="Write a trace from a profile or a generator.")
@click.argument("config", required=False)
@click.option("--profile", metavar="NAME", help="A profile of 'traces list', or FILE.json.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any key of [workload].")
@click.option("--out", required=True, metavar="FILE", help="New file: .csv or .jsonl, .gz too.")
def synth(config: str | None, profile: str | None, overrides: tuple[str, ...], out: str) -> None:
    """Write the requests that [workload] of CONFIG, --profile and --set describe; 'run --trace' sends the same."""
    from sim.synth import synthesize
    from traces.workload.write import check_ending

    check_ending(out)
    for line in synthesize(out, config, profile, overrides):
        click.echo(line)


@traces.command("convert", short_help="Write FILE in this project's own CSV or JSON lines.")
@click.argument("file")
@click.option("--out", required=True, metavar="FILE", help="New file: .csv or .jsonl, .gz too.")
def convert(file: str, out: str) -> None:
    """Write a trace of any format that is read in this project's own CSV or JSON lines, in order of arrival."""
    from policies.core.errors import TraceError
    from traces.workload.readers import open_trace
    from traces.workload.write import check_ending, write_trace

    check_ending(out)
    trace = open_trace(file)
    if not trace.has_arrivals:
        raise TraceError(f"{file}: has no arrival times, which the own formats need; see 'batchscope traces fit'")
    click.echo(f"{out}: {write_trace(out, trace.rows):,} rows of {file} ({trace.format})")


@traces.command("fit", short_help="Make a workload profile of a trace.")
@click.argument("file")
@click.option("--out", required=True, metavar="FILE.json", help="New file for the profile.")
@click.option("--name", help="Its name.  [default: that of the file]")
@click.option("--about", default="", help="What the trace is, in a line.")
@click.option("--source", default="", help="Where the trace is from.")
@click.option("--licence", default="", help="Licence of the trace.")
@click.option("--recorded", default="", help="Date of the trace.")
def fit(file: str, out: str, name: str | None, about: str, source: str, licence: str, recorded: str) -> None:
    """Make a profile: a few kilobytes of quantiles that say how long, how often and how alike requests are."""
    from sim.synth import fit_file

    for line in fit_file(file, out, name=name, about=about, source=source, licence=licence, recorded=recorded):
        click.echo(line)


def _json(value: object) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=False)
