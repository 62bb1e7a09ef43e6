"""The untuned mode: the roofline with the presets' host terms and communication, against all dense 16-bit cases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from calibrate.validation.bounds import batch_bound_s, tokens_bound_per_s
from calibrate.validation.cases import Case, read_cases
from calibrate.validation.compare import Comparison, Left, Row, refuse_impossible, rows_of
from calibrate.validation.setups import NotSimulated, target_of

FACTOR = 2.0
_SIXTEEN_BITS = ("fp16", "bf16")
_MAIN = ("e2e_batch_s", "output_tok_s", "tpot_p50_ms", "tpot_mean_ms", "ttft_mean_ms")
"""The one figure of a case that is counted: the first of these that it has."""


class Untuned(NamedTuple):
    """The rows of grade A cases, a figure each; those below the hardware's bound; the cases that were not run; the
    cases graded X, and which of them were refused."""

    comparison: Comparison
    below_bound: tuple[Row, ...]
    graded_x: tuple[Case, ...]
    refused: tuple[Left, ...]

    @property
    def within(self) -> list[Row]:
        """Rows within a factor of 2."""
        return [row for row in self.comparison.rows if 1 / FACTOR <= row.predicted / row.measured <= FACTOR]


def untuned(folder: Path, *, one_of: int = 1) -> Untuned:
    """Run the dense 16-bit cases of grade A in the files of a folder, all or every ``one_of``-th."""
    cases = [case for path in sorted(folder.glob("*.jsonl")) for case in read_cases(path)]
    graded_a = [case for case in cases if case.grade == "A" and case.weights in _SIXTEEN_BITS]
    rows: list[Row] = []
    left: list[Left] = []
    for case in graded_a[::one_of]:
        try:
            rows.append(_main_row(case))
        except NotSimulated as reason:
            left.append(Left(case, str(reason)))
    graded_x = tuple(case for case in cases if case.grade == "X")
    below = tuple(row for row in rows if _beats_bound(row))
    return Untuned(Comparison(tuple(rows), tuple(left)), below, graded_x, tuple(_refused(graded_x)))


def _main_row(case: Case) -> Row:
    refuse_impossible(case)
    rows = {row.figure: row for row in rows_of(case, None, cost_model="roofline", vary_pool=False)}
    name = next((name for name in _MAIN if name in rows), None)
    if name is None:
        raise NotSimulated(f"none of its figures is counted ({', '.join(case.measured)})")
    return rows[name]


def _beats_bound(row: Row) -> bool:
    """Whether the simulator itself is faster than the card."""
    target = target_of(row.case)
    bound_s, bound = batch_bound_s(row.case, target), tokens_bound_per_s(row.case, target)
    if row.figure == "e2e_batch_s":
        return bound_s is not None and row.predicted < bound_s
    return row.figure == "output_tok_s" and bound is not None and row.predicted > bound


def _refused(cases: Iterable[Case]) -> Iterable[Left]:
    for case in cases:
        try:
            refuse_impossible(case)
        except NotSimulated as reason:
            yield Left(case, str(reason))


