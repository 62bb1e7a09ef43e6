"""Time of the real world, and of tests: seconds since the start of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Final, Protocol

_LONGEST_NAP_S: Final = 0.02


class Clock(Protocol):
    """Seconds since the run began."""

    def now_s(self) -> float:
        """The time now."""

    def wait_until(self, time_s: float) -> None:
        """Let time pass, at most until then; it may return early, so whoever waits asks again."""


class RealClock:
    """The machine's monotonic clock; waits in naps, so that an interrupt is noticed."""

    def __init__(self) -> None:
        self._start_s = perf_counter()

    def restart(self) -> None:
        """The run begins now."""
        self._start_s = perf_counter()

    def now_s(self) -> float:
        """Seconds since the start."""
        return perf_counter() - self._start_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """No time passes inside."""
        began_s = perf_counter()
        try:
            yield
        finally:
            self._start_s += perf_counter() - began_s

    def wait_until(self, time_s: float) -> None:
        """Sleep, a little while at most."""
        left_s = time_s - self.now_s()
        if left_s > 0:
            sleep(min(left_s, _LONGEST_NAP_S))


class TickClock:
    """Time that passes by ``tick_s`` each time somebody looks: a run on it is the same on any machine."""

    def __init__(self, tick_s: float = 1e-3) -> None:
        self._tick_s, self._ticks, self._base_s = tick_s, 0, 0.0

    def now_s(self) -> float:
        """One tick later than the time before."""
        self._ticks += 1
        return self._base_s + self._ticks * self._tick_s

    def wait_until(self, time_s: float) -> None:
        """It is then."""
        if time_s > self._base_s + self._ticks * self._tick_s:
            self._base_s, self._ticks = time_s, 0
