"""Who sends requests: a trace or generator in open loop, or clients that wait for their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Final, Protocol

from simpy.events import Event

from policies.core.plan import Finish
from policies.core.request import Request, RequestId, Slo
from policies.core.stops import Stop, stop_of
from sim.world.clock import At, Clock
from traces.workload.rows import TraceRow
from traces.workload.sending import Followers, request_of

_BLOCK: Final = 64


class Entrance(Protocol):
    """Takes requests and aborts; a replica, or whatever stands before several."""

    def arrive(self, request: Request, stop: Stop) -> Finish | None:
        """A request comes in now; returns its end if it is refused."""

    def turn_away(self, request: Request, reason: str) -> Finish:
        """A request comes in now and is not let in."""

    def abort(self, request_id: RequestId) -> None:
        """A client goes away now."""


class Clients:
    """Sends rows as requests. ``unanswered`` holds those without an answer yet, with the tokens they will make; ``slo``
    are the limits of those whose row has none."""

    def __init__(
        self,
        clock: Clock,
        entrance: Entrance,
        *,
        max_model_len: int,
        tokens_past_length: int = 0,
        reject_over_length: bool = False,
    ) -> None:
        self.offered = 0
        self.slo: Slo | None = None
        self.unanswered: dict[RequestId, int] = {}
        self.on_answer: Callable[[RequestId, float], None] = lambda request_id, now_s: None
        self._clock, self._entrance = clock, entrance
        self._max_model_len = max_model_len
        self._max_total_tokens = max_model_len + tokens_past_length
        self._reject_over_length = reject_over_length

    def send(self, number: int, row: TraceRow, now_s: float) -> None:
        """Send row ``number`` of the workload now."""
        prompt_tokens, output_tokens, patience_s = row[1], row[2], row[9]
        request = request_of(number, row, now_s, self.slo)
        self.offered += 1
        stop = stop_of(request, output_tokens, self._max_total_tokens)
        self.unanswered[number] = stop[0]
        if self._reject_over_length and prompt_tokens + output_tokens > self._max_model_len:
            refused: Finish | None = self._entrance.turn_away(request, "over_length")
        else:
            refused = self._entrance.arrive(request, stop)
        if refused is not None:
            self.answer(refused, now_s)
        elif patience_s is not None:
            self._clock.event_at(now_s + patience_s, At.ABORT, partial(self._give_up, number))

    def answer(self, finish: Finish, now_s: float) -> None:
        """A request ended and its client knows."""
        request_id = finish[0]
        self.unanswered.pop(request_id, None)
        self.on_answer(request_id, now_s)

    def _give_up(self, number: int, event: Event) -> None:
        if number in self.unanswered:
            self._entrance.abort(number)


def _in_blocks(rows: Iterator[TraceRow]) -> Iterator[TraceRow]:
    """The same rows, drawn some at a time: code that runs many times in a row stays in the processor's caches."""
    return chain.from_iterable(iter(lambda: list(islice(rows, _BLOCK)), []))


class OpenLoop:
    """Sends each row at its time, or when the row it follows has been answered, if later."""

    def __init__(self, clock: Clock, clients: Clients, rows: Iterator[TraceRow]) -> None:
        self._clock, self._clients = clock, clients
        self._rows = enumerate(_in_blocks(rows))
        self._next: tuple[int, TraceRow] | None = next(self._rows, None)
        self._followers = Followers(clients.unanswered)
        clients.on_answer = self._send_followers
        clock.event_at(clock.now, At.ARRIVAL, self._on_time)

    def _on_time(self, event: Event) -> None:
        """Send what is due, and come back at the time of the row after it."""
        now = self._clock.agenda.now
        item = self._next
        while item is not None:
            number, row = item
            if row[0] > now:
                self._clock.event_at(row[0], At.ARRIVAL, self._on_time)
                break
            if not self._followers.hold(number, row):
                self._clients.send(number, row, now)
            item = next(self._rows, None)
        self._next = item

    def _send_followers(self, request_id: RequestId, now_s: float) -> None:
        for number, row in self._followers.of(request_id):
            self._clock.event_at(now_s, At.ARRIVAL, partial(self._release, number, row))

    def _release(self, number: int, row: TraceRow, event: Event) -> None:
        self._followers.let_go(number)
        self._clients.send(number, row, self._clock.now)


def closed_loop(
    clock: Clock, clients: Clients, rows: Iterator[TraceRow], *, concurrency: int, think_time_s: float
) -> None:
    """Start ``concurrency`` clients; each takes the next row ``think_time_s`` after its last answer."""
    numbered = enumerate(rows)

    def send_next(event: Event) -> None:
        item = next(numbered, None)
        if item is not None:
            clients.send(*item, clock.now)

    def think(request_id: RequestId, now_s: float) -> None:
        clock.event_at(now_s + think_time_s, At.ARRIVAL, send_next)

    clients.on_answer = think
    for _ in range(concurrency):
        clock.event_at(clock.now, At.ARRIVAL, send_next)
