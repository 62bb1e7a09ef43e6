"""Quiet runs expanded to their steps: the time of each boundary, and the blocks taken since the row began."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.record.columns import Numbers, StepTable, flatten

CHUNK_STEPS = 1 << 17


@dataclass(frozen=True)
class Expanded:
    """Arrays with one entry a step: its index in its row, and its two boundaries.

    ``steps`` and ``offset`` have one entry a row: its number of steps, and the place of its first step.
    """

    steps: NDArray[np.int64]
    index: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    offset: NDArray[np.int64]

    def each(self, values: NDArray[Any]) -> NDArray[Any]:
        """What is given for each row (last axis), for each step of it."""
        return np.repeat(values, self.steps, axis=-1)

    @property
    def is_last(self) -> NDArray[np.bool_]:
        """True for the last step of a row."""
        last = np.zeros(len(self.index), np.bool_)
        last[self.offset + self.steps - 1] = True
        return last


def chunks(table: StepTable, max_steps: int = CHUNK_STEPS) -> Iterator[StepTable]:
    """Parts of whole rows with at most ``max_steps`` steps each (one row at least), so that memory stays
    bounded."""
    until = np.cumsum(table.numbers["steps"])
    low = 0
    while low < len(until):
        done = int(until[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(until, done + max_steps, side="right")))
        yield table[low:high]
        low = high


def expand(numbers: Numbers) -> Expanded:
    """Every step of the rows.

    The boundaries equal ``QuietRun.end_s`` bit for bit, since the expression and the types are the same: its sums are
    taken in place, and a sum of two does not depend on their order.
    """
    steps = numbers["steps"]
    offset = np.cumsum(steps) - steps
    index = np.arange(int(steps.sum())) - np.repeat(offset, steps)
    end_s = _boundaries_s(numbers, index + 1)
    end_s[offset + steps - 1] = numbers["end_s"]
    start_s = np.empty(len(index))
    start_s[1:] = end_s[:-1]
    start_s[offset] = numbers["start_s"]
    return Expanded(steps, index, start_s, end_s, offset)


def _boundaries_s(numbers: Numbers, i: NDArray[np.int64]) -> NDArray[np.float64]:
    steps = numbers["steps"]
    k = np.repeat(numbers["first"], steps) + i
    tokens = k * (k - 1) >> 1
    tokens *= np.repeat(numbers["num_seqs"], steps)
    tokens += np.repeat(numbers["anchor_context"], steps) * k
    end_s: NDArray[np.float64] = np.repeat(numbers["slope_s"], steps) * tokens
    end_s += np.repeat(numbers["base_s"], steps) * k
    end_s += np.repeat(numbers["anchor_s"], steps)
    return end_s


def blocks_taken(table: StepTable, steps: Expanded) -> NDArray[np.int64]:
    """Blocks each step's row has taken since its first step, that step's own included."""
    flat, lengths = _residues_of_runs(table)
    taken = np.zeros(len(steps.index), np.int64)
    if not len(flat):
        return taken
    length = steps.each(lengths)
    later = np.flatnonzero((steps.index > 0) & (length > 0))
    place = steps.each(table.numbers["phase"])[later] + steps.index[later]
    first = steps.each(np.cumsum(lengths) - lengths)[later]
    taken[later] = flat[first + place % length[later]]
    total = np.cumsum(taken)
    result: NDArray[np.int64] = total - steps.each(total[steps.offset])
    return result


def _residues_of_runs(table: StepTable) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    runs = np.flatnonzero(table.numbers["steps"] > 1)
    flat, run_lengths = flatten([table.residues[i] for i in runs.tolist()])
    lengths = np.zeros(len(table), np.int64)
    lengths[runs] = run_lengths
    return flat, lengths
