"""Fits a recipe: step times on cases that never ran short of memory, then the KV pool alone on those that did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrate.validation.cases import Case
from calibrate.validation.predict import predict
from calibrate.validation.recipe import Recipe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TOLERANCE = 0.01
"""Relative error of a measurement that is taken for noise: what a parameter costs to move is weighed against it."""

START = Recipe(base_s=0.5e-3, per_seq_s=0.04e-3)
"""Operators as they are, and a host like that of vLLM of 2024."""
_SPREAD = Recipe(base_s=3e-3, per_seq_s=0.1e-3, weights=0.1, kv=0.1)
"""How far from the start a figure may plausibly lie: the factors are 10 % off at most, the host is not known."""
_FITTED = ("base_s", "per_seq_s", "weights", "kv")
_ROUNDS = 2


def fit_steps(cases: Sequence[Case], figure: str = "e2e_batch_s", start: Recipe = START) -> Recipe:
    """The recipe that times ``cases`` best, in relative error of ``figure``, not far from ``start``.

    Gauss-Newton with differences taken through the simulator itself. Batches that all arrive at once run the same steps
    whatever these last, so the time is linear in what is fitted.
    """
    import numpy as np
    from scipy.optimize import lsq_linear

    measured = np.array([case.measured[figure] for case in cases])
    first = np.array([getattr(start, name) for name in _FITTED])
    spread = np.array([getattr(_SPREAD, name) for name in _FITTED])
    values = first
    for _ in range(_ROUNDS):
        found = _predicted(cases, figure, _recipe(start, values))
        steps = 0.02 * np.maximum(values, 0.1 * spread)
        columns = [
            (_predicted(cases, figure, _recipe(start, values + step * unit)) - found) / step
            for step, unit in zip(steps, np.eye(len(values)), strict=True)
        ]
        slopes = np.array(columns).T / measured[:, None] / _TOLERANCE
        wanted = (measured - found) / measured / _TOLERANCE + slopes @ values
        rows, targets = np.vstack([slopes, np.diag(1 / spread)]), np.concatenate([wanted, first / spread])
        values = lsq_linear(rows * spread, targets, bounds=(0.0, np.inf)).x * spread
    return _recipe(start, values)


def _recipe(start: Recipe, values: NDArray[np.float64]) -> Recipe:
    base_s, per_seq_s, weights, kv = (float(value) for value in values)
    return start._replace(base_s=base_s, per_seq_s=per_seq_s, weights=weights, kv=kv)


def _predicted(cases: Sequence[Case], figure: str, recipe: Recipe) -> NDArray[np.float64]:
    import numpy as np

    return np.array([predict(case, recipe).figures[figure] for case in cases])


def fit_pool(cases: Sequence[Case], recipe: Recipe, figure: str = "e2e_batch_s") -> Recipe:
    """The recipe with the reserve that makes these cases, which ran short of memory, come out best: a search on a grid
    of 100 MB, then of 20 MB, by the mean square of relative errors."""

    def error(reserve_bytes: int) -> float:
        tried = recipe._replace(reserve_bytes=reserve_bytes)
        return sum((predict(case, tried).figures[figure] / case.measured[figure] - 1) ** 2 for case in cases)

    coarse = min(range(0, 4_000_000_000, 100_000_000), key=error)
    fine = range(max(0, coarse - 100_000_000), coarse + 100_000_001, 20_000_000)
    return recipe._replace(reserve_bytes=min(fine, key=error))
