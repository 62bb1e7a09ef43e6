"""Comparisons as plain tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calibrate.validation.compare import Comparison, Errors, Row, errors_of, grouped
from calibrate.validation.recipe import Recipe

_HEAD = f"{'rows':>6}{'mean':>9}{'median':>9}{'worst':>9}{'bias':>9}"


def percent(error: float) -> str:
    """A relative error with its sign, in %."""
    return f"{100 * error:+.1f} %"


def errors_cells(errors: Errors) -> str:
    """The columns under ``_HEAD``."""
    sizes = f"{100 * errors.mean:7.1f} %{100 * errors.median:7.1f} %"
    return f"{errors.rows:6d}{sizes}{percent(errors.worst):>9}{percent(errors.bias):>9}"


def summary_table(title: str, groups: Iterable[tuple[str, Sequence[Row]]]) -> list[str]:
    """A line a group of rows: absolute errors and their bias."""
    named = [(name, rows) for name, rows in groups if rows]
    width = max([len(title), *(len(name) + 2 for name, _ in named)])
    lines = [f"  {name:{width - 2}}{errors_cells(errors_of(rows))}" for name, rows in named]
    return [f"{title:{width}}{_HEAD}", *lines]


def rows_table(rows: Sequence[Row]) -> list[str]:
    """A line a row: measured, predicted, error, and how the error moves with 5 % fewer and more KV blocks."""
    width = max(len(row.case.id) for row in rows)
    names = max(len(row.figure) for row in rows)
    columns = f"{'measured':>12}{'predicted':>12}{'error':>9}   KV pool -5 %, +5 %"
    lines = [f"  {'case':{width}}  {'figure':{names}}{columns}"]
    for row in rows:
        pool = "" if row.pool is None else f"   {percent(row.pool[0])}, {percent(row.pool[1])}"
        figures = f"{row.measured:12.5g}{row.predicted:12.5g}{percent(row.error):>9}"
        lines.append(f"  {row.case.id:{width}}  {row.figure:{names}}{figures}{pool}")
    return lines


def counted(number: int, noun: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def left_lines(comparison: Comparison) -> list[str]:
    """The cases that were not run, by reason."""
    if not comparison.left:
        return []
    reasons: dict[str, list[str]] = {}
    for case, reason in comparison.left:
        reasons.setdefault(reason.split(":")[0], []).append(f"{case.id}{reason[len(reason.split(':')[0]):]}")
    lines = [f"not run: {counted(len(comparison.left), 'case')}"]
    for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1])):
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        lines.append(f"  {len(ids):4d}  {reason} ({ids[0]}{more})")
    return lines


def recipe_line(recipe: Recipe) -> str:
    """The fitted figures in words."""
    parallel = f" + {1e3 * recipe.parallel_s:.2f} ms with several GPUs" if recipe.parallel_s else ""
    return (
        f"host {1e3 * recipe.base_s:.2f} ms + {1e3 * recipe.per_seq_s:.3f} ms a sequence{parallel}; weights read in"
        f" {recipe.weights:.3f}, KV in {recipe.kv:.3f} of the operators' time; {recipe.reserve_bytes / 1e9:.2f} GB kept"
        " from the KV pool"
    )


def by_engine_card_figure(rows: Sequence[Row]) -> list[tuple[str, Sequence[Row]]]:
    """Groups by engine, version and card, and within them by figure."""

    def name(row: Row) -> str:
        case = row.case
        return f"{case.engine} {case.version.split(' ')[0]}, {case.gpu}: {row.figure}"

    return list(grouped(rows, name).items())
