"""Decision logs of runs, line by line: where two of them part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from policies.core.errors import UserError
from policies.json_text import log_lines, parse_json

DECISIONS_NAME = "decisions.jsonl"
"""Its file in a run folder."""

Line = dict[str, Any]


class Decisions(NamedTuple):
    """Steps that two runs decided alike from the start, of the longer one's; the first difference in words, None if
    there is none."""

    alike: int
    total: int
    difference: str | None


def read_decisions(path: Path) -> Iterator[Line]:
    """The step lines of a log; a last line that a kill cut off is left out. Raises a UserError for a bad line."""
    for _, kind, line in log_lines(path, "line of a decision log"):
        if kind == "step":
            yield line


def compare_decisions(first: Path, second: Path, names: tuple[str, str]) -> Decisions:
    """The logs of two run folders, step by step. Raises a UserError where one has none."""
    for folder in (first, second):
        if not (folder / DECISIONS_NAME).is_file():
            raise UserError(f"{folder}: no {DECISIONS_NAME}; run again with --set sim.record=decisions")
    alike = total = 0
    difference: str | None = None
    paths = [folder / DECISIONS_NAME for folder in (first, second)]
    sizes = [_num_cpu_blocks(path) for path in paths]
    logs: list[Iterable[Line]] = [read_decisions(path) for path in paths]
    if None not in sizes and sizes[0] != sizes[1]:  # who has more of them has decided nothing by that
        logs = [map(partial(_with_used, size or 0), log) for size, log in zip(sizes, logs, strict=True)]
    for one, other in zip_longest(*logs):
        total += 1
        if difference is None:
            difference = first_difference(one, other, names)
            alike += difference is None
    return Decisions(alike, total, difference)


def _num_cpu_blocks(path: Path) -> int | None:
    """Of the first line of a log; None where it does not say."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        try:
            size = parse_json(lines.readline())["num_cpu_blocks"]
        except (ValueError, KeyError, TypeError):
            return None
    return size if isinstance(size, int) else None


def _with_used(num_cpu_blocks: int, line: Line) -> Line:
    """A step with the CPU blocks in use in place of the free ones."""
    free = {field for field in line if field.startswith("cpu_free")}
    used = {field.replace("free", "used"): num_cpu_blocks - line[field] for field in free}
    return {field: value for field, value in line.items() if field not in free} | used


def first_difference(one: Line | None, other: Line | None, names: tuple[str, str]) -> str | None:
    """What differs between two step lines, the first field of it; None if nothing does."""
    if one is None or other is None:
        line = one or other or {}
        return f"step {line.get('t')}: only {names[0] if other is None else names[1]} has it"
    for field in one | other:
        if one.get(field) != other.get(field):
            width = max(map(len, names))
            both = zip(names, (one, other), strict=True)
            shown = [f"  {name:{width}} {said(line.get(field))}" for name, line in both]
            return "\n".join([f"step {one.get('t')}: {field} differs", *shown])
    return None


def said(value: object) -> str:
    """A value in a message, cut where it is long."""
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 400 else f"{text[:400]}..."
