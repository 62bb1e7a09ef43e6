"""Counts the steps that a cost model was asked for outside its measured range."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from traces.record.columns import RequestTable, StallTable, StepTable

LIMITS = ("tokens", "sequences", "context")
"""What a step is held against, in the order of ``Ranged.largest_step``."""

WARNING_SHARE = 0.05
"""Above this share of the steps the notice is a warning."""

_WORDS = {"tokens": "tokens of a step", "sequences": "sequences", "context": "mean context"}


class Ranged(Protocol):
    """A cost model that knows the largest step it was fitted to."""

    @property
    def largest_step(self) -> tuple[int, int, int]:
        """Most tokens of a step, most decoding sequences, and longest mean context, as measured."""


class Limit(NamedTuple):
    """One limit: what was ``measured``, the ``largest`` asked for, and the ``steps`` that exceed it."""

    name: str
    measured: int
    largest: float
    steps: int


class ExtrapolationSink:
    """A ``TableSink``; ``steps`` counts those whose tokens, sequences or mean context exceed what was measured.

    ``total`` counts all steps. A quiet run counts as a whole by its first step.
    """

    def __init__(self, costs: Ranged) -> None:
        self.steps = 0
        self.total = 0
        self._measured = costs.largest_step
        self._largest = [0.0] * len(LIMITS)
        self._beyond = [0] * len(LIMITS)

    def step_table(self, table: StepTable) -> None:
        """A batch of steps."""
        numbers = table.numbers
        counts = numbers["steps"]
        if not len(counts):
            return
        seqs = numbers["num_seqs"]
        sizes = (numbers["num_tokens"], seqs, numbers["sum_context"] / np.maximum(seqs, 1))
        outside = np.zeros(len(counts), dtype=bool)
        for place, (size, measured) in enumerate(zip(sizes, self._measured, strict=True)):
            beyond = size > measured
            self._largest[place] = max(self._largest[place], float(size.max()))
            self._beyond[place] += int(np.sum(counts[beyond]))
            outside |= beyond
        self.steps += int(np.sum(counts[outside]))
        self.total += int(np.sum(counts))

    def limits(self) -> tuple[Limit, ...]:
        """Tokens, sequences and context, in this order."""
        return tuple(map(Limit, LIMITS, self._measured, self._largest, self._beyond))

    def shares(self) -> dict[str, float] | None:
        """Share of the steps beyond each limit, 0 to 1; None without steps. A step may exceed several."""
        return {limit.name: limit.steps / self.total for limit in self.limits()} if self.total else None

    def notice(self, median_error: float | None) -> str:
        """What a reader must know, else "": a warning from ``WARNING_SHARE`` on, which says that the cost model's
        ``median_error`` does not hold there."""
        if not self.steps:
            return ""
        beyond = [limit for limit in self.limits() if limit.steps]
        where = "; ".join(
            f"{_WORDS[limit.name]} up to {limit.largest:,.0f}, measured to {limit.measured:,}" for limit in beyond
        )
        share = self.steps / self.total
        if share <= WARNING_SHARE:
            return f"{self.steps:,} of {self.total:,} steps are outside the measured range ({where})"
        error = "held-out error" if median_error is None else f"{100 * median_error:.1f} % error"
        return (
            f"WARNING: {_percent(share)} % of the steps are outside the measured range ({where});"
            f" the {error} does not apply to them"
        )

    def request_table(self, table: RequestTable) -> None:
        """Requests do not matter."""

    def stall_table(self, table: StallTable) -> None:
        """Nor do stalls."""

    def close(self) -> None:
        """Nothing is held open."""


def _percent(share: float) -> str:
    """Whole percent; all of them only where it is all of them."""
    return f"{100 * share:.0f}" if share <= 0.99 or share == 1.0 else "more than 99"
