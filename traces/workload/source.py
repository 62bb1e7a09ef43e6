"""The workload of a run: rows from a trace or a generator, with every rule of ``[workload]`` applied."""

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

if TYPE_CHECKING:
    from traces.workload.readers import Trace

EXACT_LIMITS = (
    "output limits were assumed exact: max_tokens = the true output length (see workload.max_tokens)"
)


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
    return (
        _from_trace(spec, spec.trace, max_model_len) if spec.trace else _from_generator(spec, max_model_len)
    )


def _from_trace(spec: WorkloadSpec, path: str, max_model_len: int) -> Workload:
    from traces.workload.readers import open_trace

    trace = open_trace(path)
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


def _from_generator(spec: WorkloadSpec, max_model_len: int) -> Workload:
    if spec.max_tokens == "trace":
        raise ConfigError(
            "workload.max_tokens = 'trace': a generator has no such column; use 'output' or a number"
        )
    num_requests = min(count for count in (spec.num_requests, spec.limit) if count is not None)

    def rows() -> Iterator[TraceRow]:
        generated = islice(_generated(spec), num_requests)
        return generated if spec.max_tokens in (None, "output") else _adapted(generated, spec, max_model_len)

    rate = f" at {spec.rate_per_s * spec.rate_scale:g}/s" if spec.rate_per_s else ""
    cv = f", cv {spec.cv:g}" if spec.cv else ""
    return Workload(
        rows=rows,
        num_requests=num_requests,
        notices=_limit_notices(spec.max_tokens, None),
        concurrency=spec.concurrency,
        think_time_s=spec.think_time_s,
        description=f"{spec.generator}{rate}{cv}, prompt {spec.prompt}, output {spec.output}"
        + (_how_sent(spec) if spec.concurrency else ""),
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
        yield new(TraceRow, (arrival, prompt, output, output, 0, "", "", None, (), patience))


def _arrivals(spec: WorkloadSpec) -> Iterator[float]:
    if spec.generator == "closed-loop":
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
        arrival, prompt, output, limit, priority, client, session, parent, segments, own_patience = row
        if rule is not None or limit is None:
            limit = resolve_max_tokens(rule, row, max_model_len)
        if closed:
            arrival, parent = 0.0, None
        if own_patience is None:
            own_patience = patience
        arrival /= rate_scale
        yield new(
            TraceRow,
            (arrival, prompt, output, limit, priority, client, session, parent, segments, own_patience),
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
