"""What asynchronous scheduling keeps of its requests and of its plans in flight."""

from __future__ import annotations

from typing import NamedTuple

from policies.core.native import mypyc_attr
from policies.core.rows import Row


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


class Part(NamedTuple):
    """What one plan computes of a row that does not decode in lockstep, planned in its ``epoch``."""

    row: AsyncRow
    start: int
    num_tokens: int
    emits: bool
    is_decode: bool
    epoch: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Flight:
    """A plan of which ``steps`` have no result yet: one, and those that carry it on. ``number`` is that of its first
    step. Each step computes its ``parts``, and a token of every row that was in lockstep when it was planned."""

    __slots__ = ("computes", "number", "parts", "steps")

    def __init__(self, number: int, parts: list[Part], *, computes: bool) -> None:
        self.number = number
        self.parts = parts
        self.computes = computes
        self.steps = 1
