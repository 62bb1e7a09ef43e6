"""The workload of a run: rows from a trace, a profile or a generator, with every rule of ``[workload]`` applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, repeat
from typing import TYPE_CHECKING, NamedTuple

from policies.core.errors import ConfigError, TraceError
from traces.workload.arrivals import constant_arrivals, gamma_arrivals, poisson_arrivals
from traces.workload.lengths import draw_lengths
from traces.workload.limits import MaxTokensRule, resolve_max_tokens
from traces.workload.rows import TraceRow
from traces.workload.spec import OverLength, WorkloadSpec
from traces.workload.streams import stream
from traces.workload.textfile import sha256_of

if TYPE_CHECKING:
    from traces.workload.readers import Trace

EXACT_LIMITS = (
    "output limits were assumed exact: max_tokens = the true output length (see workload.max_tokens)"
)


DEFAULT_REQUESTS = 20_000
"""A profile sends as many requests as its trace has, but no more than these, unless ``num_requests`` says so."""


class Workload(NamedTuple):
    """What the world sends.

    ``rows()`` starts again each time and yields rows in order of arrival, each with ``max_tokens`` resolved.
    With ``concurrency`` set the loop is closed: that many clients each take the next row when their last
    answer was delivered and ``think_time_s`` has passed; every ``arrival_s`` is then 0. ``num_requests`` is
    how many rows come. ``notices`` are one-line remarks for the user.
    """

    rows: Callable[[], Iterator[TraceRow]]
    num_requests: int
    notices: tuple[str, ...]
    concurrency: int | None
    think_time_s: float
    description: str
    max_tokens_rule: MaxTokensRule
    over_length: OverLength


def build_source(spec: WorkloadSpec, max_model_len: int) -> Workload:
    """The workload that ``spec`` describes, for a model of ``max_model_len`` tokens.

    Raises TraceError when the trace cannot be read, which is found here and not in the middle of a run, and
    ConfigError when a rule does not fit the source.
    """
    if spec.trace:
        return _from_trace(spec, spec.trace, max_model_len)
    return _from_profile(spec, spec.profile, max_model_len) if spec.profile else _from_generator(spec, max_model_len)


def source_identity(spec: WorkloadSpec) -> dict[str, str]:
    """``trace_sha256`` or ``profile_sha256``: which content a file of the workload had; none for what is no file."""
    from pathlib import Path

    for name, path in (("trace", spec.trace), ("profile", spec.profile)):
        if path is not None and (name == "trace" or Path(path).is_file()):
            return {f"{name}_sha256": sha256_of(path)}
    return {}


def _from_trace(spec: WorkloadSpec, path: str, max_model_len: int) -> Workload:
    from traces.workload.readers import open_trace

    trace = open_trace(path)
    if not trace.has_arrivals and not spec.concurrency:
        raise TraceError(
            f"{path}: has lengths but no arrival times; give workload.concurrency for a closed loop, or make a profile "
            "of it ('batchscope traces fit') and give workload.rate_per_s"
        )
    _check_rule_against(trace, spec.max_tokens)
    notices = trace.notices + _limit_notices(spec.max_tokens, trace)
    if spec.concurrency and trace.has_parents:
        notices += ("parent_id was ignored: in a closed loop each client takes the next row",)

    num_requests = trace.num_rows if spec.limit is None else min(spec.limit, trace.num_rows)

    def rows() -> Iterator[TraceRow]:
        return _adapted(islice(trace.rows, num_requests), spec, max_model_len)

    return Workload(
        rows=rows,
        num_requests=num_requests,
        notices=notices,
        concurrency=spec.concurrency,
        think_time_s=spec.think_time_s,
        description=f"{path} ({trace.format})" + _how_sent(spec),
        max_tokens_rule=spec.max_tokens,
        over_length=spec.over_length,
    )


def _from_profile(spec: WorkloadSpec, name: str, max_model_len: int) -> Workload:
    from traces.workload.profile import load_profile
    from traces.workload.profile_rows import profile_arrivals, profile_rows

    profile, arrivals = load_profile(name), None
    rate = 0.0
    if spec.generator is None and not spec.concurrency:
        if profile.arrivals is None and spec.rate_per_s is None:
            raise ConfigError(f"workload.rate_per_s is missing: profile {profile.name} has no arrivals of its own")
        rate = spec.rate_scale * (spec.rate_per_s or (profile.arrivals.rate_per_s if profile.arrivals else 0.0))
        arrivals = profile.arrivals

    def drawn() -> Iterator[TraceRow]:
        times = profile_arrivals(arrivals, rate, spec.seed) if arrivals else _arrivals(spec)
        return profile_rows(profile, times, spec.seed, spec.abort_after_s)

    how = f" at {rate:g}/s" if rate else f", sent by {spec.generator}" if spec.generator else ""
    wanted = min(profile.requests, DEFAULT_REQUESTS)
    workload = _synthetic(spec, drawn, wanted, max_model_len, f"profile {profile.name}{how}")
    origin = f" ({profile.source}; {profile.licence})" if profile.source else ""
    too_long = profile.share_of_prompts_above(max_model_len - 1)
    notices = [f"requests are drawn after profile {profile.name}{origin}"]
    if too_long >= 0.001:
        notices.append(f"about {100 * too_long:.2g} % of its prompts exceed max_model_len = {max_model_len:,}")
    return workload._replace(notices=(*notices, *workload.notices))


def _from_generator(spec: WorkloadSpec, max_model_len: int) -> Workload:
    rate = f" at {spec.rate_per_s * spec.rate_scale:g}/s" if spec.rate_per_s else ""
    cv = f", cv {spec.cv:g}" if spec.cv else ""
    description = f"{spec.generator}{rate}{cv}, prompt {spec.prompt}, output {spec.output}"
    return _synthetic(spec, lambda: _generated(spec), None, max_model_len, description)


def _synthetic(
    spec: WorkloadSpec,
    endless: Callable[[], Iterator[TraceRow]],
    default_requests: int | None,
    max_model_len: int,
    description: str,
) -> Workload:
    """The first of ``endless`` rows whose limits are the true lengths."""
    if spec.max_tokens == "trace":
        raise ConfigError(
            "workload.max_tokens = 'trace': a generator or profile has no such column; use 'output' or a number"
        )
    wanted = default_requests if spec.num_requests is None else spec.num_requests
    num_requests = min(count for count in (wanted, spec.limit) if count is not None)

    def rows() -> Iterator[TraceRow]:
        generated = islice(endless(), num_requests)
        return generated if spec.max_tokens in (None, "output") else _adapted(generated, spec, max_model_len)

    return Workload(
        rows=rows,
        num_requests=num_requests,
        notices=_limit_notices(spec.max_tokens, None),
        concurrency=spec.concurrency,
        think_time_s=spec.think_time_s,
        description=description + (_how_sent(spec) if spec.concurrency else ""),
        max_tokens_rule=spec.max_tokens,
        over_length=spec.over_length,
    )


def _generated(spec: WorkloadSpec) -> Iterator[TraceRow]:
    """Endless rows whose limit is the true length; lazy, so their number costs no memory."""
    assert spec.prompt is not None
    assert spec.output is not None
    prompts = draw_lengths(spec.prompt, stream(spec.seed, "prompt_lengths"))
    outputs = draw_lengths(spec.output, stream(spec.seed, "output_lengths"))
    patience = spec.abort_after_s
    new = tuple.__new__  # the constructor of a NamedTuple takes three times as long
    for arrival, prompt, output in zip(_arrivals(spec), prompts, outputs, strict=True):
        yield new(TraceRow, (arrival, prompt, output, output, 0, "", "", None, (), patience, None, None))


def _arrivals(spec: WorkloadSpec) -> Iterator[float]:
    if spec.concurrency:
        return repeat(0.0)
    assert spec.rate_per_s is not None
    rate = spec.rate_per_s * spec.rate_scale
    if spec.generator == "constant":
        return constant_arrivals(rate)
    if spec.generator == "gamma":
        assert spec.cv is not None
        return gamma_arrivals(rate, spec.cv, stream(spec.seed, "arrivals"))
    return poisson_arrivals(rate, stream(spec.seed, "arrivals"))


def _adapted(rows: Iterator[TraceRow], spec: WorkloadSpec, max_model_len: int) -> Iterator[TraceRow]:
    """The rows of a trace with rate, limits and patience of the spec."""
    rule, patience, closed = spec.max_tokens, spec.abort_after_s, spec.concurrency is not None
    rate_scale = spec.rate_scale if spec.trace else 1.0
    new = tuple.__new__
    for row in rows:
        arrival, prompt, output, limit, priority, client, session, parent, segments, own_patience, *slo = row
        if rule is not None or limit is None:
            limit = resolve_max_tokens(rule, row, max_model_len)
        if closed:
            arrival, parent = 0.0, None
        if own_patience is None:
            own_patience = patience
        arrival /= rate_scale
        yield new(
            TraceRow,
            (arrival, prompt, output, limit, priority, client, session, parent, segments, own_patience, *slo),
        )


def _check_rule_against(trace: Trace, rule: MaxTokensRule) -> None:
    if rule == "trace" and trace.num_without_max_tokens:
        raise TraceError(
            f"{trace.path}: workload.max_tokens = 'trace', but {trace.num_without_max_tokens:,} of "
            f"{trace.num_rows:,} rows have no max_tokens; use 'output', 'model', a number or 'xF'"
        )


def _limit_notices(rule: MaxTokensRule, trace: Trace | None) -> tuple[str, ...]:
    """Where limits equal the true lengths, a reserving policy looks better than any real one: say so."""
    missing = trace.num_without_max_tokens if trace else 1
    if rule not in (None, "output") or (rule is None and not missing):
        return ()
    if rule is None and trace and missing < trace.num_rows:
        return (f"{missing:,} of {trace.num_rows:,} rows have no max_tokens; for these {EXACT_LIMITS}",)
    return (EXACT_LIMITS,)


def _how_sent(spec: WorkloadSpec) -> str:
    if spec.concurrency:
        return f", closed loop of {spec.concurrency} clients, think time {spec.think_time_s:g} s"
    return "" if spec.rate_scale == 1 else f", rate x{spec.rate_scale:g}"
