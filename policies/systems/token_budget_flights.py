"""What asynchronous scheduling keeps of its requests and of its plans in flight."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from policies.core.native import mypyc_attr
from policies.core.rows import DecodeSet, Row

_NEVER: Final = 1 << 40
_ID_BITS: Final = 32
_ID_MASK: Final = (1 << 32) - 1


@mypyc_attr(allow_interpreted_subclasses=True)
class AsyncRow(Row):
    """A request with ``placeholders``: tokens that plans in flight will make, and that later ones build on.

    ``in_flight`` steps without a result hold the row; ``epoch`` counts how often it was preempted, ``makes_tokens`` is
    False until a plan has completed what is known of it, ``gone`` True after its end. Full blocks of its first
    ``num_hashable`` tokens may be hit.

    While it decodes in lockstep, ``num_tokens`` counts what is planned of it, and what is in flight of it is known to
    the plans alone: those from plan number ``since`` on hold it. Before step ``last_step`` of the DecodeSet it steps
    out, since the token in flight is its last.
    """

    placeholders = 0
    in_flight = 0
    epoch = 0
    makes_tokens = False
    gone = False
    num_hashable = 0
    since = 0
    last_step = 0


class Part:
    """What one plan computes of a row that does not decode in lockstep, planned in its ``epoch``."""

    __slots__ = ("emits", "epoch", "is_decode", "num_tokens", "row", "start")

    def __init__(self, row: AsyncRow, start: int, num_tokens: int, *, emits: bool, is_decode: bool) -> None:
        self.row = row
        self.start = start
        self.num_tokens = num_tokens
        self.emits = emits
        self.is_decode = is_decode
        self.epoch = row.epoch


@mypyc_attr(allow_interpreted_subclasses=True)
class Flight:
    """A plan of which ``steps`` have no result yet: one, and those that carry it on. ``number`` is that of its first
    step. Each computes its ``parts``, and a token of every row that was in lockstep when it was planned: nothing at
    all, unless it ``computes``."""

    __slots__ = ("computes", "number", "parts", "steps")

    def __init__(self, number: int, parts: list[Part], *, computes: bool) -> None:
        self.number = number
        self.parts = parts
        self.computes = computes
        self.steps = 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Flights:
    """The plans in flight, oldest first, and the rows that decode in lockstep, whose tokens count as computed once they
    are planned. ``next_step`` is the number of the step that is planned next."""

    def __init__(self, decode: DecodeSet) -> None:
        self.next_step = 0
        self._decode = decode
        self._plans: list[Flight] = []  # few, so that a list is quickest at both ends
        self._last_steps: list[int] = []

    def __len__(self) -> int:
        return len(self._plans)

    def compute(self) -> bool:
        """True if a plan in flight computes anything."""
        return any(flight.computes for flight in self._plans)

    # -- rows --------------------------------------------------------------------------------------------------------

    def step_in(self, row: AsyncRow, limit: int) -> None:
        """Let a row that the last plan gave a token decode in lockstep until ``limit`` tokens of it are planned."""
        decode = self._decode
        row.num_tokens = num_tokens = row.num_computed_tokens + 1
        decode.join(row)
        row.since = self.next_step
        row.last_step = last_step = decode.steps + limit - num_tokens
        heappush(self._last_steps, last_step << _ID_BITS | row.id)

    def step_out(self, row: AsyncRow) -> None:
        """Count a row by itself, with its tokens in flight."""
        decode = self._decode
        decode.leave(row)
        row.num_hashable = max(row.num_hashable, row.num_computed_tokens - decode.lag)
        for flight in self._plans:
            if flight.number >= row.since:
                flight.parts.append(Part(row, row.num_computed_tokens - 1, 1, emits=True, is_decode=True))
                row.in_flight += flight.steps
                row.placeholders += flight.steps
        row.num_tokens -= row.placeholders

    def steps_to_last(self) -> int:
        """Steps until a row of the lockstep is complete with what is in flight; none if it is already."""
        heap, rows = self._last_steps, self._decode.rows
        while heap:
            last_step, request_id = heap[0] >> _ID_BITS, heap[0] & _ID_MASK
            row = rows.get(request_id)
            if row is not None and own(row).last_step == last_step:
                return last_step - self._decode.steps
            heappop(heap)
        return _NEVER

    def step_out_complete(self) -> list[AsyncRow]:
        """Those for which there is nothing left to plan leave the lockstep."""
        complete = []
        heap, decode = self._last_steps, self._decode
        # The first look spares most plans the second, which tells rows that have left meanwhile.
        while heap and heap[0] >> _ID_BITS <= decode.steps and not self.steps_to_last():
            row = own(decode.rows[heappop(heap) & _ID_MASK])
            self.step_out(row)
            complete.append(row)
        return complete

    # -- plans -------------------------------------------------------------------------------------------------------

    def take_off(self, parts: list[Part], *, computes: bool) -> None:
        """A plan was made: what it computes counts as computed."""
        self._plans.append(Flight(self.next_step, parts, computes=computes))
        self.next_step += 1
        self._decode.advance(1)

    def carry_on(self, steps: int) -> None:
        """The last plan, which is in flight, is carried on."""
        self._plans[-1].steps += steps
        self.next_step += steps
        self._decode.advance(steps)

    def land(self, steps: int) -> list[Part]:
        """Steps of the oldest plan have their result; returns what each of them computed beside the lockstep."""
        flight = self._plans[0]
        flight.steps -= steps
        if not flight.steps:
            self._plans.pop(0)
        return flight.parts


def own(row: Row) -> AsyncRow:
    """A row of this policy."""
    assert isinstance(row, AsyncRow)
    return row
