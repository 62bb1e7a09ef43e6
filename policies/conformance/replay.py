"""Replays a recorded log through the policy of this project and compares every decision."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from policies.conformance.batches import decide_batches
from policies.conformance.decisions import DecisionWriter, Line
from policies.conformance.engines import build_policy, max_model_len
from policies.conformance.log import DecisionLog, LoggedRequest, Object, read_log
from policies.core.engine import Engine
from policies.core.errors import ContractError, EngineDied, Stuck
from policies.core.groups import run_rest
from policies.core.plan import Idle, StepPlan, StepResult
from policies.core.protocols import Policy
from policies.core.stops import StopCalendar, stop_of

_QUEUES = ("waiting", "running", "swapped")


class Conformance(NamedTuple):
    """How far a replay agrees with its log: steps that match, of all in the log, and the first difference."""

    name: str
    matched: int
    total: int
    first_difference: str | None


def conform(paths: Iterable[Path], echo: Callable[[str], object] = print) -> int:
    """Replay logs; echo ``NAME matched/total`` for each and the first difference in full.

    Returns the exit code, 1 on any difference.
    """
    exit_code = 0
    for path in paths:
        result = replay(path)
        echo(f"{result.name} {result.matched}/{result.total}")
        if result.first_difference is not None:
            echo(result.first_difference)
            exit_code = 1
    return exit_code


def replay(path: Path) -> Conformance:
    """Replay one log; LogError if it cannot be read or describes an engine that is not modelled."""
    log = read_log(path)
    lines, fault = decide(log)
    steps = [line for line in lines if line["type"] in ("step", "batch")]
    matched, first = 0, None
    for expected, got in zip_longest(log.steps, steps):
        difference = _difference(log.fields, expected, got)
        if difference is None:
            matched += 1
        elif first is None:
            first = difference if got is not None or fault is None else f"{difference}\n  {fault}"
    end = next(line for line in lines if line["type"] == "end")
    first = first or _end_difference(log.end, end) or fault
    return Conformance(log.name, matched, len(log.steps), first)


def decide(log: DecisionLog) -> tuple[list[Line], str | None]:
    """All lines that this project's policy writes for the requests of a log, and the rule of the contract
    that it broke, if any, where the lines end."""
    lines: list[Line] = []
    policy = build_policy(log)
    if log.is_batched:
        return _decide_batches(log, policy), None
    writer = DecisionWriter(policy, lines.append, config=log.config, name=log.names.__getitem__)
    fault = None
    try:
        _drive(log, Engine(policy, observer=writer), writer)
    except EngineDied as error:
        writer.die(error)
    except Stuck:
        pass  # the real engine goes on without doing anything; the log's end says how many never finish
    except ContractError as error:
        fault = f"step t={writer.t}: {error}"
    writer.close()
    return lines, fault


def _decide_batches(log: DecisionLog, policy: Policy) -> list[Line]:
    return decide_batches(
        policy,
        [logged.request for logged in log.requests],
        base_s=log.setting("service_base_s", float),
        per_item_s=log.setting("service_per_item_s", float),
        config=log.config,
        name=log.names.__getitem__,
    )


def _drive(log: DecisionLog, engine: Engine, writer: DecisionWriter) -> None:
    """Steps in which something is pending, until nothing will be, or until the run was stopped."""
    calendar = StopCalendar()
    arrivals = deque(log.requests)
    aborts = deque(sorted(_aborts(log.requests)))
    in_flight: deque[StepPlan] = deque()
    t = 0
    stopped_at = log.stopped_at
    while engine.num_unfinished or arrivals:
        if not engine.num_unfinished and arrivals[0].arrival_step > t:
            t = arrivals[0].arrival_step
            _rest(engine, in_flight, t)
        writer.t = t
        while arrivals and arrivals[0].arrival_step <= t:
            logged = arrivals.popleft()
            if engine.add(logged.request, t) is None:
                max_total_tokens = max_model_len(log) + engine.policy.tokens_past_length
                stop = stop_of(logged.request, logged.output_len, max_total_tokens)
                calendar.add(logged.request.id, stop)
        while aborts and aborts[0][0] <= t:
            request_id = aborts.popleft()[1]
            if request_id in calendar:
                calendar.remove(request_id)
                engine.abort(request_id, t)
        if t >= stopped_at:
            break
        if engine.num_unfinished:
            _step(engine, calendar, in_flight, t)
            t += 1


def _aborts(requests: Sequence[LoggedRequest]) -> Iterator[tuple[int, int]]:
    for logged in requests:
        if logged.abort_step is not None:
            yield logged.abort_step, logged.request.id


def _step(engine: Engine, calendar: StopCalendar, in_flight: deque[StepPlan], t: int) -> None:
    """One pass of the engine's loop: a plan, then the result of the oldest one if no more may be in flight."""
    plan = engine.plan(t)
    for finish in plan.rejected:
        calendar.remove(finish.id)
    engine.policy.kv.check()
    if not isinstance(plan, Idle):
        calendar.apply(plan)
        in_flight.append(plan)
    if in_flight and (isinstance(plan, Idle) or len(in_flight) == engine.policy.max_in_flight):
        done = in_flight.popleft()
        finished = calendar.complete(done, 1, in_flight)
        engine.complete(StepResult(done.step, t, t + 1, finished=finished))
        run_rest(engine, calendar, done, t + 1)
        engine.policy.kv.check()


def _rest(engine: Engine, in_flight: deque[StepPlan], t: int) -> None:
    """Nothing is left to do: what is in flight ends, and the engine notices."""
    while in_flight:
        done = in_flight.popleft()
        engine.complete(StepResult(done.step, t, t))
    engine.plan(t)


# -- comparison ----------------------------------------------------------------------------------------------


def _difference(fields: Sequence[str], expected: Object | None, got: Line | None) -> str | None:
    """What differs between two step lines; None if nothing does."""
    if expected is None or got is None:
        there, line = ("the replay", got or {}) if expected is None else ("the log", expected)
        return f"{_place(line)}: only {there} has this {line['type']}"
    for field in ("t", "k", "arrived", "aborted"):
        if expected.get(field, []) != got.get(field, []):
            return _describe(field, expected, got)
    if "error" in expected or "error" in got:
        return None if "error" in expected and "error" in got else _describe("error", expected, got)
    for field in fields:
        if expected[field] != got[field]:
            return _describe(field, expected, got)
    return None


def _place(line: Object) -> str:
    return f"batch k={line['k']}" if line["type"] == "batch" else f"step t={line['t']}"


def _describe(field: str, expected: Object, got: Object) -> str:
    lines = [f"{_place(expected)}: field '{field}' differs"]
    shown = (field, *(queue for queue in _QUEUES if queue != field and queue in expected))
    for name in shown:
        lines.append(f"  expected {name}: {json.dumps(expected.get(name))}")
        lines.append(f"  got      {name}: {json.dumps(got.get(name))}")
    return "\n".join(lines)


def _end_difference(expected: Object, got: Object) -> str | None:
    for field in expected:
        if field in got and expected[field] != got[field]:
            return f"end: field '{field}' differs\n  expected {expected[field]}\n  got      {got[field]}"
    return None
