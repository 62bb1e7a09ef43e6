"""Simulated time: SimPy's event queue, at absolute times."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from simpy.core import Environment
from simpy.events import Event

from policies.core.native import mypyc_attr


class At(IntEnum):
    """Order of what happens at one instant."""

    STOP = 0
    STEP_END = 1
    TRANSFER = 2
    ABORT = 3
    ARRIVAL = 4
    PLAN = 5


_STEP_END: Final = At.STEP_END


class Waiter(Protocol):
    """Waits for a time of its own, which what happens meanwhile may move."""

    end_s: float


@mypyc_attr(native_class=False)
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


@mypyc_attr(native_class=False)
class Clock(Environment):
    """An environment whose events are placed at absolute times.

    SimPy's own ``timeout`` takes a delay, and now + (time - now) misses ``time`` by an ulp now and then, which would
    break ties in another order when a run is jumped instead of stepped. ``now`` is a plain attribute in place of a
    property, because it is asked for at every step.
    """

    now: float = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._is_waited_for = False

    def event_at(self, time_s: float, order: int, callback: Callable[[Event], None]) -> Timed:
        """Call back at ``time_s``, which is not before now."""
        event = Timed(self, callback)
        heappush(self._queue, (time_s, order, next(self._eid), event))  # type: ignore[misc]
        return event

    def drain(self) -> None:
        """Let everything happen, in order, until nothing is left. SimPy's ``run`` passes each event through ``step``
        and looks whether it failed; timed events cannot."""
        while self._queue:
            _happen(self)

    def advance(self, time_s: float) -> bool:
        """Go to ``time_s`` at once if nothing happens until then, that instant included; whoever asks goes on as if by
        an event there, and saves the queue that event."""
        if self._is_waited_for:
            return False
        queue: list[Any] = self._queue
        while queue:
            head = queue[0]
            if head[0] > time_s:
                break
            if head[3].callbacks:
                return False
            heappop(queue)
        self.now = self._now = time_s
        return True

    def wait(self, waiter: Waiter) -> bool:
        """Let everything happen until a step that runs has ended, at ``waiter.end_s``, which may move; that saves the
        queue the events of its end. False, and nothing happened, if somebody else waits so: then it needs one."""
        if self._is_waited_for:
            return False
        self._is_waited_for = True
        queue: list[Any] = self._queue
        while queue:
            head = queue[0]
            time_s = head[0]
            end_s = waiter.end_s
            if time_s > end_s or (time_s == end_s and head[1] >= _STEP_END):
                break
            _happen(self)
        self.now = self._now = waiter.end_s
        self._is_waited_for = False
        return True

    def is_last_of_now(self) -> bool:
        """True if nothing more happens at this instant."""
        return not self._queue or self._queue[0][0] > self.now

    def end(self) -> None:
        """Drop every event, so that ``drain`` returns."""
        self._queue.clear()


def _happen(clock: Clock) -> None:
    """Let the next event happen. A function, because compiled it is called at no cost."""
    time_s, _, _, event = heappop(clock._queue)
    clock.now = clock._now = time_s
    callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
    for callback in callbacks:
        callback(event)
