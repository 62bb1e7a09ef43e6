"""From the rows of a trace to a profile of it: the tables are its quantiles, smoothed only where noise would double."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from policies.core.errors import TraceError
from policies.core.request import Segments
from traces.workload.prefixes import Sharing, distances_without_end, reuse_of
from traces.workload.profile import ArrivalProfile, Profile
from traces.workload.quantiles import GRID, QuantileTable, table_of
from traces.workload.rows import TraceRow

CLASSES = 10
"""Classes of prompt length, of equally many requests."""
SLOTS = 60
"""Slots of the span in which the rate may differ."""
MIN_ROWS = 100
"""Fewer rows have no quantiles to speak of."""

NOT_KEPT = (
    "lengths are independent from one request to the next; outputs depend on the prompt's decile",
    "between two quantiles values are spread evenly",
)
NOT_KEPT_OF_ARRIVALS = (
    "gaps are independent draws around a rate that is constant within each of 60 slots of the span and starts over "
    "after it; what counting noise explains of the slots' differences is taken out"
)
NO_ARRIVALS = "no arrival times: a rate must be given"
NOT_KEPT_OF_PREFIXES = (
    "prefixes: how often and how much prompts begin like an earlier one, by decile of prompt length, and how long ago "
    "that was; not which clients or conversations they belong to, nor whether some texts are asked for more than others"
)


class Label(NamedTuple):
    """What the rows do not tell about a trace."""

    name: str
    about: str = ""
    source: str = ""
    licence: str = ""
    recorded: str = ""


def fit_profile(
    rows: Iterable[TraceRow], label: Label, *, has_arrivals: bool = True, block_tokens: int = 16
) -> Profile:
    """The profile of rows in order of arrival; raises TraceError for fewer than ``MIN_ROWS``.

    ``block_tokens``: shared prefixes are counted in whole blocks of so many tokens.
    """
    arrivals, prompts, outputs, contents = array("d"), array("q"), array("q"), list[Segments]()
    for row in rows:
        arrivals.append(row.arrival_s)
        prompts.append(row.prompt_tokens)
        outputs.append(row.output_tokens)
        contents.append(row.segments)
    if len(prompts) < MIN_ROWS:
        raise TraceError(f"{label.name}: {len(prompts)} rows are too few for a profile; give at least {MIN_ROWS}")
    classes = _classes(prompts)
    timed = has_arrivals and arrivals[-1] > arrivals[0]
    sharing = _sharing(contents, prompts, classes, block_tokens)
    return Profile(
        name=label.name,
        about=label.about,
        source=label.source,
        licence=label.licence,
        recorded=label.recorded,
        requests=len(prompts),
        prompt=table_of(sorted(prompts)),
        output=table_of(sorted(outputs)),
        output_by_prompt=tuple(table_of(sorted(outputs[row] for row in rows_)) for rows_ in classes),
        arrivals=_arrivals(arrivals) if timed else None,
        sharing=sharing,
        approximated=(
            *NOT_KEPT,
            NOT_KEPT_OF_ARRIVALS if timed else NO_ARRIVALS,
            *((NOT_KEPT_OF_PREFIXES,) if sharing else ()),
        ),
    )


def _classes(prompts: Sequence[int]) -> list[list[int]]:
    """Rows from the shortest prompts to the longest, in parts of equal size."""
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    edges = [len(order) * step // CLASSES for step in range(CLASSES + 1)]
    return [order[start:end] for start, end in pairwise(edges)]


def _arrivals(times_s: Sequence[float]) -> ArrivalProfile:
    span_s = times_s[-1] - times_s[0]
    slot_s = span_s / SLOTS
    slots = [min(SLOTS - 1, int((time - times_s[0]) / slot_s)) for time in times_s]
    counts = [0] * SLOTS
    for slot in slots:
        counts[slot] += 1
    gaps = [after - before for before, after in pairwise(times_s)]
    mean = len(times_s) / SLOTS
    # Gaps within slots, in units of the slot's mean gap, tell how noisy a count is: its variance is mean x cv^2.
    within = [
        gap * counts[slot] / slot_s for gap, slot, last in zip(gaps, slots[1:], slots, strict=False) if slot == last
    ]
    noise = mean * _cv_squared(within)
    variance = sum((count - mean) ** 2 for count in counts) / (SLOTS - 1)
    kept = max(0.0, 1.0 - noise / variance) ** 0.5 if variance > 0 else 0.0
    relative = [1.0 + kept * (count / mean - 1.0) for count in counts]
    work = [_work(times_s[0], slot_s, relative, time) for time in times_s]
    scaled = sorted(after - before for before, after in pairwise(work))
    scale = (len(times_s) - 1) / span_s
    return ArrivalProfile(
        rate_per_s=scale,
        span_s=span_s,
        gaps=table_of([gap * scale for gap in scaled]),
        relative_rate=tuple(relative),
    )


def _work(start_s: float, slot_s: float, relative: Sequence[float], time_s: float) -> float:
    """The integral of the relative rate up to a time."""
    slot = min(len(relative) - 1, int((time_s - start_s) / slot_s))
    return sum(relative[:slot]) * slot_s + relative[slot] * (time_s - start_s - slot * slot_s)


def _cv_squared(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 1.0
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) / (mean * mean) if mean else 1.0


def _sharing(
    contents: Sequence[Segments], prompts: Sequence[int], classes: Sequence[Sequence[int]], block_tokens: int
) -> Sharing | None:
    """None where no prompt begins like an earlier one."""
    hits, distances = reuse_of(contents)
    reusing = [row for row, hit in enumerate(hits) if hit]
    if not reusing:
        return None
    steps, up_to = distances_without_end(reusing, [distances[row] for row in reusing])
    shares, parts = [], []
    for rows in classes:
        shared = sorted(hits[row] / prompts[row] for row in rows if hits[row])
        # A reuse shows only if what it reuses lies behind the first row.
        showing = sum(up_to[place - 1] for row in rows if (place := bisect_right(steps, row)))
        shares.append(min(1.0, len(shared) / showing) if showing else 0.0)
        parts.append(table_of(shared or [0.0]))
    distance = QuantileTable(tuple(float(steps[bisect_left(up_to, share)]) for share in GRID))
    return Sharing(block_tokens, tuple(shares), tuple(parts), distance)
