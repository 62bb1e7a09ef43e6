"""Files made from workloads: synthetic traces, and profiles of traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.core.errors import ConfigError, TraceError
from sim.config import load_config
from traces.workload.rows import TraceRow
from traces.workload.source import EXACT_LIMITS, build_source


def synthesize(out: str, config: str | None, profile: str | None, overrides: Sequence[str]) -> Iterator[str]:
    """Write the requests of a workload to a new trace file; yields what to tell the user. Raises a UserError.

    Limits are written where ``workload.max_tokens`` sets some; else a run says, as with the workload itself, that they
    are assumed exact.
    """
    from traces.workload.write import write_trace

    remarks: list[str] = []
    loaded = load_config(config, overrides, remarks, profile=profile).workload
    if loaded.trace is not None:
        raise ConfigError("workload.trace: is a trace already; give a profile or a generator, or see 'traces convert'")
    if loaded.concurrency:
        raise ConfigError("workload.concurrency: a closed loop has no arrival times to write; give a rate")
    if loaded.max_tokens == "model":
        raise ConfigError("workload.max_tokens = 'model': depends on the run; leave it out here and give it to the run")
    keeps_limits = loaded.max_tokens not in (None, "output")
    workload = build_source(loaded, 1 << 31)

    class Rows:
        def __iter__(self) -> Iterator[TraceRow]:
            rows = workload.rows()
            return rows if keeps_limits else (row._replace(max_tokens=None) for row in rows)

    num_rows = write_trace(out, Rows())
    yield f"{out}: {num_rows:,} requests, {workload.description}"
    for remark in (*remarks, *workload.notices):
        if remark != EXACT_LIMITS:
            yield f"note: {remark}"
    yield f"run it: batchscope run --trace {out}"


def fit_file(
    file: str, out: str, *, name: str | None, about: str, source: str, licence: str, recorded: str
) -> Iterator[str]:
    """Write the profile of a trace to a new file; yields what to tell the user. Raises a UserError."""
    from pathlib import Path

    from traces.workload.fields import HASH_BLOCK_TOKENS
    from traces.workload.fit import Label, fit_profile
    from traces.workload.formats import MOONCAKE
    from traces.workload.profile import to_json
    from traces.workload.readers import open_trace

    if not out.endswith(".json"):
        raise TraceError(f"{out}: end the name in .json")
    trace = open_trace(file)
    label = Label(name or Path(file).name.partition(".")[0], about, source, licence, recorded)
    block_tokens = HASH_BLOCK_TOKENS if trace.format == MOONCAKE.name else 16
    profile = fit_profile(trace.rows, label, has_arrivals=trace.has_arrivals, block_tokens=block_tokens)
    try:
        with Path(out).open("x", encoding="utf-8") as stream:
            stream.write(to_json(profile))
    except FileExistsError:
        raise TraceError(f"{out}: exists; name a new file") from None
    yield f"{out}: profile {profile.name} of {profile.requests:,} requests"
    for lost in profile.approximated:
        yield f"note: {lost}"
    rate = "" if profile.arrivals else " --set workload.rate_per_s=RATE"
    yield f"run it: batchscope run --profile {out}{rate}"
