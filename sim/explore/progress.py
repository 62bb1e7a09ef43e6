"""Live progress of a sweep, with the time left: a bar on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType
from typing import Any, Self

from sim.explore.point import FAILED, Row

_EVERY_S = 5.0


class SweepLine:
    """A ``SweepProgress`` on standard error. ``total`` runs are expected. A context manager."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._first_s: float | None = None
        self._next_s = monotonic() + _EVERY_S
        self._before: int | None = None
        self._new = 0
        self._failed = 0
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, finished: int, row: Row | None) -> None:
        """``finished`` runs are there; ``row`` is the last one."""
        if self._before is None:
            self._before = finished
            if finished:
                self._say(f"{finished:,} of {self._total:,} runs were there already")
        if row is not None and row.status == FAILED:
            self._failed += 1
        failed = f", {self._failed:,} could not be run" if self._failed else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=finished, failed=failed)
            return
        now_s = monotonic()
        if row is None:
            return
        # Workers take their time to start: how fast they are shows from the first result on.
        self._first_s = now_s if self._first_s is None else self._first_s
        self._new += 1
        if now_s < self._next_s or self._new < 2 or finished == self._total:
            return
        self._next_s = now_s + _EVERY_S
        left_s = (now_s - self._first_s) * (self._total - finished) / (self._new - 1)
        self._say(f"{finished:,} of {self._total:,} runs{failed}, about {left_s:.0f} s left")

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            words = TextColumn("runs{task.fields[failed]}, left")
            columns = (BarColumn(), MofNCompleteColumn(), words, TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total, failed="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
