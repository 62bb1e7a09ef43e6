"""Engines under load: LMDeploy, TensorRT-LLM in flight and behind Triton, SGLang and vLLM, open and closed loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from calibrate.validation.cases import Case, read_cases
from calibrate.validation.compare import Comparison, Row, compare
from calibrate.validation.refit import fitted_ids
from calibrate.validation.setups import target_of
from calibrate.validation.shipped import recipe_of

FILES = (
    "lmdeploy.jsonl",
    "trtllm_inflight.jsonl",
    "trtllm_online.jsonl",
    "sglang_vllm.jsonl",
    "closed_loop_h100_h200.jsonl",
)
THROUGHPUT = ("output_tok_s", "derived_output_tok_s_steady")
TPOT = ("tpot_mean_ms", "tpot_p50_ms", "itl_mean_ms")
OUTSIDE = 0.10
_KNEE = 3.0
"""A rate is past the knee where the mean TTFT is so many times that at the lowest rate."""


class Knee(NamedTuple):
    """A curve of offered rates: how many of them lie before the knee, as measured and as simulated."""

    name: str
    rates: tuple[float, ...]
    measured: int
    simulated: int

    @property
    def steps_apart(self) -> int:
        """Offered rates between the two."""
        return abs(self.measured - self.simulated)


class Serving(NamedTuple):
    """All rows of the cases of grade A and B, and the knees of the curves that have one. ``fitted`` are the ids of the
    cases that recipes were fitted to."""

    comparison: Comparison
    knees: tuple[Knee, ...]
    fitted: frozenset[str]

    def rows(self, figures: Sequence[str], *, held_out: bool) -> list[Row]:
        """The rows of some figures, all or only those of cases that nothing was fitted to."""
        rows = self.comparison.rows
        return [row for row in rows if row.figure in figures and not (held_out and row.case.id in self.fitted)]


def serving(folder: Path, *, vary_pool: bool) -> Serving:
    """Run all cases of the files in a folder that are graded A or B; ``vary_pool``: see ``compare``."""
    cases = [case for name in FILES for case in read_cases(folder / name) if case.grade in "AB"]
    found = compare(cases, recipe_of, vary_pool=vary_pool)
    return Serving(found, tuple(knees(found.rows)), frozenset(fitted_ids(folder)))


def knees(rows: Sequence[Row]) -> list[Knee]:
    """A knee a curve: an engine, a card, a model and lengths, over the rates that were offered."""
    curves: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        case = row.case
        if row.figure == "ttft_mean_ms" and case.rate_per_s is not None:
            key = (case.engine, case.gpu, case.model.split("/")[-1], case.tp, case.prompt.mean, case.output.mean)
            curves.setdefault(key, []).append(row)
    return [_knee(key, curve) for key, curve in curves.items() if len(curve) > 2]


def _knee(key: tuple[object, ...], curve: list[Row]) -> Knee:
    ordered = sorted(curve, key=lambda row: row.case.rate_per_s or 0.0)
    engine, gpu, model, tp, prompt, output = key
    return Knee(
        f"{engine}, {model} on {tp} x {gpu}, {prompt:g}/{output:g} tokens",
        tuple(row.case.rate_per_s or 0.0 for row in ordered),
        _before([row.measured for row in ordered]),
        _before([row.predicted for row in ordered]),
    )


def _before(ttft_ms: Sequence[float]) -> int:
    """How many of the rates, from the lowest, are not past the knee."""
    return next((place for place, value in enumerate(ttft_ms) if value > _KNEE * ttft_ms[0]), len(ttft_ms))


def cause(row: Row) -> str:
    """Why a row may be off: what its source or our data do not say about it."""
    case, target = row.case, target_of(row.case)
    if target.shape.weight_bytes > 0.7 * target.card.memory_bytes:
        return "weights take most of the memory: the size of the KV pool decides, and is not stated"
    if case.tp > 1 and target.card.link.startswith("pcie"):
        return "all-reduce over PCIe is assumed, not measured"
    if "Mistral" in case.model and case.engine == "vllm":
        return "its sliding window takes other attention kernels, which read KV once a query head"
    if case.prompt.spread and case.prompt.mean is None:
        return "prompt lengths are not stated: drawn around the mean of the data set"
    if case.prompt.spread:
        return "only the means of the lengths are stated: drawn around them"
    if (target.shape.weight_bits, target.shape.kv_bits) != (16, 16) or row.cost_model == "roofline":
        return f"no operator tables of this model at {target.shape.weight_bits} bits on this card: roofline"
    return _of_the_source(case)


def _of_the_source(case: Case) -> str:
    if case.grade != "A":
        return "settings of the engine are not stated"
    return "none found: scatter of the recipe"
