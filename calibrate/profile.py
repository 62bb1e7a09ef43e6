"""The profile: measured times of one model on one card, or on one of a group, in one documented CSV format.

docs/calibrate.md describes it. A file has ``# key: value`` lines (what was measured, on what, where each source of rows
comes from, the range of the sizes) and then a table of operators with their sizes and seconds. Importers make profiles
of other tools' tables, ``calibrate measure`` of a card, and ``calibrate fit`` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

SCHEMA = "batchscope-profile/1"
UNITS = "seconds, tokens, bytes"


class Operator(NamedTuple):
    """What the rows of an operator time, and which sizes they must give."""

    columns: tuple[str, ...]
    meaning: str


OPERATORS = {
    "linear": Operator(("tokens",), "one layer, all but attention and communication"),
    "decode": Operator(("sequences", "context"), "decode attention of one layer, all sequences over equal contexts"),
    "prefill": Operator(("chunks", "chunk_tokens", "chunk_context"), "prefill attention of one layer, equal chunks"),
    "prefill_added": Operator(
        ("chunks", "chunk_tokens", "chunk_context"),
        "the same by another kernel: only what cached tokens add to a chunk is used",
    ),
    "mixed": Operator(
        ("sequences", "context", "chunks", "chunk_tokens", "chunk_context"),
        "attention of one layer in a step that decodes and prefills",
    ),
    "uneven": Operator(
        ("sequences", "context", "longest_context", "even_seconds", "longest_seconds"),
        "decode attention of one layer over unequal contexts of that mean; beside it the same with all at the mean,"
        " and with all at the longest",
    ),
    "uneven_mixed": Operator(
        ("sequences", "context", "longest_context", "chunks", "chunk_tokens", "even_seconds", "longest_seconds"),
        "the same in a step that also prefills",
    ),
    "head": Operator(("sequences",), "output head, with sampling where it was measured, once a step"),
    "host": Operator(("sequences",), "what a step that decodes takes beyond its device time"),
    "host_prefill": Operator(("sequences", "chunks"), "the same of a step in which so many of the sequences prefill"),
    "step": Operator(
        ("sequences", "context", "chunks", "chunk_tokens", "chunk_context"), "a whole step of all layers"
    ),
    "swap": Operator(("bytes", "pieces"), "KV between card and host, one way"),
}

SIZES = (
    "tokens",
    "sequences",
    "context",
    "longest_context",
    "chunks",
    "chunk_tokens",
    "chunk_context",
    "bytes",
    "pieces",
)
SECONDS = ("seconds", "even_seconds", "longest_seconds")
COLUMNS = ("operator", "source", *SIZES, *SECONDS)


class Origin(NamedTuple):
    """Where rows come from: the public file, the start of its sha256, its licence, its date, the card they were
    measured on where it is another one, and what was computed."""

    origin: str
    licence: str
    date: str
    origin_sha256: str = ""
    file: str = ""
    file_sha256: str = ""
    card: str = ""
    method: str = ""


class Measurement(NamedTuple):
    """One row. Sizes that an operator does not have are 0. ``context`` and ``chunk_context`` count tokens in
    the cache before the step, as those of ``StepPlan`` do."""

    operator: str
    source: str
    seconds: float
    tokens: int = 0
    sequences: int = 0
    context: int = 0
    longest_context: int = 0
    chunks: int = 0
    chunk_tokens: int = 0
    chunk_context: int = 0
    bytes: int = 0
    pieces: int = 0
    even_seconds: float = 0.0
    longest_seconds: float = 0.0


class Profile(NamedTuple):
    """Rows of one group with their sources. ``date`` is that of the measurement, or of its publication."""

    model: str
    card: str
    tp: int
    date: str
    sources: Mapping[str, Origin]
    rows: tuple[Measurement, ...]

    def of(self, operator: str) -> tuple[Measurement, ...]:
        """The rows of one operator."""
        return tuple(row for row in self.rows if row.operator == operator)

    def origins(self, *operators: str) -> dict[str, Origin]:
        """The sources that some operators' rows come from, by name, in their order."""
        names = dict.fromkeys(row.source for row in self.rows if row.operator in operators)
        return {name: self.sources[name] for name in names}


def merge(profiles: Iterable[Profile]) -> Profile:
    """All rows of several profiles of one group, in order; of the first its group, of all the latest date."""
    parts = list(profiles)
    sources = {name: origin for part in parts for name, origin in part.sources.items()}
    rows = tuple(row for part in parts for row in part.rows)
    return parts[0]._replace(sources=sources, rows=rows, date=max(part.date for part in parts))


def ranges(rows: Iterable[Measurement]) -> Iterator[tuple[str, int, int]]:
    """(column, least, most) of each size that some operator has."""
    listed = list(rows)
    for name in SIZES:
        values = [getattr(row, name) for row in listed if name in OPERATORS[row.operator].columns]
        if values:
            yield name, min(values), max(values)
