"""What a trace file holds: counts, rate, lengths, bursts, shared prefixes, and every row that cannot be read."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from policies.core.errors import TraceError
from traces.workload.columns import Columns
from traces.workload.formats import AZURE, Layout, detect
from traces.workload.parse import Block, Parser
from traces.workload.prefixes import reuse_of
from traces.workload.quantiles import quantile
from traces.workload.readers import open_trace
from traces.workload.textfile import Header, Lines, read_header, read_lines

SHOWN_FAULTS = 10
"""So many invalid rows are described, the others counted."""

MAX_WINDOWS = 10_000_000
"""Longer spans are not counted in such short windows."""


class Lengths(NamedTuple):
    """Token counts over all rows."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


class Arrivals(NamedTuple):
    """``peak_rate_per_s`` is the most in one second (0: the span is too long to look), ``cv`` that of the gaps, and
    ``dispersion`` the variance over the mean of the counts in windows of so many
    seconds, 1 for a Poisson process, where there are at least 20 windows."""

    span_s: float
    rate_per_s: float
    peak_rate_per_s: float
    cv: float
    dispersion: dict[int, float]


class Inspection(NamedTuple):
    """Figures of the valid rows, the first ``SHOWN_FAULTS`` of ``num_invalid`` rows in words, and remarks."""

    path: str
    format: str
    num_rows: int
    num_invalid: int
    faults: tuple[str, ...]
    notices: tuple[str, ...]
    prompt: Lengths
    output: Lengths
    longest_tokens: int
    arrivals: Arrivals | None
    columns: dict[str, int]
    num_with_hits: int
    hit_share_of_tokens: float

    def to_dict(self) -> dict[str, Any]:
        """In JSON types."""
        table: dict[str, Any] = self._asdict()
        table["prompt"], table["output"] = self.prompt._asdict(), self.output._asdict()
        table["arrivals"] = self.arrivals and self.arrivals._asdict()
        return table


def inspect_trace(path: str) -> Inspection:
    """Read a trace, passing over rows that cannot be read; TraceError if no row can."""
    header = read_header(path)
    layout = detect(path, header)
    columns, faults, notices = Columns(), _Faults(), list(header.notices + layout.notices)
    for block in _valid_blocks(path, header, layout, faults):
        columns.extend(block)
    if not len(columns):
        raise TraceError(f"{path}: no valid row; {faults.first[0] if faults.first else 'the file has only a header'}")
    if not faults.num:
        notices = _all_notices(path, faults, notices)
    columns.sort()
    if layout.format is AZURE:
        columns.start_at_zero()
    prompts, outputs, used = array("q"), array("q"), dict[str, int]()
    for row in columns:
        prompts.append(row.prompt_tokens)
        outputs.append(row.output_tokens)
        for name, default in row._field_defaults.items():
            used[name] = used.get(name, 0) + (getattr(row, name) != default)
    hits = reuse_of(row.segments for row in columns).hit_tokens
    return Inspection(
        path=path,
        format=layout.format.name,
        num_rows=len(columns),
        num_invalid=faults.num,
        faults=tuple(faults.first),
        notices=tuple(notices),
        prompt=_lengths(prompts),
        output=_lengths(outputs),
        longest_tokens=max(map(sum, zip(prompts, outputs, strict=True))),
        arrivals=_arrivals(columns.arrival_s) if layout.has_arrivals else None,
        columns={name: count for name, count in used.items() if count},
        num_with_hits=sum(hit > 0 for hit in hits),
        hit_share_of_tokens=sum(hits) / sum(prompts),
    )


class _Faults:
    def __init__(self) -> None:
        self.num = 0
        self.first: list[str] = []

    def add(self, error: TraceError) -> None:
        self.num += 1
        if len(self.first) < SHOWN_FAULTS:
            self.first.append(str(error))


def _valid_blocks(path: str, header: Header, layout: Layout, faults: _Faults) -> Iterator[Block]:
    """Whole blocks, and line by line those that have something wrong in them."""
    parser = Parser(path, layout)
    for lines in read_lines(path, header.line - 1 if layout.is_json else header.line):
        try:
            yield parser.parse(lines)
            continue
        except TraceError:
            pass
        for number, text in enumerate(lines.texts, start=lines.first):
            try:
                yield parser.parse(Lines(number, [text]))
            except TraceError as error:
                faults.add(error)


def _all_notices(path: str, faults: _Faults, notices: list[str]) -> list[str]:
    """What a run would say of the whole file, whose rows are all valid by themselves."""
    try:
        return list(open_trace(path).notices)
    except TraceError as error:  # a parent that comes later, say
        faults.add(error)
        return notices


def _lengths(tokens: Sequence[int]) -> Lengths:
    ordered = sorted(tokens)
    p50, p90, p99 = (quantile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Lengths(sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def _arrivals(times_s: Sequence[float]) -> Arrivals | None:
    """None where all rows come at one time."""
    span_s = times_s[-1] - times_s[0]
    if span_s <= 0:
        return None
    gaps = [after - before for before, after in pairwise(times_s)]
    mean_s = span_s / len(gaps)
    variance = sum((gap - mean_s) ** 2 for gap in gaps) / len(gaps)
    dispersion, peak_rate = dict[int, float](), 0.0
    for window_s in (1, 10, 60):
        if span_s / window_s > MAX_WINDOWS:
            continue
        counts = _counts(times_s, window_s)
        peak_rate = peak_rate or max(counts) / window_s
        if len(counts) > 20:
            dispersion[window_s] = _dispersion(counts[:-1])
    return Arrivals(span_s, len(gaps) / span_s, peak_rate, variance**0.5 / mean_s, dispersion)


def _counts(times_s: Sequence[float], window_s: int) -> list[int]:
    counts = [0] * (int((times_s[-1] - times_s[0]) // window_s) + 1)
    for time in times_s:
        counts[int((time - times_s[0]) // window_s)] += 1
    return counts


def _dispersion(counts: Sequence[int]) -> float:
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / len(counts) / mean if mean else 0.0
