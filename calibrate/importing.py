"""``calibrate import``: operator tables of other tools become a profile.

Each tool has a module ``calibrate.importing_TOOL`` that knows its tables by their columns; it reads a file and gives
measurements of one GPU of the group. A row that the card cannot have made is refused by the name of the file it stands
in and its number there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from calibrate.importing_installed import INSTALLED, installed_tables
from calibrate.operators import Row, read_rows
from calibrate.profile import Measurement, Origin, Profile, merge
from policies.catalog import Card, ModelShape
from policies.core.errors import ConfigError, CostFileError, closest


class Tool(NamedTuple):
    """Where a tool's importer lives, the licence of its published tables and where they are."""

    module: str
    licence: str
    origin: str


TOOLS = {
    "vidur": Tool("calibrate.importing_vidur", "MIT", "microsoft/vidur: data/profiling"),
    "aiconfigurator": Tool("calibrate.importing_aic", "Apache-2.0", "aiconfigurator-core: systems/data"),
    "llmservingsim": Tool("calibrate.importing_llmservingsim", "MIT", "casys-kaist/LLMServingSim: profiler"),
    "splitwise-sim": Tool("calibrate.importing_splitwise", "MIT", "Mutinifni/splitwise-sim: data/perf_model.csv"),
    "batchscope": Tool("", "", ""),
}


class Group(NamedTuple):
    """What is imported: ``shape`` is one GPU's part of the model, ``source`` the name that its rows get."""

    shape: ModelShape
    card: Card
    source: str
    max_num_seqs: int = 256
    method: str = ""


def import_profile(
    tool: str, files: Sequence[Path], shape: ModelShape, card: Card, origin: Origin | None = None
) -> Profile:
    """The profile of ``shape``, one GPU's part of a model, on ``card`` from tables of ``tool``.

    ``origin`` says where they are from where the tool's usual place does not. ConfigError for an unknown tool,
    CostFileError for a table or row that cannot be used.
    """
    if tool not in TOOLS:
        hint = closest(tool, TOOLS) or f"; known: {', '.join(TOOLS)}"
        raise ConfigError(f"calibrate import: '{tool}' is no known tool{hint}")
    if not files:
        raise ConfigError("calibrate import: name one table or more")
    if tool == "aiconfigurator" and [str(path) for path in files] == [INSTALLED]:
        tables, place = installed_tables(card)
        date = "not stated" if origin is None else origin.date
        said = Origin("", TOOLS[tool].licence, date)
        return merge(
            _import_file(tool, path, shape, card, said._replace(origin=f"{place}: {'/'.join(path.parts[-7:])}"))
            for path in tables
        )
    return merge([_import_file(tool, path, shape, card, origin) for path in files])


def _import_file(tool: str, path: Path, shape: ModelShape, card: Card, origin: Origin | None) -> Profile:
    known = TOOLS[tool]
    from calibrate.profile_file import check_possible, check_units, read_profile

    if tool == "batchscope":
        own = read_profile(path)
        _check_group(own, shape, card, path)
        check_possible(own, path, shape, card)
        return own
    said = origin or Origin(known.origin, known.licence, "not stated")
    name = source_name(path)
    rows = tuple(measurements(tool, path, Group(shape, card, name)))
    source = with_file(said, path)._replace(method=method_of(tool, path, said.method))
    found = Profile(shape.name, card.name, shape.tp, said.date, {name: source}, rows)
    check_units(found, path.name, shape, card)
    return found


def measurements(tool: str, path: Path, group: Group) -> Iterator[Measurement]:
    """The rows of one file."""
    read: Callable[[Path, Group], Iterator[Measurement]] = import_module(TOOLS[tool].module).measurements
    found = 0
    for row in read(path, group):
        found += 1
        yield row
    if not found:
        shape = group.shape
        raise CostFileError(
            f"{path.name}: has no rows of {shape.name} on {shape.tp} x {group.card.name} ({shape.heads} heads of"
            f" {shape.head_dim}, {shape.kv_heads} for KV); use a table of this model, card and tp"
        )


def method_of(tool: str, path: Path, said: str = "") -> str:
    """What an importer computed of a file's rows, for people; ``said`` comes first."""
    computed = getattr(import_module(TOOLS[tool].module), "method", None)
    texts = [said, computed(path) if computed else ""]
    return "; ".join(text for text in texts if text)


def first_row(path: Path) -> Row:
    """The first row of a table, by whose columns its kind is known; CostFileError for an empty one."""
    for row in read_rows(path):
        return row
    raise CostFileError(f"{path.name}: has no rows; use the table as published")


def unknown_table(path: Path, tool: str, columns: Sequence[str], known: str) -> CostFileError:
    """An error that says what a tool's tables look like."""
    shown = ", ".join(columns[:6]) + (", ..." if len(columns) > 6 else "")
    return CostFileError(f"{path.name}: has the columns {shown}, as no known table of {tool}; known are {known}")


def source_name(path: Path) -> str:
    """The file's name without its endings."""
    return path.name.split(".")[0]


def with_file(origin: Origin, path: Path) -> Origin:
    """``origin`` with the name of the file and the start of its sha256."""
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise CostFileError(f"{path}: cannot be read ({error.strerror}); give the table as published") from None
    return origin._replace(file=path.name, file_sha256=digest)


def _check_group(profile: Profile, shape: ModelShape, card: Card, path: Path) -> None:
    for key, found, wanted in (
        ("model", profile.model, shape.name),
        ("card", profile.card, card.name),
        ("tp", profile.tp, shape.tp),
    ):
        if found != wanted:
            said = f"its {key} is {found!r}, not {wanted!r}"
            raise CostFileError(f"{path.name}: {said}; profiles of one group are joined")
