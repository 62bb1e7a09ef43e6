"""Fits the recipes that travel with the project, but the one of ``argonne``, each to every second case of its group:

python -m calibrate.validation.refit DATA OUT [NAME]...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrate.validation.cases import Case, read_cases
from calibrate.validation.compare import compare, errors_of
from calibrate.validation.predict import predict
from calibrate.validation.recipe import Recipe
from calibrate.validation.setups import CARDS, NotSimulated
from sim.runs import write_whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TOLERANCE = 0.05
"""Relative error that is taken for noise."""
_MOST_CASES = 12
"""Of a group that are fitted to: more tell nothing new."""
_ROUNDS = 2
_NAMES = ("base_s", "per_seq_s", "weights", "kv", "compute", "links", "parallel_s")
_SPREAD = (2e-3, 0.05e-3, 0.1, 0.15, 0.15, 0.3, 2e-3)
"""How far from the start a figure may plausibly lie."""


class Group(NamedTuple):
    """Cases of one engine on some cards, the figures that are fitted, and where the fit starts."""

    name: str
    file: str
    engine: str
    versions: tuple[str, ...]
    cards: tuple[str, ...]
    figures: tuple[str, ...]
    start: Recipe
    kinds: tuple[str, ...] = ()

    def holds(self, case: Case) -> bool:
        """Whether a case is of the group."""
        return (
            case.engine == self.engine
            and case.version.startswith(self.versions)
            and CARDS.get(case.gpu) in self.cards
            and case.grade in "AB"
            and (not self.kinds or case.kind in self.kinds)
        )


_FEW = Recipe(0.3e-3, 0.01e-3)
_NVIDIA = _FEW._replace(utilization=0.97, reserve_bytes=1_000_000_000)
"""TensorRT-LLM gives KV what is left after it has loaded, nearly all of it."""
_TOKENS, _GAPS = ("output_tok_s",), ("output_tok_s", "itl_mean_ms")
_LOOP = ("tpot_mean_ms", "derived_output_tok_s_steady")
_INFLIGHT, _CLOSED = "trtllm_inflight.jsonl", "closed_loop_h100_h200.jsonl"
_HOPPER = ("h100-80gb", "h200-141gb")

GROUPS = (
    *(
        Group(f"trtllm-0.14 on {card}", _INFLIGHT, "tensorrt-llm", ("0.14.0",), (card,), _TOKENS, _NVIDIA, ("burst",))
        for card in ("a100-80gb", "h100-80gb", "h200-141gb", "l40s-48gb")
    ),
    Group("trtllm-1.0 on H100 and H200", _INFLIGHT, "tensorrt-llm", ("1.0 ",), _HOPPER, _TOKENS, _NVIDIA),
    Group(
        "trtllm-0.14 behind Triton", "trtllm_online.jsonl", "tensorrt-llm", ("0.14.0 with",), _HOPPER, _GAPS, _NVIDIA
    ),
    Group("trtllm-1.0rc3, closed loop", _CLOSED, "tensorrt-llm", ("1.0.0rc3",), _HOPPER, _LOOP, _NVIDIA),
    Group("vllm-0.12, closed loop", _CLOSED, "vllm", ("0.12",), _HOPPER, _LOOP, _FEW),
    Group("sglang-0.5, closed loop", _CLOSED, "sglang", ("0.5",), _HOPPER, _LOOP, _FEW),
    Group(
        "vllm-0.5 on H100",
        "argonne.jsonl",
        "vllm",
        ("0.5",),
        ("h100-80gb",),
        ("e2e_batch_s",),
        Recipe(0.5e-3, 0.04e-3),
    ),
)


def fitted_ids(measured: Path) -> set[str]:
    """Ids of the cases that recipes were fitted to, in the files of a folder: every second one of each group."""
    ids: set[str] = set()
    for group in GROUPS:
        path = measured / group.file
        if path.exists():
            ids |= {case.id for case in [case for case in read_cases(path) if group.holds(case)][::2]}
    return ids


def fit_group(cases: Sequence[Case], group: Group) -> Recipe:
    """The recipe that makes the figures of ``cases`` come out best, not far from the start: Gauss-Newton through the
    simulator, in which cases that are far off weigh less."""
    import numpy as np
    from scipy.optimize import lsq_linear

    usable = [case for case in cases if _errors(case, group, group.start) is not None]
    usable = usable[:: max(1, len(usable) // _MOST_CASES)]
    first = np.array([getattr(group.start, name) for name in _NAMES])
    spread = np.array(_SPREAD)
    values = first
    for _ in range(_ROUNDS):
        found = _all_errors(usable, group, _recipe(group.start, values))
        columns = [
            (_all_errors(usable, group, _recipe(group.start, values + 0.2 * step * unit)) - found) / (0.2 * step)
            for step, unit in zip(spread, np.eye(len(values)), strict=True)
        ]
        slopes = np.array(columns).T
        trust = 1 / _TOLERANCE / np.sqrt(np.maximum(1.0, np.abs(found) / (2 * _TOLERANCE)))
        rows = np.vstack([slopes * trust[:, None], np.diag(1 / spread)]) * spread
        targets = np.concatenate([(slopes @ values - found) * trust, first / spread])
        values = lsq_linear(rows, targets, bounds=(0.0, np.inf)).x * spread
    return _recipe(group.start, values)


def _recipe(start: Recipe, values: NDArray[np.float64]) -> Recipe:
    return Recipe(**{**start._asdict(), **{n: float(f"{v:.5g}") for n, v in zip(_NAMES, values, strict=True)}})


def _all_errors(cases: Sequence[Case], group: Group, recipe: Recipe) -> NDArray[np.float64]:
    import numpy as np

    return np.array([error for case in cases for error in _errors(case, group, recipe) or ()])


def _errors(case: Case, group: Group, recipe: Recipe) -> list[float] | None:
    """Logarithms of predicted over measured; None for a case that is not run."""
    from math import log

    try:
        figures = predict(case, recipe).figures
    except NotSimulated:
        return None
    names = [name for name in group.figures if case.measured.get(name, 0.0) > 0.0]
    return [log(figures[name] / case.measured[name]) for name in names]


def refit(data: Path, groups: Sequence[Group], tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """The entries of ``recipes.json`` for some groups; ``tell`` takes a line about each."""
    for group in groups:
        cases = [case for case in read_cases(data / "measured" / group.file) if group.holds(case)]
        recipe = fit_group(cases[::2], group)
        out = compare(cases[1::2], lambda _, recipe=recipe: recipe, vary_pool=False).rows  # type: ignore[misc]
        rows = [row for row in out if row.figure in group.figures]
        held_out = errors_of(rows)
        tell(f"{group.name}: {recipe} held out: {held_out}")
        yield _entry(group, recipe, held_out.median, held_out.rows)


def _entry(group: Group, recipe: Recipe, median: float, rows: int) -> dict[str, Any]:
    kinds = {"kinds": list(group.kinds)} if group.kinds else {}
    return {
        "name": group.name,
        "engine": group.engine,
        "versions": list(group.versions),
        **kinds,
        "cards": list(group.cards),
        "recipe": recipe._asdict(),
        "held_out": {"median": round(median, 4), "rows": rows},
        "source": f"every second case of measured/{group.file}: python -m calibrate.validation.refit",
    }


def main() -> None:
    """Write the entries; names after OUT choose groups."""
    data, out, *names = sys.argv[1:]
    groups = [group for group in GROUPS if not names or group.name in names]
    entries = []
    for entry in refit(Path(data), groups, lambda line: print(line, flush=True)):
        entries.append(entry)
        write_whole(Path(out), json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
