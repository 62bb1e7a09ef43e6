"""Free queue of one tier's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.core.errors import ContractError
from policies.core.prefix import PrefixCache
from policies.core.unnumbered import Ids, Unnumbered

_PIECE: Final = 4096
"""So many blocks that nobody has had yet come into the queue at a time."""


class BlockPool:
    """Physical block ids, handed out from the head of a queue and given back at its tail.

    Two lists instead of a linked one: blocks are taken from the first, behind a head index, and given back to the
    second, which takes the place of the first when that is used up; before that come, piece by piece, blocks that
    nobody has had yet, so that a pool costs nothing until it is used. Taking and giving back are slices, so that
    reserving thousands of blocks costs no more than a handful. A block taken out of the middle (a prefix hit) leaves a
    stale entry behind that is passed over when it reaches the head. It always stands before the block's next entry.
    ``cache`` knows what free blocks still hold, and is told when they are handed out.
    """

    __slots__ = ("_cache", "_fresh", "_head", "_named", "_queue", "_returned", "_stale", "num_blocks", "num_free")

    def __init__(self, num_blocks: int, first: int = 0, cache: PrefixCache | None = None) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._cache = cache
        self._named = cache.hash_of if cache is not None else {}
        self._fresh = range(first, first + num_blocks)
        self._queue: list[int] = []
        self._head = 0
        self._returned: list[int] = []
        self._stale: dict[int, int] = {}

    def take(self, count: int) -> Ids:
        """``count`` blocks from the head; what they held is forgotten. Raises ContractError if fewer are free."""
        self._book(count)
        if self._stale:
            taken = [self._next() for _ in range(count)]
        else:
            head = self._head
            self._head = end = head + count
            taken = self._queue[head:end]
            while len(taken) < count:
                self._turn()
                self._head = end = count - len(taken)
                taken += self._queue[:end]
        if self._named and self._cache is not None:
            self._cache.evict(taken)
        return taken

    def _book(self, count: int) -> None:
        num_free = self.num_free - count
        if num_free < 0:
            raise ContractError(f"{count} KV blocks asked for, {self.num_free} free")
        self.num_free = num_free

    def _turn(self) -> None:
        """The first list is used up."""
        if self._fresh:
            self._queue, self._fresh = list(self._fresh[:_PIECE]), self._fresh[_PIECE:]
        else:
            self._queue, self._returned = self._returned, []
        self._head = 0

    def _next(self) -> int:
        while True:
            if self._head == len(self._queue):
                self._turn()
            block = self._queue[self._head]
            self._head += 1
            pending = self._stale.get(block, 0)
            if not pending:
                return block
            if pending == 1:
                del self._stale[block]
            else:
                self._stale[block] = pending - 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """Append free blocks at the tail, in the given order."""
        self._returned += blocks
        self.num_free += len(blocks)

    def give_back_first(self, blocks: Sequence[int]) -> None:
        """Put free blocks at the head, in the given order: they are handed out next. None of them may have a stale
        entry, which is so for all that were taken from the head since."""
        head = self._head
        self._head = start = max(head - len(blocks), 0)
        self._queue[start:head] = blocks
        self.num_free += len(blocks)

    def withdraw(self, blocks: Sequence[int]) -> None:
        """Take particular free blocks out of the queue."""
        stale = self._stale
        for block in blocks:
            stale[block] = stale.get(block, 0) + 1
        self.num_free -= len(blocks)

    def free_blocks(self) -> Ids:
        """The free blocks in order; O(pool), for checks."""
        stale = dict(self._stale)
        free = []
        for block in (*self._queue[self._head :], *self._fresh, *self._returned):
            if stale.get(block, 0):
                stale[block] -= 1
            else:
                free.append(block)
        return free


class CountedPool(BlockPool):
    """A pool whose blocks have no ids: it knows how many are free."""

    __slots__ = ()

    def take(self, count: int) -> Ids:
        """``count`` blocks. Raises ContractError if fewer are free."""
        self._book(count)
        return Unnumbered(count)

    def give_back(self, blocks: Sequence[int]) -> None:
        """These are free again."""
        self.num_free += len(blocks)

    def free_blocks(self) -> Ids:
        """The free blocks."""
        return Unnumbered(self.num_free)
