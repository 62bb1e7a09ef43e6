"""SGLang's requests, and its decoding rows: each takes one slot in every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from policies.core.native import mypyc_attr
from policies.core.plan import Chunk, Grant, Grants
from policies.core.radix import Text
from policies.core.radix_kv import RadixKv
from policies.core.request import Request, RequestId
from policies.core.rows import DecodeSet, Row
from policies.core.unnumbered import Ids, Unnumbered

_NOBODY: Final[frozenset[RequestId]] = frozenset()
_NO_PLACES: Final[Mapping[RequestId, int]] = {}
_NO_SLOTS: Final[Ids] = []

_LONG_STEPS: Final = 12
"""So many slots go into a table one by one before a slice of them is cheaper."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotRow(Row):
    """One request. An ``ended`` one stays in the running list until a decode pass finds it. ``may_hit`` is False while
    the cache cannot know any of its tokens: nobody shares them and it has not run."""

    ended = False

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.max_tokens = request.max_tokens
        self.text = Text(request.id, request.segments, request.prompt_tokens)
        self.may_hit = bool(request.segments)


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotRows(DecodeSet):
    """Decoding rows of a pool with one token a slot, always in running order."""

    def __init__(self, kv: RadixKv) -> None:
        super().__init__(kv)
        self._ids: list[Any] = []
        self._tables: list[Any] = []

    def join(self, row: Row) -> None:
        """Let a row decode behind all others from the next step on."""
        super().join(row)
        self._ids.append(row.id)
        self._tables.append(row.table)

    def leave(self, row: Row) -> None:
        """Take a row out; its counts are exact again."""
        super().leave(row)
        place = self._ids.index(row.id)
        del self._ids[place]
        del self._tables[place]

    def join_before(self, rows: Sequence[SlotRow]) -> None:
        """Let rows decode before all others from the next step on."""
        count = len(self._ids)
        for row in rows:
            self.join(row)
        self._ids = self._ids[count:] + self._ids[:count]
        self._tables = self._tables[count:] + self._tables[:count]
        before: dict[RequestId, Row] = {row.id: row for row in rows}
        before.update(self.rows)
        self.rows = before

    def reorder(self, rows: Sequence[SlotRow]) -> None:
        """All rows of the set, in the order in which they run from now on."""
        self.rows = {row.id: row for row in rows}
        self._ids = list(self.rows)
        self._tables = [row.table for row in rows]
        self.reordered()

    def take(self) -> Sequence[Grant]:
        """A new slot for each row in the next step, in running order."""
        return self.share_out(self._kv.pool.take(len(self._ids)))

    def share_out(self, slots: Ids) -> Sequence[Grant]:
        """Slots of one or several steps, each step's in running order."""
        tables = self._tables
        num_rows = len(tables)
        if isinstance(slots, Unnumbered):
            counted: list[Unnumbered] = tables
            steps = slots.number // num_rows
            for one in counted:
                one.number += steps
        elif len(slots) > _LONG_STEPS * num_rows:
            for place, table in enumerate(tables):
                table += slots[place::num_rows]
        else:
            for start in range(0, len(slots), num_rows):
                # Compiled, a strict zip would be an iterator; this one is a loop over two indices.
                for table, slot in zip(tables, slots[start : start + num_rows]):  # noqa: B905
                    table.append(slot)
        return Grants(tuple(self._ids), slots)


@mypyc_attr(allow_interpreted_subclasses=True)
class Flight:
    """A plan of which ``steps`` have no result yet: one, and those that carry it on. ``dropped`` requests are told
    nothing of it; ``slots`` are those that it writes for requests that have ended meanwhile. ``is_booked`` once its
    decoding rows count the token they get of the last of its steps, that of the others they count always.
    ``places`` are those of its rows where the running list has been put into another order since."""

    __slots__ = ("chunks", "decodes", "dropped", "is_booked", "places", "slots", "steps")

    def __init__(self, chunks: Sequence[Chunk], *, decodes: bool, steps: int = 1) -> None:
        self.chunks = chunks
        self.decodes = decodes
        self.steps = steps
        self.is_booked = False
        self.dropped: frozenset[RequestId] = _NOBODY
        self.places: Mapping[RequestId, int] = _NO_PLACES
        self.slots: Ids = _NO_SLOTS

    def hold(self, slots: Ids) -> None:
        """Keep slots until this has ended."""
        if self.slots:
            self.slots.extend(slots)
        else:
            self.slots = slots

    def let_go(self) -> Ids:
        """The slots it keeps, which it does not any more."""
        slots, self.slots = self.slots, _NO_SLOTS
        return slots

    @property
    def gives_back(self) -> bool:
        """True if its end changes the memory: prompts enter the cache, slots of ended requests come back."""
        return bool(self.chunks or self.slots)

    def makes_token_of(self, row: SlotRow) -> bool:
        """True if the tokens of a row count one that this step is still making."""
        if self.decodes and self.is_booked and row.is_decoding:
            return True
        return any(chunk.id == row.id and chunk.emits for chunk in self.chunks)


@mypyc_attr(allow_interpreted_subclasses=True)
class RunningList:
    """SGLang's running batch: requests in order, those that ended included until they are dropped, and the decoding
    rows among them. ``max_tokens`` is the sum of theirs."""

    def __init__(self, kv: RadixKv) -> None:
        self.rows: dict[RequestId, SlotRow] = {}
        self.decode = SlotRows(kv)
        self.max_tokens = 0
        self._first_order = self._last_order = 0
        self._ended: list[SlotRow] = []

    def append(self, rows: Iterable[SlotRow]) -> None:
        """Let prefilled rows decode from now on."""
        for row in rows:
            self._last_order += 1
            row.order = self._last_order
            self.rows[row.id] = row
            self.max_tokens += row.max_tokens
            self.decode.join(row)

    def put_before(self, rows: Sequence[SlotRow]) -> None:
        """Let prefilled rows decode from now on, before all others."""
        self._first_order = order = self._first_order - len(rows)
        before: dict[RequestId, SlotRow] = {}
        for row in rows:
            order += 1
            row.order = order
            before[row.id] = row
            self.max_tokens += row.max_tokens
        before.update(self.rows)
        self.rows = before
        self.decode.join_before(rows)

    def reseat(self, rows: Sequence[SlotRow]) -> None:
        """Make ``rows``, which decode, the list, in this order."""
        self.rows = {row.id: row for row in rows}
        self.max_tokens = sum([row.max_tokens for row in rows])
        for row in rows:
            self._last_order += 1
            row.order = self._last_order
        self.decode.reorder(rows)

    def end(self, row: SlotRow) -> None:
        """A request has ended; if it is in the list, its place is free when the ended ones are dropped."""
        row.ended = True
        self._ended.append(row)

    def drop_ended(self) -> None:
        """Forget the ended ones."""
        if self._ended:
            for row in self._ended:
                if self.rows.pop(row.id, None) is not None:
                    self.max_tokens -= row.max_tokens
            self._ended = []

    def live(self) -> list[RequestId]:
        """Those that have not ended."""
        return [key for key, row in self.rows.items() if not row.ended]
