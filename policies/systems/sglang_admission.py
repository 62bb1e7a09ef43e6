"""Which waiting requests SGLang prefills in one batch: estimates of the memory they and the running ones will need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from policies.core.errors import EngineDied
from policies.core.native import mypyc_attr
from policies.core.plan import Chunk
from policies.core.radix import Prefix
from policies.core.radix_kv import RadixKv
from policies.systems.sglang_rows import SlotRow

CLIP_TOKENS = 4_096
"""No estimate counts more output tokens than this for one request."""

RESERVE_TOKENS = 1
"""Slots that the replay of completions keeps free for each request."""


_new_tuple: Final = tuple.__new__

Made = tuple[SlotRow, int]
"""A request and the output tokens that are known of it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Admission:
    """One prefill batch while it is put together. ``chunks`` are its rows, ``started`` those from the waiting queue.

    ``running`` gives the requests of the running list, ended ones included, whose ``max_tokens`` add up to
    ``max_running_tokens``. ``ratio`` is the part of what they have left that they are expected to make.
    ``num_mixed`` decoding rows ride along and count against all limits: ``max_prefill_tokens`` and, if not 0,
    ``chunk_tokens`` of this batch.
    """

    def __init__(
        self,
        kv: RadixKv,
        *,
        ratio: float,
        running: Callable[[], Sequence[Made]],
        max_running_tokens: int,
        num_mixed: int,
        max_prefill_tokens: int,
        chunk_tokens: int,
    ) -> None:
        self.chunks: list[Chunk] = []
        self.started: list[tuple[SlotRow, Prefix | None]] = []
        self.chunked: SlotRow | None = None
        self.rows: list[SlotRow] = []
        self._kv, self._ratio, self._running = kv, ratio, running
        self._prefill_left = max_prefill_tokens - num_mixed
        self._chunk_left = chunk_tokens - num_mixed if chunk_tokens else None
        self._expected: float | None = None
        self._most_expected = max_running_tokens * ratio + 1.0
        self._taken = self._num_mixed = num_mixed
        self._charged: list[int] = []
        self._ends: list[tuple[int, int]] | None = None

    # -- the chunked request -----------------------------------------------------------------------------------------

    def go_on(self, row: SlotRow, *, faithful: bool) -> None:
        """The next chunk of the request in mid-prefill: first in the batch, without any look at memory."""
        left = self._chunk_left
        assert left is not None
        if left < 0:
            if faithful:
                raise EngineDied(
                    f"more decoding requests than the {left + self._taken} tokens of a chunk ride along with a prompt"
                )
            left = 0
        rest = row.num_tokens - row.num_computed_tokens
        count = min(rest, left)
        self._append(row, row.num_computed_tokens, count, is_last=count == rest)

    def _append(self, row: SlotRow, start: int, count: int, *, is_last: bool) -> None:
        self.rows.append(row)
        self.chunks.append(_new_tuple(Chunk, (row.id, start, count, is_last)))
        charge = count + (min(row.max_tokens, CLIP_TOKENS) if is_last else 0)
        self._charged.append(charge)
        self._most_expected += charge
        if self._expected is not None:
            self._expected += charge
        self._taken += count
        self._prefill_left -= count
        if self._chunk_left is not None:
            self._chunk_left -= count
        if not is_last:
            self.chunked = row

    # -- waiting requests --------------------------------------------------------------------------------------------

    def add(self, row: SlotRow, *, replay: bool) -> str:
        """Try a waiting request; returns what stops admission here (``kv_blocks`` or ``token_budget``), or "".

        The request may have been admitted all the same: look at ``rows``. ``replay`` asks for the exact test of
        engines whose requests all run to ``max_tokens``.
        """
        prefix = self._kv.find(row.text, row.num_tokens - 1)
        if replay:
            return self._add_by_replay(row)
        start = prefix.num_tokens if prefix is not None else 0
        extend = row.num_tokens - start
        total = extend + min(row.max_tokens, CLIP_TOKENS)
        if not self._fits(total):
            return "kv_blocks"
        if extend >= self._prefill_left and self.rows:
            return "token_budget"
        if prefix is not None and self._kv.tree is not None:
            self._kv.tree.lock(prefix.node)
            refused = self._refusal(extend, total)
            if refused:
                self._kv.tree.unlock(prefix.node)
                return refused
        elif refused := self._refusal(extend, total):
            return refused
        self._start(row, prefix, start, extend)
        return self._limit()

    def _refusal(self, extend: int, total: int) -> str:
        """The second look: locking the prefix may have taken memory away."""
        if not self._fits(total):
            return "kv_blocks"
        return "token_budget" if self._chunk_left is not None and min(extend, self._chunk_left) <= 0 else ""

    def _start(self, row: SlotRow, prefix: Prefix | None, start: int, extend: int) -> None:
        left = self._chunk_left
        count = extend if left is None else min(extend, left)
        self.started.append((row, prefix))
        self._append(row, start, count, is_last=count == extend)

    def _fits(self, num_tokens: int) -> bool:
        """True if the memory left beside all that is expected exceeds ``num_tokens``; where it does by far, nobody
        adds the expectations up."""
        most = num_tokens + self._num_mixed + self._most_expected
        return most < self._kv.num_free or num_tokens < self._memory_left()

    def _memory_left(self) -> float:
        if self._expected is None:
            expected = 0.0
            for row, made in self._running():
                expected += min(row.max_tokens - made, CLIP_TOKENS) * self._ratio
            self._expected = self._num_mixed + expected
            for charge in self._charged:
                self._expected += charge
        return self._kv.num_free - self._expected

    def _slots_left(self) -> int:
        return self._kv.num_free - self._taken

    def _limit(self) -> str:
        if not self._fits(0) or self._slots_left() <= 0:
            return "kv_blocks"
        is_full = self._prefill_left <= 0 or (self._chunk_left is not None and self._chunk_left <= 0)
        return "token_budget" if is_full else ""

    # -- the replay of completions -----------------------------------------------------------------------------------

    def _add_by_replay(self, row: SlotRow) -> str:
        extend = row.num_tokens
        if extend > min(self._slots_left(), self._memory_left()):
            return "kv_blocks"
        if not self._all_can_end(row):
            return "kv_blocks"
        if self._chunk_left == 0 and extend:
            return "token_budget"
        self._start(row, None, 0, extend)
        return self._limit()

    def _all_can_end(self, row: SlotRow) -> bool:
        """Let all requests end in order of the tokens they have still to make, each giving its slots back."""
        if self._ends is None:
            known = [_made(row), *self._running(), *map(_made, self.rows)]
            self._ends = sorted(_ends(known), key=lambda end: end[0])
        else:
            for end in _ends([_made(row)]):
                last = max(len(self._ends) - 1, 0)  # at worst it is put before the last one
                place = next((i for i, other in enumerate(self._ends) if end[0] <= other[0]), last)
                self._ends.insert(place, end)
        free = self._slots_left() - row.prompt_tokens
        for index, (left, held) in enumerate(self._ends):
            num_running = len(self._ends) - index
            if free - left * num_running <= RESERVE_TOKENS * num_running:
                return False
            free += held
        return True


def _made(row: SlotRow) -> Made:
    """For a row that does not decode."""
    return row, row.num_tokens - row.prompt_tokens


def _ends(rows: Iterable[Made]) -> list[tuple[int, int]]:
    """Tokens still to make and slots held, of the requests that have any to make."""
    return [(row.max_tokens - made, row.prompt_tokens + made) for row, made in rows if row.max_tokens > made]
