"""The known formats, and which of them a header line is."""

from __future__ import annotations

from typing import NamedTuple

from policies.core.errors import TraceError, closest
from traces.workload.textfile import Header

OPTIONAL = (
    *("max_tokens", "priority", "client_id", "session_id", "parent_id", "segments", "abort_after_s"),
    *("slo_ttft_s", "slo_tpot_s"),
)
"""Columns of our own formats that may be absent; names and order of TraceRow's fields."""


class Format(NamedTuple):
    """A format: ``required`` are the names of the columns for arrival, prompt and output."""

    name: str
    required: tuple[str, str, str]
    optional: tuple[str, ...] = ()


AZURE = Format("azure-2023", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
THREE_COLUMN = Format("three-column", ("arrived_at", "num_prefill_tokens", "num_decode_tokens"))
OWN_CSV = Format("csv", ("arrival_s", "prompt_tokens", "output_tokens"), OPTIONAL)
OWN_JSONL = Format("jsonl", OWN_CSV.required, OPTIONAL)
MOONCAKE = Format("mooncake", ("timestamp", "input_length", "output_length"), ("hash_ids",))
"""Mooncake's JSON lines: times in milliseconds, and one id for each block of the prompt, equal for equal prefixes."""

CSV_FORMATS = (AZURE, THREE_COLUMN, OWN_CSV)
JSON_FORMATS = (OWN_JSONL, MOONCAKE)


class Layout(NamedTuple):
    """A format as one file has it: ``width`` fields a row, and which field holds which column.

    ``places`` maps the file's own names of the known columns, required ones first, to the place in a row. Without
    arrivals the file is a table of lengths, which has all other required columns and no unknown one.
    """

    format: Format
    width: int
    places: dict[str, int]
    notices: tuple[str, ...]
    has_arrivals: bool = True

    @property
    def is_json(self) -> bool:
        """Whether rows are JSON objects."""
        return self.format in JSON_FORMATS


def detect(path: str, header: Header) -> Layout:
    """The layout that the header tells; raises TraceError if we know none such or a column is missing."""
    if not header.text:
        raise TraceError(f"{path}: the file is empty; give a trace with at least one row")
    if header.text.startswith("["):
        raise TraceError(f"{path}, line {header.line}: a JSON list; write one JSON object a line instead")
    if header.text.startswith("{"):
        names = _json_names(path, header)
        return _layout(_best_of(JSON_FORMATS, path, header, names), names)
    names = _csv_names(path, header)
    return _layout(_best_of(CSV_FORMATS, path, header, names), names)


def _best_of(formats: tuple[Format, ...], path: str, header: Header, names: list[str]) -> Format:
    """The format that shares most columns with the file; raises TraceError if one is missing."""
    best = max(formats, key=lambda known: sum(name in names for name in known.required))
    missing = [name for name in best.required if name not in names]
    if len(missing) == len(best.required):
        known = "; ".join(",".join(known.required) for known in formats)
        remedy = f"name the columns {known}" if best in JSON_FORMATS else f"write a header with {known}"
        raise TraceError(f"{path}, line {header.line}: no known format: found {_shown(names)}; {remedy}")
    if missing and not _are_lengths(best, names):
        raise TraceError(
            f"{path}, line {header.line}: column '{missing[0]}' is missing{closest(missing[0], names)} "
            f"(found {_shown(names)})"
        )
    return best


def _are_lengths(best: Format, names: list[str]) -> bool:
    """Whether nothing but the arrival is missing, and no column could be that one by another name."""
    return set(best.required[1:]) <= set(names) <= {*best.required[1:], *best.optional}


def _layout(best: Format, names: list[str]) -> Layout:
    wanted = (*best.required, *best.optional)
    places = {name: names.index(name) for name in wanted if name in names}
    unused = [name for name in names if name not in places]
    notices = tuple(f"column '{name}' is not used{closest(name, best.optional)}" for name in unused)
    return Layout(best, len(names), places, notices, best.required[0] in names)


def _csv_names(path: str, header: Header) -> list[str]:
    import csv

    try:
        names = [name.strip() for name in next(csv.reader([header.text]))]
    except csv.Error as error:
        raise TraceError(f"{path}, line {header.line}: no header of a CSV file ({error}); mend it") from None
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TraceError(f"{path}, line {header.line}: column '{twice}' appears twice; rename or remove one")
    return names


def _json_names(path: str, header: Header) -> list[str]:
    from traces.workload.parse import json_object

    return list(json_object(path, header.line, header.text))


def _shown(names: list[str]) -> str:
    """The columns in a message, of a reasonable length."""
    text = ",".join(names)
    return text if len(text) <= 80 else f"{text[:80]}..."
