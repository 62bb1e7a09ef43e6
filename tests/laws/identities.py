"""Identities that hold on every run whatever its input: Little's law and work conservation.

``Tape`` is a sink that keeps what they need of a record, a few numbers a row of steps and a request. One side of each
identity comes from the steps alone (times, and how many the policy counted), the other from the requests alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traces.record.columns import RequestTable, RowsToColumns, StallTable, StepTable
from traces.record.expand import expand

_CURVE = ("steps", "start_s", "end_s", "first", "anchor_s", "base_s", "slope_s", "anchor_context", "num_seqs")
_COUNTS = ("waiting", "running", "swapped")
_REQUEST = ("id", "arrival_s", "first_scheduled_s", "finish_s", "waited_s")
_AT_ONCE = 1 << 18


class Steps(NamedTuple):
    """Consecutive steps: when each begins and ends, when the one before them ended, and the requests that wait, run
    or are swapped out during each."""

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    before_s: NDArray[np.float64]
    present: NDArray[np.int64]


class Tape(RowsToColumns):
    """Keeps the times and counts of a record."""

    def __init__(self) -> None:
        self._steps: list[dict[str, NDArray[Any]]] = []
        self._requests: list[dict[str, NDArray[Any]]] = [{name: np.empty(0) for name in _REQUEST}]

    def step_table(self, table: StepTable) -> None:
        """Keep a batch of steps."""
        kept = {name: table.numbers[name].copy() for name in _CURVE}
        kept["present"] = np.sum([table.numbers[name] for name in _COUNTS], axis=0)
        self._steps.append(kept)

    def request_table(self, table: RequestTable) -> None:
        """Keep a batch of requests."""
        self._requests.append({name: table.numbers[name].copy() for name in _REQUEST})

    def stall_table(self, table: StallTable) -> None:
        """Stalls say nothing here."""

    def close(self) -> None:
        """Nothing is held open."""

    def request_columns(self) -> dict[str, NDArray[Any]]:
        """Columns of all requests, in order of their end; one that is unfinished ends with the last step."""
        columns = _joined(self._requests)
        unfinished = np.isnan(columns["finish_s"])
        columns["finish_s"][unfinished] = self.end_s
        return columns

    @property
    def end_s(self) -> float:
        """End of the last step."""
        return float(self._steps[-1]["end_s"][-1]) if self._steps else 0.0

    def every_step(self) -> Iterator[Steps]:
        """Every step of the record, some at a time."""
        before_s = -np.inf
        for rows in _parts(self._steps):
            steps = expand(rows)
            ends_s = np.concatenate(([before_s], steps.end_s))
            yield Steps(steps.start_s, steps.end_s, ends_s[:-1], steps.each(rows["present"]))
            before_s = float(ends_s[-1])


def littles_law_error(tape: Tape, *, may_idle: bool = False) -> float | None:
    """Relative difference between the time integral of the number in the system and the sum of the requests' times
    in it; None where nobody spent time in it.

    The integral adds, for every step, its duration times the requests that the policy holds, and for every arrival
    within a step the time to its end, when the policy first sees it. So it also fails where work waits and no step
    runs, unless the engine ``may_idle`` then (it waits for a fuller batch): the pause before a step counts those whom
    the step finds, less the time before they came, and those who left within it. It does not hold where an aborted
    request keeps its slot (static batches that return together).
    """
    requests = tape.request_columns()
    stays = _stays(requests)
    arrivals_s, ends_s = np.sort(requests["arrival_s"][stays]), np.sort(requests["finish_s"][stays])
    integral_s = 0.0
    for steps in tape.every_step():
        if may_idle:
            integral_s += _time_in_pauses_s(steps, arrivals_s, ends_s)
        integral_s += float(np.sum(steps.present * (steps.end_s - steps.start_s)))
        came = np.searchsorted(arrivals_s, (steps.start_s[0], steps.end_s[-1]), side="right")
        within_s = arrivals_s[came[0] : came[1]]
        step_end_s = steps.end_s[np.searchsorted(steps.start_s, within_s) - 1]
        integral_s += float(np.sum(np.maximum(step_end_s - within_s, 0.0)))
    total_s = float(np.sum(requests["finish_s"] - requests["arrival_s"]))
    return abs(integral_s - total_s) / total_s if total_s > 0.0 else None


def _time_in_pauses_s(steps: Steps, arrivals_s: NDArray[np.float64], ends_s: NDArray[np.float64]) -> float:
    """Time that requests spent in the system between the steps."""
    total_s = 0.0
    paused = np.flatnonzero(steps.start_s > steps.before_s)
    for since_s, until_s, present in zip(
        np.maximum(steps.before_s, arrivals_s[0])[paused], steps.start_s[paused], steps.present[paused], strict=True
    ):
        came_s = arrivals_s[(arrivals_s > since_s) & (arrivals_s <= until_s)]
        left_s = ends_s[(ends_s > since_s) & (ends_s < until_s)]
        total_s += present * (until_s - since_s) - np.sum(came_s - since_s) + np.sum(left_s - since_s)
    return float(total_s)


def idle_with_work_s(tape: Tape) -> float:
    """Time in which no step runs though a request has come and has not left."""
    return float(np.sum(idle_spells_s(tape)))


def idle_spells_s(tape: Tape) -> NDArray[np.float64]:
    """That time, pause by pause."""
    requests = tape.request_columns()
    stays = _stays(requests)
    arrivals_s, ends_s = np.sort(requests["arrival_s"][stays]), np.sort(requests["finish_s"][stays])
    spells_s = [np.empty(0)]
    for steps in tape.every_step():
        idle = np.flatnonzero(steps.start_s > steps.before_s)
        start_s, before_s = steps.start_s[idle], steps.before_s[idle]
        came = np.searchsorted(arrivals_s, before_s, side="right")
        left = np.searchsorted(ends_s, before_s, side="right")
        next_s = np.append(arrivals_s, np.inf)[came]
        spells_s.append(np.maximum(start_s - np.where(came > left, before_s, next_s), 0.0))
    return np.concatenate(spells_s)


def busy_s(tape: Tape) -> float:
    """Time in which steps run."""
    return sum(float(np.sum(steps.end_s - steps.start_s)) for steps in tape.every_step())


def _stays(requests: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Requests that were not turned away as they came."""
    stays: NDArray[np.bool_] = requests["finish_s"] != requests["arrival_s"]
    return stays


def _joined(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _parts(tables: list[dict[str, NDArray[Any]]]) -> Iterator[dict[str, NDArray[Any]]]:
    """The rows in parts of a bounded number of steps (one row at least)."""
    for table in tables:
        until, low = np.cumsum(table["steps"]), 0
        while low < len(until):
            done = int(until[low - 1]) if low else 0
            high = max(low + 1, int(np.searchsorted(until, done + _AT_ONCE, side="right")))
            yield {name: column[low:high] for name, column in table.items()}
            low = high
