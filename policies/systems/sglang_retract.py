"""How SGLang gives slots back when a decode pass finds too few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from policies.core.radix_kv import RadixKv
from policies.systems.sglang_admission import Made
from policies.systems.sglang_rows import SlotRow

RETRACT_TOKENS = 20
"""Slots that must be free for each remaining request before retraction stops."""


class Retraction(NamedTuple):
    """``kept`` go on, in this order; ``retracted`` start over, in the order it happened. ``ratio`` is the part of the
    remaining output to reserve from now on. ``is_stuck``: the last one left has no slot."""

    kept: tuple[SlotRow, ...]
    retracted: tuple[SlotRow, ...]
    ratio: float
    is_stuck: bool


def retract(kv: RadixKv, rows: Sequence[Made]) -> Retraction:
    """Retract at least one request, and until ``RETRACT_TOKENS`` slots a remaining one are free or one remains.

    Fewest output tokens first, of those with as many the longest prompt. Tables of the retracted are closed.
    """
    left = sorted(rows, key=lambda made: (made[1], -made[0].prompt_tokens), reverse=True)
    gone: list[SlotRow] = []
    is_stuck = False
    while not gone or kv.pool.num_free < RETRACT_TOKENS * len(left):
        if len(left) == 1:
            is_stuck = not kv.pool.num_free
            break
        row, _ = left.pop()
        gone.append(row)
        kv.retract(row.id)
        kv.evict(RETRACT_TOKENS * len(left) - kv.pool.num_free)
    made = sum(outputs for _, outputs in left) + RETRACT_TOKENS * len(left)
    limits = sum(row.max_tokens for row, _ in left)
    return Retraction(tuple(row for row, _ in left), tuple(gone), min(1.0, made / limits), is_stuck)
