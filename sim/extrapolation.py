"""Counts the steps that a cost model was asked for outside its measured range."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from traces.record.columns import RequestTable, StallTable, StepTable


class Ranged(Protocol):
    """A cost model that knows the largest step it was fitted to."""

    @property
    def largest_step(self) -> tuple[int, int, int]:
        """Most tokens of a step, most decoding sequences, and longest mean context, as measured."""


class ExtrapolationSink:
    """A ``TableSink``; ``steps`` counts those whose tokens, sequences or mean context exceed what was measured.

    A quiet run counts as a whole by its first step.
    """

    def __init__(self, costs: Ranged) -> None:
        self.steps = 0
        self._largest = costs.largest_step

    def step_table(self, table: StepTable) -> None:
        """A batch of steps."""
        numbers = table.numbers
        tokens, seqs, context = self._largest
        outside = (numbers["num_tokens"] > tokens) | (numbers["num_seqs"] > seqs)
        outside |= numbers["sum_context"] > numbers["num_seqs"] * context
        self.steps += int(np.sum(numbers["steps"][outside]))

    def request_table(self, table: RequestTable) -> None:
        """Requests do not matter."""

    def stall_table(self, table: StallTable) -> None:
        """Nor do stalls."""

    def close(self) -> None:
        """Nothing is held open."""
