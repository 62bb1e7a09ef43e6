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


class Agenda:
    """What happens when: the queue of a clock, and its time.

    Every step passes through here. This is no part of ``Clock`` because compiled an attribute or a method of a class
    that derives from SimPy's costs some ten times as much.
    """

    def __init__(self) -> None:
        self.queue: list[tuple[Any, ...]] = []
        self.now = 0.0
        self._is_waited_for = False

    def advance(self, time_s: float) -> bool:
        """Go to ``time_s`` at once if nothing happens until then, that instant included; whoever asks goes on as if by
        an event there, and saves the queue that event."""
        if self._is_waited_for:
            return False
        queue = self.queue
        while queue:
            head = queue[0]
            head_s: float = head[0]
            if head_s > time_s:
                break
            if head[3].callbacks:
                return False
            heappop(queue)
        self.now = time_s
        return True

    def wait(self, waiter: Waiter) -> bool:
        """Let everything happen until a step that runs has ended, at ``waiter.end_s``, which may move; that saves the
        queue the events of its end. False, and nothing happened, if somebody else waits so: then it needs one."""
        if self._is_waited_for:
            return False
        self._is_waited_for = True
        queue = self.queue
        while queue:
            head = queue[0]
            time_s: float = head[0]
            end_s = waiter.end_s
            if time_s > end_s or (time_s == end_s and head[1] >= _STEP_END):
                break
            self.happen()
        self.now = waiter.end_s
        self._is_waited_for = False
        return True

    def happen(self) -> None:
        """Let the next event happen."""
        self.now, _, _, event = heappop(self.queue)
        callbacks, event.callbacks = event.callbacks, None
        for callback in callbacks:
            callback(event)

    def is_last_of_now(self) -> bool:
        """True if nothing more happens at this instant."""
        queue = self.queue
        if not queue:
            return True
        head_s: float = queue[0][0]
        return head_s > self.now


def _time_of(clock: Clock) -> float:
    return clock.agenda.now


def _set_time_of(clock: Clock, now_s: float) -> None:
    clock.agenda.now = now_s


@mypyc_attr(native_class=False)
class Clock(Environment):
    """An environment whose events are placed at absolute times; its queue and its time are those of its ``agenda``.

    SimPy's own ``timeout`` takes a delay, and now + (time - now) misses ``time`` by an ulp now and then, which would
    break ties in another order when a run is jumped instead of stepped.
    """

    _now = property(_time_of, _set_time_of)

    def __init__(self) -> None:
        self.agenda = Agenda()
        super().__init__(0.0)
        self._queue = self.agenda.queue

    @property
    def now(self) -> float:
        """The current time, in seconds."""
        return self.agenda.now

    def event_at(self, time_s: float, order: int, callback: Callable[[Event], None]) -> Timed:
        """Call back at ``time_s``, which is not before now."""
        event = Timed(self, callback)
        heappush(self.agenda.queue, (time_s, order, next(self._eid), event))
        return event

    def drain(self) -> None:
        """Let everything happen, in order, until nothing is left. SimPy's ``run`` passes each event through ``step``
        and looks whether it failed; timed events cannot."""
        agenda = self.agenda
        while agenda.queue:
            agenda.happen()

    def end(self) -> None:
        """Drop every event, so that ``drain`` returns."""
        self.agenda.queue.clear()
