"""From the tables of a shipped group to its profile."""

from __future__ import annotations

from pathlib import Path

from calibrate.checks import Limits
from calibrate.importing import Group, measurements, method_of, source_name, with_file
from calibrate.profile import Measurement, Origin, Profile
from calibrate.sources import Recipe, Table
from policies.catalog import Card, ModelShape, card

_REACHED = 0.85
"""Share of the bandwidth that reading reaches: what is scaled is bytes over that."""


def profile_of(recipe: Recipe, folder: Path, shape: ModelShape, target: Card) -> Profile:
    """The profile of ``shape``, one GPU's part of a model, from the tables in ``folder``."""
    measured_on = card(recipe.scaled_from) if recipe.scaled_from else target
    rows: list[Measurement] = []
    sources: dict[str, Origin] = {}
    for table in recipe.tables:
        path = beside(folder, table.source.file)
        of = card(table.source.card) if table.source.card else measured_on
        group = Group(shape, of, source_name(path), recipe.max_num_seqs)
        rows += _rows(table, path, group)
        sources[group.source] = _origin(table, path, recipe)
    if recipe.scaled_from:
        rows = [_scaled(row, shape, measured_on, target) for row in rows]
    date = "; ".join(dict.fromkeys(table.source.date for table in recipe.tables if not table.source.card))
    return Profile(shape.name, target.name, shape.tp, date, sources, tuple(rows))


def beside(folder: Path, file: str) -> Path:
    """In the folder of the tables, or in the folder ``e2e`` beside it."""
    path = folder / file
    return path if path.exists() else folder.parent / "e2e" / file


def _rows(table: Table, path: Path, group: Group) -> list[Measurement]:
    found = []
    for row in measurements(table.tool, path, group):
        if not table.only or row.operator in table.only:
            is_added = table.added and row.operator == "prefill"
            found.append(row._replace(operator="prefill_added") if is_added else row)
    return found


def _origin(table: Table, path: Path, recipe: Recipe) -> Origin:
    source = table.source
    texts = [method_of(table.tool, path)]
    if recipe.scaled_from and not source.card:
        texts.append(
            f"computed from the {recipe.scaled_from}'s: where the bytes take longer than the FLOPs, reading them at"
            f" {_REACHED:g} of the bandwidth is scaled by the bandwidths of the two cards"
        )
    origin = Origin(
        source.origin,
        source.licence,
        source.date,
        origin_sha256=source.origin_sha256,
        card=source.card,
        method="; ".join(text for text in texts if text),
    )
    return with_file(origin, path)


def _scaled(row: Measurement, shape: ModelShape, measured_on: Card, target: Card) -> Measurement:
    """A row of the same chip with other memory."""
    # A card without a limit of arithmetic is bound by memory alone, and one without a limit of memory by arithmetic.
    limit = Limits(measured_on._replace(flops_per_s=float("inf")), float("inf"))
    work = Limits(measured_on._replace(bytes_per_s=float("inf")), float("inf"))
    read_s, work_s = limit.measurement("", row, shape), work.measurement("", row, shape)
    if read_s < work_s or row.operator.startswith("uneven"):
        return row
    ratio = measured_on.bytes_per_s / target.bytes_per_s
    longer_s = min(read_s / _REACHED, row.seconds) * (ratio - 1.0)
    return row._replace(seconds=row.seconds + longer_s)
