"""What a page shows of a run of any length: means, least and most over time, and gaps by cause, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.core.errors import UserError
from traces.metrics.bins import Bins
from traces.metrics.gaps import GapCounts
from traces.record.columns import RequestTable, RowsToColumns, StallTable, StepTable
from traces.record.expand import Expanded, blocks_taken, expand
from traces.record.expand import chunks as in_chunks

SCHEMA = 1
DIGEST_NAME = "digest.json"
"""Its file in a run folder."""

MAX_BINS = 512
LEVELS = ("running", "waiting", "swapped", "used_blocks")
"""What has a level at each moment; a digest keeps its integral, its least and its most in each bin."""

Floats = NDArray[np.float64]


class StepSplit(Protocol):
    """Says where the time of steps goes; a cost model can, a measured run may not."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the terms."""

    def seconds(self, part: StepTable, steps: Expanded) -> Floats:
        """(terms, steps): seconds of each term in each step; they sum to the step's duration."""

    def floor_s(self, part: StepTable, steps: Expanded) -> Floats:
        """(steps,): least seconds that the hardware needs for each step."""


class DigestSink(RowsToColumns):
    """A ``RecordSink`` (and ``TableSink``) that gathers the digest of one run.

    The bins start as narrow as ``width_s`` and double whenever the run outgrows ``MAX_BINS`` of them. ``split`` divides
    the steps' time into terms. With ``delivery`` batch_end tokens come together and have no gaps to tell apart.
    """

    def __init__(
        self,
        *,
        num_gpu_blocks: int,
        split: StepSplit | None = None,
        delivery: Literal["step", "every_k", "batch_end"] = "step",
        width_s: float = 2.0**-6,
    ) -> None:
        self._num_gpu_blocks, self._split = num_gpu_blocks, split
        self._by_step = delivery != "batch_end"
        self._bins = Bins(MAX_BINS, width_s, LEVELS)
        self._gaps = GapCounts()
        self._kinds = {kind: dict.fromkeys(("steps", "time_s", "floor_s", "tokens"), 0.0) for kind in _KINDS}
        self._end_s = -np.inf

    def step_table(self, table: StepTable) -> None:
        """Book a batch of steps."""
        for part in in_chunks(table):
            steps = expand(part.numbers)
            self._add_levels(part, steps)
            self._add_work(part, steps)
            if self._by_step:
                self._gaps.add_steps(part, steps)

    def request_table(self, table: RequestTable) -> None:
        """Requests have a table of their own."""

    def stall_table(self, table: StallTable) -> None:
        """Book irregular gaps."""
        if self._by_step:
            self._gaps.add_stalls(table)

    def close(self) -> None:
        """Nothing is held open."""

    def to_dict(self) -> dict[str, Any]:
        """The digest in JSON types, for ``Digest``; figures rounded to six significant digits."""
        return {
            "schema": SCHEMA,
            "num_gpu_blocks": self._num_gpu_blocks,
            "terms": list(self._split.names) if self._split else [],
            "bins": self._bins.to_dict(),
            "gaps": self._gaps.to_dict(),
            "kinds": self._kinds,
        }

    def _add_levels(self, part: StepTable, steps: Expanded) -> None:
        """Levels over the time that each step adds to those before it, and who kept admission back."""
        numbers, each = part.numbers, steps.each
        covered_s = np.maximum.accumulate(np.concatenate(([self._end_s], steps.end_s)))
        self._end_s = float(covered_s[-1])
        start_s = np.minimum(np.maximum(steps.start_s, covered_s[:-1]), steps.end_s)
        used = each(self._num_gpu_blocks - numbers["free_blocks"]) + blocks_taken(part, steps)
        levels = [each(numbers[name]) for name in LEVELS[:3]] + [used]
        self._bins.add_levels(start_s, steps.end_s, np.array(levels, np.float64))
        causes = dict.fromkeys(part.limited_by)
        code = each(np.fromiter(map(list(causes).index, part.limited_by), np.int64, len(part)))
        for number, cause in enumerate(causes):
            self._bins.add_time(f"limited_by.{cause}", start_s, steps.end_s, code == number)

    def _add_work(self, part: StepTable, steps: Expanded) -> None:
        """Steps, tokens and time by term, booked where a step ends."""
        numbers, each = part.numbers, steps.each
        step_s = steps.end_s - steps.start_s
        last = steps.is_last
        chunk_tokens = np.where(last, each(numbers["chunk_tokens"]), 0)
        output = each(numbers["emitting"]) + np.where(last, each(numbers["chunk_emits"]), 0)
        sums = {"steps": np.ones(len(last)), "step_s": step_s, "output_tokens": output, "prompt_tokens": chunk_tokens}
        floor_s = np.zeros(len(last))
        if self._split is not None:
            sums |= zip((f"term.{name}" for name in self._split.names), self._split.seconds(part, steps), strict=True)
            floor_s = self._split.floor_s(part, steps)
        self._bins.add_sums(steps.end_s, sums)
        self._bins.add_extremes("step_s", steps.end_s, step_s)
        prefills = chunk_tokens > 0
        for kind, of_kind in zip(_KINDS, (~prefills, prefills), strict=True):
            sums_of = (of_kind, step_s * of_kind, floor_s * of_kind, (output + chunk_tokens) * of_kind)
            for name, values in zip(self._kinds[kind], sums_of, strict=True):
                self._kinds[kind][name] += float(np.sum(values))


_KINDS = ("decode", "prefill")


class Digest:
    """Reads what ``DigestSink.to_dict`` gave, as arrays with one entry a bin, merged to at most ``max_bins``."""

    def __init__(self, content: Mapping[str, Any], max_bins: int = 256) -> None:
        if content.get("schema") != SCHEMA:
            raise UserError(f"digest: schema {content.get('schema')}, this version reads {SCHEMA}; run again")
        self.num_gpu_blocks: int = content["num_gpu_blocks"]
        self.terms: tuple[str, ...] = tuple(content["terms"])
        self.kinds: dict[str, dict[str, float]] = content["kinds"]
        """``decode`` (steps that only decode) and ``prefill`` (steps with prompt tokens): steps, time_s, floor_s,
        tokens."""
        self.gaps = {cause: Gaps(**gaps) for cause, gaps in content["gaps"].items()}
        bins = Bins.read(content["bins"]).merged_to(max_bins)
        self._bins = bins
        self.width_s = bins.width_s
        self.start_s = bins.start_s
        self.middle_s: Floats = bins.start_s + bins.width_s * (np.arange(bins.count, dtype=np.float64) + 0.5)

    def mean(self, level: str) -> Floats:
        """Time-weighted mean of a level of ``LEVELS`` in each bin; 0 while the engine idles."""
        return self._bins.sums(level) / self.width_s

    def least(self, name: str) -> Floats:
        """Least of a level, or of ``step_s``, in each bin; NaN where no step ran."""
        return self._bins.extreme(name, "least")

    def most(self, name: str) -> Floats:
        """Most, likewise."""
        return self._bins.extreme(name, "most")

    def total(self, name: str) -> Floats:
        """Sum over the steps that end in each bin: steps, step_s, output_tokens, prompt_tokens, ``term.NAME``."""
        return self._bins.sums(name)

    def limited_by(self) -> dict[str, Floats]:
        """Busy seconds of each bin by what kept admission back."""
        prefix = "limited_by."
        return {name.removeprefix(prefix): self._bins.sums(name) for name in self._bins.names() if prefix in name}


class Gaps:
    """Gaps between tokens of one cause: ascending ``gap_s`` with counts, each the middle of a bucket 2 % wide."""

    def __init__(self, gap_s: Sequence[float], counts: Sequence[int], total_s: float) -> None:
        self.gap_s: Floats = np.array(gap_s)
        self.counts: NDArray[np.int64] = np.array(counts, np.int64)
        self.total_s = total_s

    @property
    def n(self) -> int:
        """Number of gaps."""
        return int(self.counts.sum())

    def quantile(self, q: float) -> float:
        """The gap that a share ``q`` of the gaps do not exceed."""
        until = np.cumsum(self.counts)
        return float(self.gap_s[min(int(np.searchsorted(until, q * until[-1])), len(until) - 1)])
