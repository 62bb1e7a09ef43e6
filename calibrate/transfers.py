"""Transfers of swapped KV blocks in sum, for the summary of a measured run and for the GPU check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_backend.swap import Moved


def by_direction(moved: Sequence[Moved]) -> dict[str, dict[str, float]]:
    """By ``out`` and ``in`` the number of transfers, their copies, bytes and seconds (``time_s``); a direction without
    transfers is left out."""
    found: dict[str, dict[str, float]] = {}
    for kind in ("out", "in"):
        mine = [one for one in moved if one.kind == kind]
        if mine:
            found[kind] = {
                "transfers": len(mine),
                "copies": sum(one.pieces for one in mine),
                "bytes": sum(one.num_bytes for one in mine),
                "time_s": sum(one.seconds for one in mine),
            }
    return found
