"""Profiles, formats and trace files in words."""

from __future__ import annotations

from shlex import quote
from textwrap import wrap
from typing import Any

from sim.cli.tables import render
from sim.wording import digits, percent, seconds
from traces.workload.formats import CSV_FORMATS, JSON_FORMATS
from traces.workload.inspection import Inspection, Lengths
from traces.workload.profile import Profile
from traces.workload.quantiles import QuantileTable

_WIDTH = 110


def figures(profile: Profile) -> dict[str, Any]:
    """A profile in JSON types: what it is, and its key figures."""
    names = ("name", "about", "source", "licence", "recorded", "requests")
    return {
        **{name: getattr(profile, name) for name in names},
        "prompt_tokens": _quantiles(profile.prompt),
        "output_tokens": _quantiles(profile.output),
        "rate_per_s": profile.arrivals and profile.arrivals.rate_per_s,
        "gap_cv": profile.arrivals and profile.arrivals.gaps.cv(),
        "share_of_requests_with_shared_prefix": _shared(profile),
        "approximated": list(profile.approximated),
    }


def describe_profiles(profiles: list[Profile]) -> str:
    """One line a profile, and below them what each is and where it is from."""
    header = ["profile", "requests", "rate/s", "gaps' cv", "prompt p50", "p99", "output p50", "p99", "prefixes"]
    about = [
        f"  {profile.name}: {profile.about}\n      {profile.source}; {profile.licence}; recorded: {profile.recorded}"
        for profile in profiles
    ]
    table = render(header, [_row(profile) for profile in profiles])
    return "\n".join([table, "", *about, "", "batchscope run --profile NAME; 'traces list NAME' tells what is lost"])


def describe_profile(profile: Profile, given: str) -> str:
    """Everything about one profile but its tables; ``given`` is its name or path as the user gave it."""
    lines = [f"{profile.name}: {profile.about or 'not stated'}", *_facts(profile), "  only approximated:"]
    for lost in profile.approximated:
        lines += wrap(lost, _WIDTH, initial_indent="    - ", subsequent_indent="      ")
    rate = "" if profile.arrivals else " --set workload.rate_per_s=RATE"
    return "\n".join([*lines, f"run it: batchscope run --profile {quote(given)}{rate}"])


def _facts(profile: Profile) -> list[str]:
    arrivals, shared = profile.arrivals, _shared(profile)
    rate = "  arrivals: none; give workload.rate_per_s"
    if arrivals is not None:
        peak = max(arrivals.relative_rate) / (sum(arrivals.relative_rate) / len(arrivals.relative_rate))
        rate = (
            f"  arrivals: {digits(arrivals.rate_per_s)}/s over {seconds(arrivals.span_s)}, at most x{digits(peak)},"
            f" cv of the gaps {digits(arrivals.gaps.cv())}"
        )
    lines = [
        f"  source: {profile.source or 'not stated'}; licence: {profile.licence or 'not stated'};"
        f" recorded: {profile.recorded or 'not stated'}",
        f"  requests: {profile.requests:,}",
        f"  prompt tokens: {_in_words(profile.prompt)}",
        f"  output tokens: {_in_words(profile.output)}",
        rate,
    ]
    return lines if shared is None else [*lines, f"  requests that begin like an earlier one: {percent(shared)}"]


def _row(profile: Profile) -> list[str]:
    arrivals, shared = profile.arrivals, _shared(profile)
    lengths = (table.at(share) for table in (profile.prompt, profile.output) for share in (0.5, 0.99))
    return [
        profile.name,
        f"{profile.requests:,}",
        digits(arrivals.rate_per_s) if arrivals else "give one",
        digits(arrivals.gaps.cv()) if arrivals else "-",
        *(f"{length:,.0f}" for length in lengths),
        "-" if shared is None else percent(shared),
    ]


def _shared(profile: Profile) -> float | None:
    shares = profile.sharing and profile.sharing.share_of_requests
    return sum(shares) / len(shares) if shares else None


def _quantiles(table: QuantileTable) -> dict[str, float]:
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return {"mean": table.mean(), **{name: table.at(share) for name, share in shares.items()}, "max": table.values[-1]}


def _in_words(table: QuantileTable) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in _quantiles(table).items())


def describe_formats() -> str:
    """The formats that are read, by their columns."""
    lines = ["Formats that are read, plain or gzip, told by their columns (docs/traces.md):"]
    for known in (*CSV_FORMATS, *JSON_FORMATS):
        kind = "JSON lines" if known in JSON_FORMATS else "CSV"
        optional = f" [{', '.join(known.optional)}]" if known.optional else ""
        lines += wrap(
            f"{known.name:13} {kind}: {', '.join(known.required)}{optional}",
            _WIDTH, initial_indent="  ", subsequent_indent=" " * 16,
        )  # fmt: skip
    return "\n".join(lines)


def describe_trace(found: Inspection) -> str:
    """Figures of a trace, what is wrong in it, and the command that replays it."""
    lines = [f"{found.path}: {found.format}, {found.num_rows:,} requests"]
    if found.num_invalid:
        more = found.num_invalid - len(found.faults)
        rows = "row is invalid and was" if found.num_invalid == 1 else "rows are invalid and were"
        lines[0] = f"{found.path}: {found.format}, {found.num_rows:,} valid requests"
        lines.append(f"WARNING: {found.num_invalid:,} {rows} passed over here; a run stops at the first:")
        lines += [f"  {fault.removeprefix(found.path).removeprefix(', ')}" for fault in found.faults]
        lines += [f"  ... and {more:,} more"] * (more > 0)
    lines += [
        f"prompt tokens: {_tokens(found.prompt)}",
        f"output tokens: {_tokens(found.output)}",
        f"longest request: {found.longest_tokens:,} tokens",
        *_arrival_lines(found),
        *_content_lines(found),
        *(f"note: {notice}" for notice in found.notices),
        f"run it: {_command(found)}",
    ]
    return "\n".join(lines)


def _tokens(lengths: Lengths) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in lengths._asdict().items())


def _arrival_lines(found: Inspection) -> list[str]:
    arrivals = found.arrivals
    if arrivals is None:
        return ["arrivals: all at one time, or none: for a closed loop, or a profile at a rate of your own"]
    lines = [
        f"arrivals: {digits(arrivals.rate_per_s)}/s over {seconds(arrivals.span_s)}, at most"
        f" {arrivals.peak_rate_per_s:,.0f} in a second, cv of the gaps {digits(arrivals.cv)} (Poisson: 1)"
    ]
    if arrivals.dispersion:
        windows = ", ".join(f"{window_s} s: {digits(value)}" for window_s, value in arrivals.dispersion.items())
        lines.append(f"bursts: variance over mean of the counts (Poisson: 1) in windows of {windows}")
    return lines


def _content_lines(found: Inspection) -> list[str]:
    lines = []
    if found.num_with_hits:
        lines.append(
            f"shared prefixes: {percent(found.num_with_hits / found.num_rows)} of requests begin like an earlier one,"
            f" {percent(found.hit_share_of_tokens)} of all prompt tokens could come from a cache without bounds"
        )
    elif "segments" not in found.columns:
        lines.append("shared prefixes: not told (no segments); prefix caches find nothing")
    required = ("arrival_s", "prompt_tokens", "output_tokens", "segments")
    others = [f"{name} ({count:,})" for name, count in found.columns.items() if name not in required]
    lines.append(f"optional columns (rows with a value): {', '.join(others) or 'none'}")
    if "max_tokens" not in found.columns:
        lines.append("output limits: none; a run takes the true lengths, or what workload.max_tokens says")
    return lines


def _command(found: Inspection) -> str:
    command = f"batchscope run --trace {quote(found.path)}"
    if found.arrivals is None:
        command += " --set workload.concurrency=16"
    if found.num_with_hits:
        command += " --policy vllm-0.11"
    return command
