"""Blocks without ids. A world that has no memory needs to know how many blocks each one holds, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, overload

from policies.core.errors import ContractError


class Unnumbered(Sequence[int]):
    """So many blocks of a pool that only counts them. They can be cut, joined and put in another order like a list;
    asking for the id of one is a ContractError."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Unnumbered: ...
    def __getitem__(self, index: int | slice) -> int | Unnumbered:
        if isinstance(index, slice):
            start, stop, step = index.indices(self.number)
            return Unnumbered(len(range(start, stop, step)))
        raise ContractError("the id of a block is asked for, of a pool that only counts; build the policy numbered")

    def __setitem__(self, index: slice, blocks: Sequence[int]) -> None:
        """Other blocks, as many, take the place of these."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unnumbered) and self.number == other.number

    def __repr__(self) -> str:
        return f"{self.number} blocks"

    def extend(self, blocks: Sequence[int]) -> None:
        """These, too."""
        self.number += len(blocks)

    def reverse(self) -> None:
        """In the opposite order."""


Ids = list[int] | Unnumbered
"""Blocks that somebody holds and may change."""

Blocks = tuple[int, ...] | Unnumbered
"""Physical block ids, in the order of the tokens they hold. Whoever gets them changes nothing."""


ONE: Final = Unnumbered(1)
"""A block for a plan to tell of."""


def size(blocks: Ids) -> int:
    """Their number. This and ``part`` are what ``len`` and a slice give, at a fraction of the cost where compiled."""
    return blocks.number if isinstance(blocks, Unnumbered) else len(blocks)


def part(blocks: Ids, start: int, end: int) -> Ids:
    """Blocks ``start`` to ``end - 1``, of which there are that many."""
    return Unnumbered(end - start) if isinstance(blocks, Unnumbered) else blocks[start:end]


def frozen(blocks: Ids) -> Blocks:
    """A copy for others to keep."""
    return Unnumbered(blocks.number) if isinstance(blocks, Unnumbered) else tuple(blocks)
