"""Simulated time: SimPy's event queue, at absolute times."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush

from simpy.core import Environment
from simpy.events import Event


class At(IntEnum):
    """Order of what happens at one instant."""

    STOP = 0
    STEP_END = 1
    TRANSFER = 2
    ABORT = 3
    ARRIVAL = 4
    PLAN = 5


class Timed(Event):
    """An event whose time is set when it is made; it succeeds with nothing to say."""

    _ok = True
    _value = None

    def __init__(self, env: Environment, callback: Callable[[Event], None]) -> None:
        self.env = env
        self.callbacks = [callback]

    def cancel(self) -> None:
        """Let nothing happen at its time."""
        self.callbacks = []


class Clock(Environment):
    """An environment whose events are placed at absolute times.

    SimPy's own ``timeout`` takes a delay, and now + (time - now) misses ``time`` by an ulp now and then, which would
    break ties in another order when a run is jumped instead of stepped.
    """

    def event_at(self, time_s: float, order: int, callback: Callable[[Event], None]) -> Timed:
        """Call back at ``time_s``, which is not before now."""
        event = Timed(self, callback)
        heappush(self._queue, (time_s, order, next(self._eid), event))  # type: ignore[misc]
        return event

    def drain(self) -> None:
        """Let everything happen, in order, until nothing is left. SimPy's ``run`` passes each event through ``step``
        and looks whether it failed; timed events cannot."""
        queue = self._queue
        while queue:
            self._now, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)

    def advance(self, time_s: float) -> bool:
        """Go to ``time_s`` at once if nothing happens until then, that instant included; whoever asks goes on as if by
        an event there, and saves the queue that event."""
        queue = self._queue
        while queue and queue[0][0] <= time_s:
            if queue[0][3].callbacks:
                return False
            heappop(queue)
        self._now = time_s
        return True

    def is_last_of_now(self) -> bool:
        """True if nothing more happens at this instant."""
        return not self._queue or self._queue[0][0] > self._now

    def end(self) -> None:
        """Drop every event, so that ``drain`` returns."""
        self._queue.clear()
