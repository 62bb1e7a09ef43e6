"""A run as a timeline in the trace event format of Chrome, which ui.perfetto.dev opens.

Format: "Trace Event Format", Google 2016: ``X`` is a slice, ``C`` a counter, ``M`` a name; times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from sim.report.lives import Life, in_words, life
from sim.report.view import RunView
from sim.report.words import CAUSES, PHASES
from traces.record.read import expand_steps

PERFETTO_NAME = "perfetto.json"
"""Its file in a run folder."""

_REQUESTS, _ENGINE = 1, 2
_MAX_STEPS = 100_000
Event = dict[str, Any]


def write_timeline(view: RunView, path: Path) -> Path:
    """Write requests, steps (where the record has them) and counters as a timeline, one event a line."""
    with path.open("w", encoding="utf-8") as stream:
        stream.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, event in enumerate(events(view)):
            stream.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        stream.write("\n]}\n")
    return path


def events(view: RunView) -> Iterator[Event]:
    """All events: names first, then requests in as few rows as show each alone, steps, counters."""
    yield from _names(_REQUESTS, "requests")
    yield from _names(_ENGINE, f"engine: {view.label}")
    free: list[tuple[float, int]] = []
    rows = 0
    for row in view.requests.itertuples():
        drawn = life(view, row)
        if not drawn.phases:
            continue
        if free and free[0][0] <= drawn.phases[0].start_s:
            _, lane = heappop(free)
        else:
            rows += 1
            lane = rows
        heappush(free, (drawn.phases[-1].end_s, lane))
        yield from _request(drawn, lane)
    yield from _steps(view)
    yield from _counters(view)


def _names(process: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}


def _request(drawn: Life, lane: int) -> Iterator[Event]:
    first, last = drawn.phases[0], drawn.phases[-1]
    yield _slice(_REQUESTS, lane, f"request {drawn.row.id}", first.start_s, last.end_s, {"in words": in_words(drawn)})
    for phase in drawn.phases:
        yield _slice(_REQUESTS, lane, PHASES[phase.kind], phase.start_s, phase.end_s, {})


def _steps(view: RunView) -> Iterator[Event]:
    """Every step; of long runs each stretch of like steps as one slice."""
    rows = view.record.steps
    if rows is None:
        return
    each = int(rows["steps"].sum()) <= _MAX_STEPS
    for step in (expand_steps(rows) if each else rows).itertuples():
        count = 1 if each else step.steps
        kind = "prefill step" if step.chunk_tokens else "decode step" if count == 1 else f"{count:,} decode steps"
        facts = {"step": step.step, "requests": step.num_seqs, "prompt tokens": step.chunk_tokens}
        facts |= {"waiting": step.waiting, "further requests kept out": CAUSES.get(step.limited_by, step.limited_by)}
        yield _slice(_ENGINE, 1, kind, step.start_s, step.end_s, facts)


def _counters(view: RunView) -> Iterator[Event]:
    digest = view.digest
    if digest is None:
        return
    for level in ("running", "waiting", "swapped", "used_blocks"):
        for place, value in enumerate(digest.mean(level).tolist()):
            at_us = round((digest.start_s + place * digest.width_s) * 1e6, 3)
            yield {"ph": "C", "pid": _ENGINE, "name": level, "ts": at_us, "args": {level: round(value, 3)}}


def _slice(process: int, lane: int, name: str, start_s: float, end_s: float, args: dict[str, Any]) -> Event:
    times = {"ts": round(start_s * 1e6, 3), "dur": round((end_s - start_s) * 1e6, 3)}
    return {"ph": "X", "pid": process, "tid": lane, "name": name, **times, "args": args}
