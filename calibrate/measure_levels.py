"""Divides out what slows the whole machine down for a while: other work on it, heat, a lower clock."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)
_AROUND = 7
"""Neighbours on each side, in the order of time, that say how slow the machine was just then."""


def levelled(timed: Sequence[tuple[_K, float]]) -> Mapping[_K, list[float]]:
    """Times by point of what was timed, in the order of time: each over how slow its neighbours were against their own
    medians; what slows all of them alike all the time stays."""
    raw: dict[_K, list[float]] = {}
    for key, seconds in timed:
        raw.setdefault(key, []).append(seconds)
    usual = {key: statistics.median(times) for key, times in raw.items()}
    found: dict[_K, list[float]] = {}
    slowness = [seconds / usual[key] for key, seconds in timed]
    for place, (key, seconds) in enumerate(timed):
        around = slowness[max(0, place - _AROUND) : place + _AROUND + 1]
        found.setdefault(key, []).append(seconds / statistics.median(around))
    return found
