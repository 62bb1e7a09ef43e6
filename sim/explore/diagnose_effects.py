"""What a change does to the same requests: paired differences with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.report.charts import Floats
from sim.report.view import RunView
from traces.metrics.intervals import LEAST_SAMPLES, STATISTICS, Interval, jackknife, paired, windows

if TYPE_CHECKING:
    import pandas as pd

STATED = (("ttft_s", "mean"), ("ttft_s", "p99"), ("itl_s", "p99"), ("tpot_s", "mean"), ("e2e_s", "mean"))
"""Metrics and statistics that every piece of advice is held against."""

LEAST_CHANGE = 0.01
"""A change of a smaller share is none."""


class Sample(NamedTuple):
    """What was measured of the requests of one run, or of several replicas together: ``requests`` by number with
    ``ttft_s``, ``tpot_s``, ``e2e_s`` (docs/metrics.md), and all gaps between tokens with the number of their request,
    ascending. Counts are of the whole."""

    requests: pd.DataFrame
    gap_s: Floats
    gap_of: NDArray[np.int64]
    output_tokens: int
    duration_s: float
    preemptions: int
    moved_bytes: int

    @property
    def output_tokens_per_s(self) -> float:
        """Over the whole run."""
        return self.output_tokens / self.duration_s if self.duration_s > 0 else 0.0


class Change(NamedTuple):
    """A statistic before, and its difference (after minus before) over the requests of both runs."""

    metric: str
    statistic: str
    before: float
    after: float
    difference: Interval

    @property
    def relative(self) -> float:
        """The difference as a share of what was before; 0 where nothing was."""
        return self.difference.value / self.before if self.before > 0 else 0.0

    @property
    def effect(self) -> str:
        """``better``, ``worse`` or ``none``: beyond chance where there is an interval, and more than ``LEAST_CHANGE``;
        less time is better."""
        unclear = self.difference.half is not None and not self.difference.excludes_zero
        if unclear or abs(self.relative) < LEAST_CHANGE:
            return "none"
        return "better" if self.difference.value < 0 else "worse"


def sample_of(views: Sequence[RunView], numbers: Sequence[Any] | None = None) -> Sample:
    """The sample of one run at record level tokens, or of replicas: ``numbers[k](ids)`` are the numbers in the workload
    of the requests of replica k."""
    import pandas as pd

    tables, gaps, owners = [], [], []
    for place, view in enumerate(views):
        table = view.requests[["id", "arrival_s", "finish_s", "output_tokens", "ttft_s", "tpot_s", "e2e_s"]]
        gap_s, gap_of = token_gaps(view)
        if numbers is not None:
            table = table.assign(id=numbers[place](table["id"].to_numpy()))
            gap_of = numbers[place](gap_of)
        tables.append(table)
        gaps.append(gap_s)
        owners.append(gap_of)
    whole = pd.concat(tables, ignore_index=True).set_index("id").sort_index()
    gap_of = np.concatenate(owners)
    order = np.argsort(gap_of, kind="stable")
    counts = [view.summary["preemptions"] for view in views]
    return Sample(
        whole,
        np.concatenate(gaps)[order],
        gap_of[order],
        int(whole["output_tokens"].sum()),
        float(whole["finish_s"].max() - whole["arrival_s"].min()),
        sum(of["recompute"] + of["swap"] for of in counts),
        sum(of["swapped_out_bytes"] + of["swapped_in_bytes"] for of in counts),
    )


def token_gaps(view: RunView) -> tuple[Floats, NDArray[np.int64]]:
    """All gaps between the tokens of a request, and its number; none where answers come whole."""
    segments = view.segments
    nothing = np.empty(0), np.empty(0, np.int64)
    if segments is None or view.at_batch_end or not len(segments):
        return nothing
    ends_s = view.record.decode_ends_s
    first_s, start, count = (segments[name].to_numpy() for name in ("first_token_s", "step", "steps"))
    sizes = count.astype(np.int64) + 1
    row = np.repeat(np.arange(len(sizes)), sizes)
    inside = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = np.minimum(start[row].astype(np.int64) + inside - 1, max(len(ends_s) - 1, 0))
    time_s = np.where(inside == 0, first_s[row], ends_s[np.maximum(place, 0)] if len(ends_s) else np.nan)
    owner = segments.index.to_numpy()[row].astype(np.int64)
    known = ~np.isnan(time_s)
    time_s, owner = time_s[known], owner[known]
    same = owner[1:] == owner[:-1]
    return np.diff(time_s)[same], owner[1:][same]


def changes(before: Sample, after: Sample) -> list[Change]:
    """All stated metrics that both samples have."""
    found = []
    common = before.requests.index.intersection(after.requests.index)
    mine, theirs = after.requests.loc[common], before.requests.loc[common]
    for metric, statistic in STATED:
        if metric == "itl_s":
            found += _gap_change(before, after, statistic)
            continue
        x, y = mine[metric].to_numpy(np.float64), theirs[metric].to_numpy(np.float64)
        both = ~(np.isnan(x) | np.isnan(y))
        if both.any():
            of = STATISTICS[statistic]
            change = paired(x[both], y[both], statistic)
            found.append(Change(metric, statistic, of(y[both]), of(x[both]), change))
    return found


def _gap_change(before: Sample, after: Sample, statistic: str) -> list[Change]:
    """Gaps are pooled over all requests; the windows that are left out in turn are of requests."""
    if not len(before.gap_s) or not len(after.gap_s):
        return []
    of = STATISTICS[statistic]

    def without(low: int, high: int) -> float:
        return of(_outside(after, low, high)) - of(_outside(before, low, high))

    old, new = of(before.gap_s), of(after.gap_s)
    difference = Interval(new - old, None)
    numbers = before.requests.index.to_numpy()
    if len(numbers) >= LEAST_SAMPLES["mean"] and len(before.gap_s) >= LEAST_SAMPLES[statistic]:
        edges = numbers[windows(len(numbers) - 1)].tolist()
        difference = jackknife(without, [*edges[:-1], edges[-1] + 1])
    return [Change("itl_s", statistic, old, new, difference)]


def _outside(sample: Sample, low: int, high: int) -> Floats:
    """The gaps of requests whose numbers do not lie in [low, high)."""
    first, last = np.searchsorted(sample.gap_of, [low, high])
    return np.concatenate((sample.gap_s[:first], sample.gap_s[last:]))
