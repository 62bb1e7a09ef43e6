"""Sums over the steps of a run: occupancy, KV use, slots, limits, and the regular inter-token gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.core.errors import ContractError
from traces.record.columns import StepTable
from traces.record.expand import Expanded, blocks_taken


@dataclass(frozen=True)
class StepMetrics:
    """Means over the run. ``*_mean`` of occupancy and KV use are weighted by time over the whole run, idle
    included.

    ``occupancy_mean`` = running / max_num_seqs. ``kv_utilization_*`` = used / usable blocks, in 0..1, blocks
    booked for a step being used from its start. ``fragmentation_mean`` = 1 - stored tokens (at the end of the
    step) / slots of the used blocks, over the time in which blocks are used. ``slot_waste`` = 1 - useful /
    all slot-steps, where each decoding row that is paid for and each completed prompt is one. ``rows_mean``
    counts the same, per step. ``limited_by`` are shares of the busy time and sum to 1.
    """

    count: int
    rows_mean: float | None
    tokens_mean: float | None
    busy_s: float
    occupancy_mean: float | None
    kv_utilization_mean: float | None
    kv_utilization_max: float | None
    fragmentation_mean: float | None
    slot_waste: float | None
    limited_by: dict[str, float]
    moved_bytes: int


class StepSums:
    """Accumulates tables of steps, in order of time, into a few numbers.

    ``running_s`` is the number of running requests integrated over time, ``end_s`` the end of the last step.
    """

    def __init__(self, num_gpu_blocks: int, block_size: int) -> None:
        self._num_gpu_blocks, self._block_size = num_gpu_blocks, block_size
        self._count = self._rows = self._tokens = self._slots = self._useful = self._moved_bytes = 0
        self._busy_s = self.running_s = self._used_s = self._fragmented_s = self._holding_s = 0.0
        self._max_used = 0
        self._limited_s: dict[str, float] = {}
        self.end_s = -np.inf

    def add(self, part: StepTable, steps: Expanded) -> None:
        """Book rows and their expansion."""
        self._add_counts(part)
        weight_s = self._interval_s(steps)
        self._add_times(part, steps, weight_s)
        self._add_kv(part, steps, weight_s)

    def metrics(self, duration_s: float, max_num_seqs: int) -> StepMetrics:
        """The means over a run of ``duration_s``; None without steps."""
        per_step = 1.0 / self._count if self._count else None
        run_s = max(duration_s, self._busy_s)
        blocks_s = self._num_gpu_blocks * run_s
        return StepMetrics(
            count=self._count,
            rows_mean=per_step and self._slots * per_step,
            tokens_mean=per_step and self._tokens * per_step,
            busy_s=self._busy_s,
            occupancy_mean=self.running_s / (max_num_seqs * run_s) if self._busy_s else None,
            kv_utilization_mean=self._used_s / blocks_s if self._busy_s and blocks_s else None,
            kv_utilization_max=self._max_used / self._num_gpu_blocks if self._count and blocks_s else None,
            fragmentation_mean=self._fragmented_s / self._holding_s if self._holding_s else None,
            slot_waste=1.0 - self._useful / self._slots if self._slots else None,
            limited_by={
                cause: time_s / self._busy_s for cause, time_s in sorted(self._limited_s.items()) if time_s
            },
            moved_bytes=self._moved_bytes,
        )

    def _add_counts(self, part: StepTable) -> None:
        numbers = part.numbers
        steps = numbers["steps"]
        chunk_emits = int(numbers["chunk_emits"].sum())
        self._count += int(steps.sum())
        self._tokens += int(np.dot(steps, numbers["num_tokens"]))
        self._slots += int(np.dot(steps, numbers["num_seqs"])) + chunk_emits
        self._useful += int(np.dot(steps, numbers["emitting"])) + chunk_emits
        self._moved_bytes += int(numbers["moved_bytes"].sum())

    def _interval_s(self, steps: Expanded) -> NDArray[np.float64]:
        """Wall-clock time that each step adds to the steps before it: its duration unless it overlaps one of
        them."""
        covered_s = np.maximum.accumulate(np.concatenate(([self.end_s], steps.end_s)))
        self.end_s = float(covered_s[-1])
        return np.maximum(steps.end_s - np.maximum(steps.start_s, covered_s[:-1]), 0.0)

    def _add_times(self, part: StepTable, steps: Expanded, weight_s: NDArray[np.float64]) -> None:
        row_s = np.add.reduceat(weight_s, steps.offset)
        self._busy_s += float(row_s.sum())
        self.running_s += _weighted(row_s, part.numbers["running"])
        codes = {cause: code for code, cause in enumerate(dict.fromkeys(part.limited_by))}
        code = np.fromiter(map(codes.__getitem__, part.limited_by), np.int64, len(part.limited_by))
        for cause, time_s in zip(codes, np.bincount(code, row_s), strict=True):
            self._limited_s[cause] = self._limited_s.get(cause, 0.0) + float(time_s)

    def _add_kv(self, part: StepTable, steps: Expanded, weight_s: NDArray[np.float64]) -> None:
        numbers, each = part.numbers, steps.each
        used = each(self._num_gpu_blocks - numbers["free_blocks"]) + blocks_taken(part, steps)
        stored = each(numbers["stored_tokens"] + numbers["chunk_tokens"])
        stored += (steps.index + 1) * each(numbers["emitting"])
        self._used_s += _weighted(used, weight_s)
        self._max_used = max(self._max_used, int(used.max()))
        # Shared prefix blocks may store more tokens than they have slots; that is no fragmentation.
        waste = np.maximum(1.0 - stored / np.maximum(used * self._block_size, 1), 0.0)
        holding_s = np.where(used > 0, weight_s, 0.0)
        self._fragmented_s += _weighted(waste, holding_s)
        self._holding_s += float(holding_s.sum())


def regular_gaps(part: StepTable, steps: Expanded) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Inter-token gaps of the decoding rows, step by step, with their counts; those that come as stalls left
    out."""
    numbers = part.numbers
    after_s, regular = steps.start_s.copy(), steps.each(numbers["emitting"])
    after_s[steps.offset] = numbers["previous_emit_s"]
    regular[steps.offset] -= numbers["irregular"]
    kept = regular > 0
    gap_s = (steps.end_s - after_s)[kept]
    if not np.all(gap_s >= 0.0):
        raise ContractError(
            "a step row has regular gaps, but its previous_emit_s is missing or later than its tokens"
        )
    return gap_s, regular[kept]


def tokens_of_steps(part: StepTable, steps: Expanded) -> NDArray[np.int64]:
    """Tokens emitted at the end of each step."""
    emitted: NDArray[np.int64] = steps.each(part.numbers["emitting"])
    emitted[steps.offset + part.numbers["steps"] - 1] += part.numbers["chunk_emits"]
    return emitted


def _weighted(values: NDArray[Any], weights: NDArray[Any]) -> float:
    # Not a dot product: that may run on several threads, which costs CPU time and makes the last bits depend
    # on them.
    return float(np.sum(values * weights))
