"""Reads and writes profile files; whatever is wrong with one is named by file and row, in one line."""

from __future__ import annotations

import csv
import gzip
import io
import statistics
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from calibrate.checks import Limits
from calibrate.operators import Row, csv_rows
from calibrate.profile import COLUMNS, OPERATORS, SCHEMA, SECONDS, SIZES, UNITS, Measurement, Origin, Profile, ranges
from policies.catalog import Card, ModelShape
from policies.core.errors import CostFileError, closest
from sim.costs.costfile import MOST_SECONDS
from sim.runs import write_whole

_REQUIRED = ("model", "card", "tp", "date", "units")
_OTHER_UNITS = ("ms", "us", "ns", "milliseconds", "microseconds", "nanoseconds")
_MAY_BE_ZERO = ("context", "chunk_context", "longest_context")
_OF_STEPS = ("sequences", "chunks", "chunk_tokens")
"""A whole step may have sequences or chunks alone."""

_LARGE_S = 1e-4
_FAR_ABOVE = 500.0
"""Times of a card's limits beyond which rows that take the card ``_LARGE_S`` or more are held to be in another unit."""


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile whole, gzipped where the name ends in ``.gz``; UserError where it cannot be written."""
    stream = io.StringIO()
    stream.write(f"# schema: {SCHEMA}\n# units: {UNITS}\n")
    for key in ("model", "card", "tp", "date"):
        stream.write(f"# {key}: {getattr(profile, key)}\n")
    for name, origin in profile.sources.items():
        for key, value in origin._asdict().items():
            if value:
                stream.write(f"# source.{name}.{key}: {value}\n")
    for column, least, most in ranges(profile.rows):
        stream.write(f"# range.{column}: {least}..{most}\n")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in profile.rows:
        writer.writerow([_cell(row, name) for name in COLUMNS])
    text = stream.getvalue().encode()
    write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _cell(row: Measurement, name: str) -> str:
    value = getattr(row, name)
    if name == "seconds":
        return f"{value:.6g}"
    if name in SIZES or name in SECONDS:
        return f"{value:.6g}" if name in SECONDS and value else str(value) if _has(row.operator, name) else ""
    return str(value)


def _has(operator: str, column: str) -> bool:
    return column in OPERATORS[operator].columns


def read_profile(path: Path) -> Profile:
    """Read a profile and check its form: keys, columns, units, numbers, sources, ranges."""
    text = _text(path)
    head = [line for line in text.splitlines() if line.startswith("#")]
    keys = dict(_keys(head, path))
    if keys.get("schema") != SCHEMA:
        raise CostFileError(
            f"{path.name}: is no profile (its first line is not '# schema: {SCHEMA}'); other tools' tables become one"
            " by `batchscope calibrate import`"
        )
    for key in _REQUIRED:
        if not keys.get(key):
            raise CostFileError(f"{path.name}: line '# {key}: ...' is missing; see docs/calibrate.md")
    if keys["units"] != UNITS:
        raise CostFileError(f"{path.name}: its units are '{keys['units']}'; a profile's are '{UNITS}': convert it")
    if not keys["tp"].isdigit() or not int(keys["tp"]):
        raise CostFileError(f"{path.name}: '# tp: {keys['tp']}' is no number of GPUs; give 1 or more")
    sources = _sources(keys, path)
    table = text.splitlines(keepends=True)[len(head) :]
    stated = _ranges(keys)
    rows = tuple(_row(row, sources, stated) for row in csv_rows(path, table, len(head)))
    if not rows:
        raise CostFileError(f"{path.name}: has no rows; measure some (`batchscope calibrate measure`)")
    return Profile(keys["model"], keys["card"], int(keys["tp"]), keys["date"], sources, rows)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CostFileError(f"{path}: cannot be read ({reason}); name a profile") from None


def _keys(head: list[str], path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(head, start=1):
        key, colon, value = line[1:].partition(":")
        if not colon:
            raise CostFileError(f"{path.name}, line {number}: is not '# key: value'")
        yield key.strip(), value.strip()


def _sources(keys: Mapping[str, str], path: Path) -> dict[str, Origin]:
    found: dict[str, dict[str, str]] = {}
    for key, value in keys.items():
        if key.startswith("source."):
            name, _, field = key[7:].rpartition(".")
            if field not in Origin._fields:
                raise CostFileError(f"{path.name}: key '{key}' is unknown{closest(field, Origin._fields)}")
            found.setdefault(name, {})[field] = value
    for name, fields in found.items():
        for field in ("origin", "licence", "date"):
            if field not in fields:
                line = f"# source.{name}.{field}: ..."
                raise CostFileError(f"{path.name}: line '{line}' is missing; say where rows are from")
    return {name: Origin(**fields) for name, fields in found.items()}


def _ranges(keys: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """What the file says of its sizes, where it says something."""
    found = {}
    for name in SIZES:
        least, _, most = keys.get(f"range.{name}", "").partition("..")
        if least.isdigit() and most.isdigit():
            found[name] = int(least), int(most)
    return found


def _row(row: Row, sources: Mapping[str, Origin], stated: Mapping[str, tuple[int, int]]) -> Measurement:
    if not row.has("seconds"):
        other = [name for name in row.columns() if name.split("_")[-1] in _OTHER_UNITS]
        hint = f"; '{other[0]}' is in another unit: convert it" if other else "; see docs/calibrate.md"
        raise CostFileError(f"{row.where}: column 'seconds' is missing{hint}")
    operator, source = row.text("operator"), row.text("source")
    if operator not in OPERATORS:
        raise CostFileError(f"{row.where}: operator '{operator}' is unknown{closest(operator, OPERATORS)}")
    if source not in sources:
        raise CostFileError(f"{row.where}: source '{source}' has no '# source.{source}.origin: ...' line")
    wanted = OPERATORS[operator].columns
    sizes = {name: row.integer(name) for name in SIZES if name in wanted}
    for name, value in sizes.items():
        least, most = stated.get(name, (value, value))
        if not least <= value <= most:
            raise CostFileError(f"{row.where}: {name} = {value} is outside the file's own range, {least}..{most}")
        if not value and name not in _MAY_BE_ZERO and not (operator == "step" and name in _OF_STEPS):
            raise CostFileError(f"{row.where}: {name} = 0; an operator '{operator}' has 1 or more")
    seconds = {name: row.number(name) for name in SECONDS if name == "seconds" or name in wanted}
    for name, amount in seconds.items():
        if not 0 < amount <= MOST_SECONDS:
            raise CostFileError(f"{row.where}: {name} = {amount:g}; it must be above 0 and at most {MOST_SECONDS:g}")
    return Measurement(operator, source, **sizes, **seconds)  # type: ignore[arg-type]


def check_possible(profile: Profile, path: Path, shape: ModelShape, card: Card) -> None:
    """CostFileError, by row, for what the card cannot have done, or what must be in another unit.

    ``shape`` is one GPU's part of the model. Rows of sources measured on another card are not checked.
    """
    limits = Limits(card)
    first = 1 + sum(line.startswith("#") for line in _text(path).splitlines()) + 1
    for number, row in enumerate(profile.rows, start=first):
        if profile.sources[row.source].card in ("", card.name):
            limits.measurement(f"{path.name}, row {number}", row, shape)
    check_units(profile, path.name, shape, card)


def check_units(profile: Profile, name: str, shape: ModelShape, card: Card) -> None:
    """CostFileError, by ``name``, where the large rows take far longer than the card needs."""
    limits = Limits(card)
    ratios = []
    for row in profile.rows:
        if row.seconds > MOST_SECONDS:
            raise CostFileError(f"{name}: a row of {row.operator} takes {row.seconds:g} s; check its units")
        if profile.sources[row.source].card in ("", card.name):
            floor_s = limits.measurement(name, row, shape)
            if floor_s > _LARGE_S:
                ratios.append(row.seconds / floor_s)
    if ratios and statistics.median(ratios) > _FAR_ABOVE:
        raise CostFileError(
            f"{name}: its times are {statistics.median(ratios):,.0f} times what the {card.name} needs; they must be"
            " in seconds, and of this card"
        )
