"""Records what a real engine's scheduler decides, in the schema that ``log.py`` reads, with no model.

Every request whose known tokens were all computed is given one token; it ends by its length or by abort."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from policies.conformance.decisions import SCHEMA, Line, request_name
from policies.conformance.log import DecisionLog

MAX_STEPS = 20_000
"""A run that does not end is stopped there, as engines do that start one request over for ever."""


MISUSE = (AttributeError, ImportError, NameError, TypeError)
"""What a scheduler raises that is not driven as it wants to be: no decision of its own."""


class ScriptedRequest(NamedTuple):
    """One request of a recording. Equal prefixes of ``segments`` are equal tokens, see ``Request.segments``; the output
    of request NAME is segment ``out:NAME``."""

    name: str
    arrival_step: int
    prompt_tokens: int
    output_tokens: int
    priority: int
    segments: tuple[tuple[str, int], ...]
    abort_step: int | None = None

    def to_line(self) -> Line:
        """Its line of a log."""
        line: Line = {
            "type": "request",
            "id": self.name,
            "arrival_step": self.arrival_step,
            "prompt_len": self.prompt_tokens,
            "output_len": self.output_tokens,
            "priority": self.priority,
            "segments": [list(segment) for segment in self.segments],
        }
        return line if self.abort_step is None else {**line, "abort_step": self.abort_step}


class RealScheduler(Protocol):
    """A scheduler with a fake executor. ``max_in_flight`` batches are planned before the first one's result."""

    max_in_flight: int

    def add(self, request: ScriptedRequest) -> None:
        """A request arrives; they come in the order of the script."""

    def abort(self, name: str) -> bool:
        """Its client goes away; False if it has ended before."""

    def plan(self) -> Line:
        """Schedule one batch; the fields of a step that are known then."""

    def finish_oldest(self) -> list[str]:
        """The oldest batch in flight has run; who ended with it, in batch order."""

    def state(self) -> Line:
        """Queues and free blocks."""


class _Counts:
    """What the end line says."""

    steps = preemptions = 0


def record(
    scheduler: RealScheduler,
    requests: Sequence[ScriptedRequest],
    config: Mapping[str, object],
    write: Callable[[Line], object],
    max_steps: int = MAX_STEPS,
) -> None:
    """Drive the scheduler through the requests, in order of arrival, and write every line of the log. An exception ends
    the log as the engine's death, one of MISUSE comes through."""
    write({"type": "config", "schema": SCHEMA, **config})
    for request in requests:
        write(request.to_line())
    counts, unfinished, died = _Counts(), set[str](), False
    arrivals = deque(requests)
    aborts = deque(sorted((r.abort_step, r.name) for r in requests if r.abort_step is not None))
    in_flight = t = 0
    while (unfinished or arrivals) and counts.steps < max_steps:
        if not unfinished and arrivals[0].arrival_step > t:
            t = arrivals[0].arrival_step
            for _ in range(in_flight):
                scheduler.finish_oldest()
            in_flight = 0
        line = _events(scheduler, arrivals, aborts, unfinished, t)
        if not unfinished:
            continue
        try:
            in_flight = _step(scheduler, line, in_flight)
        except MISUSE:
            raise
        except Exception as error:  # whatever ends the real engine ends its log
            write({**line, "error": str(error), "detail": type(error).__name__})
            died = True
            break
        unfinished.difference_update(line["finished"])
        counts.steps += 1
        counts.preemptions += len(line["preempted"])
        write(line)
        t += 1
    end: Line = {"type": "end", "steps": counts.steps, "preemptions": counts.preemptions, "swap_outs": 0}
    end["unfinished"] = len(unfinished) + len(arrivals)
    write({**end, "stopped": True} if end["unfinished"] and not died else end)


def _events(
    scheduler: RealScheduler,
    arrivals: deque[ScriptedRequest],
    aborts: deque[tuple[int, str]],
    unfinished: set[str],
    t: int,
) -> dict[str, Any]:
    """Hand over who comes and goes before a step; the head of its line."""
    arrived: list[str] = []
    aborted: list[str] = []
    while arrivals and arrivals[0].arrival_step <= t:
        request = arrivals.popleft()
        scheduler.add(request)
        arrived.append(request.name)
        unfinished.add(request.name)
    while aborts and aborts[0][0] <= t:
        _, name = aborts.popleft()
        if scheduler.abort(name):
            aborted.append(name)
            unfinished.discard(name)
    line: dict[str, Any] = {"type": "step", "t": t, "arrived": arrived}
    return {**line, "aborted": aborted} if aborted else line


def _step(scheduler: RealScheduler, line: dict[str, Any], in_flight: int) -> int:
    """Complete the line of one pass of the engine's loop; the number of batches in flight after it."""
    line.update(scheduler.plan())
    line["finished"] = []
    if line["sched"]:
        in_flight += 1
    if in_flight and (not line["sched"] or in_flight == scheduler.max_in_flight):
        line["finished"] = scheduler.finish_oldest()
        in_flight -= 1
    line.update(scheduler.state())
    return in_flight


# -- scripts ---------------------------------------------------------------------------------------------------------


def requests_of(log: DecisionLog) -> tuple[ScriptedRequest, ...]:
    """The requests of a log that was recorded before, to be recorded again."""
    return tuple(
        ScriptedRequest(
            log.names[logged.request.id],
            logged.arrival_step,
            logged.request.prompt_tokens,
            logged.output_len,
            logged.request.priority,
            tuple((_named(key, log.names), length) for key, length in logged.request.segments),
            logged.abort_step,
        )
        for logged in log.requests
    )


def _named(key: str, names: Sequence[str]) -> str:
    kind, _, number = key.partition(":")
    return f"out:{names[int(number)]}" if kind == "out" else key


def random_requests(seed: int, count: int, config: Mapping[str, object], abort_share: float) -> list[ScriptedRequest]:
    """Requests of all kinds for an engine: priorities where it has them, shared prefixes and further turns where it
    caches prefixes; ``abort_share`` of them are given up."""
    random = Random(seed)
    longest = int(str(config["max_model_len"]))
    requests: list[ScriptedRequest] = []
    step = 0
    for number in range(count):
        step += random.choice((0, 0, 1, 1, 2, 3, 7))
        segments = _segments(random, requests, number, longest, caches=bool(config.get("enable_prefix_caching")))
        requests.append(
            ScriptedRequest(
                request_name(number),
                step,
                sum(length for _, length in segments),
                random.randint(1, max(1, min(100, longest // 4))),
                random.randint(0, 3) if config.get("policy") == "priority" else 0,
                segments,
                step + random.randint(0, 60) if random.random() < abort_share else None,
            )
        )
    return requests


def _segments(
    random: Random, before: Sequence[ScriptedRequest], number: int, longest: int, *, caches: bool
) -> tuple[tuple[str, int], ...]:
    own = (f"p:{request_name(number)}", random.randint(1, max(1, longest // 10)))
    if not caches:
        return (own,)
    old = [request for request in before[:-10] if request.abort_step is None]
    if old and random.random() < 0.3:
        parent = random.choice(old)
        turn = (*parent.segments, (f"out:{parent.name}", parent.output_tokens), own)
        if sum(length for _, length in turn) < longest // 2:
            return turn
    return ((f"sys{random.choice('AB')}", random.choice((32, 100))), own)
