"""Predicted against measured: one row a case and figure, and what rows of a kind have in common."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from calibrate.validation.bounds import impossible
from calibrate.validation.cases import FIGURES, Case
from calibrate.validation.predict import Prediction, predict
from calibrate.validation.recipe import Recipe
from calibrate.validation.setups import NotSimulated, target_of

_POOL_SHARE = 0.05
"""By how much the KV pool is varied beside a case that runs short of memory."""

RecipeOf = Callable[[Case], Recipe | None]
"""Which recipe times a case; None: the shipped costs and the host time of its preset."""


class Row(NamedTuple):
    """One figure of one case. ``pool`` are the errors with 5 % fewer and more KV blocks, where memory ran short."""

    case: Case
    figure: str
    measured: float
    predicted: float
    cost_model: str
    pool: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1.0


class Left(NamedTuple):
    """A case that was not run, and why."""

    case: Case
    reason: str


class Errors(NamedTuple):
    """Of a group of rows: number, mean and median of the absolute errors, the worst, and the bias (mean with sign)."""

    rows: int
    mean: float
    median: float
    worst: float
    bias: float


class Comparison(NamedTuple):
    """Rows of the cases that ran, and the cases that did not."""

    rows: tuple[Row, ...]
    left: tuple[Left, ...]


def compare(cases: Iterable[Case], recipe_of: RecipeOf, *, vary_pool: bool = True) -> Comparison:
    """Run every case and compare every figure that both sides have."""
    rows: list[Row] = []
    left: list[Left] = []
    for case in cases:
        try:
            refuse_impossible(case)
            if case.grade == "X":
                raise NotSimulated("graded X, impossible as labelled")
            rows += rows_of(case, recipe_of(case), vary_pool=vary_pool)
        except NotSimulated as reason:
            left.append(Left(case, str(reason)))
    return Comparison(tuple(rows), tuple(left))


def refuse_impossible(case: Case) -> None:
    """NotSimulated for a measurement that no card could have made; its grade is not asked."""
    reason = impossible(case, target_of(case))
    if reason is not None:
        raise NotSimulated(reason)


def rows_of(
    case: Case, recipe: Recipe | None, *, cost_model: str | None = None, vary_pool: bool = True
) -> list[Row]:
    """The rows of one case; NotSimulated if it cannot be run, or has no figure that the simulator says."""
    found = predict(case, recipe, cost_model=cost_model)
    names = [name for name in FIGURES if case.measured.get(name, 0.0) > 0.0 and found.figures.get(name)]
    if "e2e_batch_s" in names:
        names = [name for name in names if name not in ("output_tok_s", "req_s")]  # the same measurement again
    if not names:
        raise NotSimulated(f"none of its figures is one that the simulator says ({', '.join(case.measured)})")
    around: list[Prediction] = []
    if vary_pool and found.short_of_memory:
        around = [predict(case, recipe, 1 - _POOL_SHARE), predict(case, recipe, 1 + _POOL_SHARE)]
    return [_row(case, name, found, around) for name in names]


def _row(case: Case, name: str, found: Prediction, around: Sequence[Prediction]) -> Row:
    measured = case.measured[name]
    errors = [other.figures[name] / measured - 1.0 for other in around]
    return Row(
        case, name, measured, found.figures[name], found.cost_model, (errors[0], errors[1]) if errors else None
    )


def errors_of(rows: Iterable[Row]) -> Errors:
    """Mean, median, worst and bias of at least one row."""
    errors = [row.error for row in rows]
    sizes = [abs(error) for error in errors]
    worst = max(errors, key=abs)
    return Errors(len(errors), statistics.mean(sizes), statistics.median(sizes), worst, statistics.mean(errors))


def grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> Mapping[str, list[Row]]:
    """Rows by a text, in order of first appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
