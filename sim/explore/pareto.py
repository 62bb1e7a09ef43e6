"""Pareto fronts of latency and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A point by number, with its latency (less is better) and its throughput (more is better)."""

    number: int
    latency: float
    throughput: float


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other one beats: neither as fast with more throughput, nor faster with as much. From the least
    latency on; of equals the first."""
    kept: list[Candidate] = []
    for one in sorted(candidates, key=lambda one: (one.latency, -one.throughput, one.number)):
        if not kept or one.throughput > kept[-1].throughput:
            kept.append(one)
    return kept


def knee(ordered: Sequence[Candidate]) -> Candidate | None:
    """The candidate of a front that lies farthest above the straight line between its ends, each axis scaled to its
    range; of two or fewer the last one, of none None."""
    if len(ordered) < 3:
        return ordered[-1] if ordered else None
    first, last = ordered[0], ordered[-1]
    width, height = last.latency - first.latency, last.throughput - first.throughput

    def above(one: Candidate) -> float:
        return (one.throughput - first.throughput) / height - (one.latency - first.latency) / width

    return max(ordered, key=above)
