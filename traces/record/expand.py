"""Quiet runs expanded to their steps: the time of each boundary, and the blocks taken since the row began."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.record.columns import Numbers, StepTable, flatten

CHUNK_STEPS = 1 << 17


@dataclass(frozen=True)
class Expanded:
    """Arrays with one entry a step: the row it belongs to, its index in that row, and its two boundaries.

    ``offset`` has one entry a row: the place of its first step.
    """

    row: NDArray[np.int64]
    index: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    offset: NDArray[np.int64]


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

    The boundaries equal ``QuietRun.end_s`` bit for bit, since the expression and the types are the same.
    """
    steps = numbers["steps"]
    offset = np.cumsum(steps) - steps
    row = np.repeat(np.arange(len(steps)), steps)
    index = np.arange(len(row)) - offset[row]
    end_s = np.empty(len(row))
    end_s[offset + steps - 1] = numbers["end_s"]
    inner = np.flatnonzero(index < steps[row] - 1)
    end_s[inner] = _boundary_s(numbers, row[inner], index[inner] + 1)
    start_s = np.empty(len(row))
    start_s[1:] = end_s[:-1]
    start_s[offset] = numbers["start_s"]
    return Expanded(row, index, start_s, end_s, offset)


def _boundary_s(numbers: Numbers, row: NDArray[np.int64], i: NDArray[np.int64]) -> NDArray[np.float64]:
    k = numbers["first"][row] + i
    tokens = k * numbers["anchor_context"][row] + numbers["num_seqs"][row] * (k * (k - 1) // 2)
    duration_s = numbers["base_s"][row] * k + numbers["slope_s"][row] * tokens
    end_s: NDArray[np.float64] = numbers["anchor_s"][row] + duration_s
    return end_s


def blocks_taken(table: StepTable, steps: Expanded) -> NDArray[np.int64]:
    """Blocks each step's row has taken since its first step, that step's own included."""
    flat, lengths = _residues_of_runs(table)
    later = np.flatnonzero(steps.index > 0)
    row = steps.row[later]
    later, row = later[lengths[row] > 0], row[lengths[row] > 0]
    first = np.cumsum(lengths) - lengths
    taken = np.zeros(len(steps.row), np.int64)
    taken[later] = flat[first[row] + (table.numbers["phase"][row] + steps.index[later]) % lengths[row]]
    total = np.cumsum(taken)
    result: NDArray[np.int64] = total - total[steps.offset][steps.row]
    return result


def _residues_of_runs(table: StepTable) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    runs = np.flatnonzero(table.numbers["steps"] > 1)
    flat, run_lengths = flatten([table.residues[i] for i in runs.tolist()])
    lengths = np.zeros(len(table), np.int64)
    lengths[runs] = run_lengths
    return flat, lengths
