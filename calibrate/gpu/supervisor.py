"""Runs stages in a process of their own and sees to their deadlines: a stage that hangs is killed, one that takes its
process down (a card gives no second chance after an illegal access) is recorded, and the others go on in a new one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import TYPE_CHECKING

from calibrate.gpu.record import COMPLETE, FAILED, OVERRAN, Settings, close_stage, read_stage
from calibrate.gpu.stages import Stage, ends_s
from calibrate.gpu.worker import work
from policies.core.errors import ConfigError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

Tell = Callable[[str], object]

_LOOK_S = 0.5
_CLOSING_SHARE = 0.01
"""Of the deadline, for ending processes and writing the page."""


def supervise(settings: Settings, stages: Sequence[Stage], tell: Tell) -> bool:
    """Run the stages within the deadline; whether all are complete. ConfigError where there is no such device."""
    began_s = time.monotonic()
    left, ends = list(stages), ends_s(stages, began_s, (1 - _CLOSING_SHARE) * settings.deadline_s)
    while left:
        done = _Run(settings, left, ends, tell).run()
        left, ends = left[done:], ends[done:]
    statuses = [(read_stage(settings.out, stage.name) or {}).get("status") for stage in stages]
    return all(status == COMPLETE for status in statuses)


class _Run:
    """One process and the stages it is to run."""

    def __init__(self, settings: Settings, stages: Sequence[Stage], ends: Sequence[float], tell: Tell) -> None:
        self._settings, self._stages, self._ends, self._tell = settings, stages, ends, tell
        self._began_s = time.monotonic()

    def run(self) -> int:
        """Until all stages are over or the process is; how many are over, at least one."""
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=work, args=(self._settings, self._stages, self._ends, there))
        process.start()
        there.close()
        try:
            return self._watch(process, here)
        finally:
            _kill(process)
            here.close()

    def _watch(self, process: SpawnProcess, messages: Connection) -> int:
        place = 0
        while place < len(self._stages):
            if time.monotonic() > self._ends[place]:
                limit_s = self._ends[place] - self._began_s
                self._close(place, OVERRAN, f"not over when its time was ({limit_s:.0f} s)")
                return place + 1
            try:
                if not messages.poll(min(_LOOK_S, max(self._ends[place] - time.monotonic(), 0.0))):
                    continue
                kind, text = messages.recv()
            except (EOFError, OSError):
                process.join(5)
                self._close(place, FAILED, f"its process ended with exit code {process.exitcode}")
                return place + 1
            if kind == "refused":
                raise ConfigError(text)
            if kind == "begin":
                self._began_s = time.monotonic()
                self._tell(f"{self._stages[place].name}: {self._stages[place].title}")
            else:
                self._say(place)
                place += 1
        return place

    def _close(self, place: int, status: str, error: str) -> None:
        close_stage(self._settings, self._stages[place].name, status, error, time.monotonic() - self._began_s)
        self._say(place)

    def _say(self, place: int) -> None:
        content = read_stage(self._settings.out, self._stages[place].name) or {}
        error = f": {content['error']}" if content.get("error") else ""
        self._tell(f"  {content.get('status')} after {content.get('seconds', 0.0):.1f} s{error}")


def _kill(process: SpawnProcess) -> None:
    """End a process with all its children."""
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
