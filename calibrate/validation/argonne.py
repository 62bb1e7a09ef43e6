"""Leave one length out: vLLM of 2024 with Llama-2-7B on an A100 of 40 GB, and the same recipe on other models of the
card.

Step times are fitted to cases without memory pressure, then the KV pool alone to those with it, of all lengths but one;
the cases of that length are predicted. Whatever lengths a file has are left out in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from calibrate.validation.cases import Case, read_cases
from calibrate.validation.compare import Comparison, Row, compare
from calibrate.validation.predict import predict
from calibrate.validation.recipe import Recipe
from calibrate.validation.steps import START, fit_pool, fit_steps
from policies.core.errors import TraceError

FILE = "argonne.jsonl"
FIGURE = "e2e_batch_s"
_GPU, _ENGINE, _MODEL = "A100-SXM4-40GB", "vllm", "meta-llama/Llama-2-7b-hf"
_OTHERS = ("meta-llama/Meta-Llama-3-8B", "mistralai/Mistral-7B-v0.1", "Qwen/Qwen2-7B")


class Fold(NamedTuple):
    """The recipe fitted without one length of prompts and answers, and what it predicts for that length."""

    length: int
    recipe: Recipe
    rows: tuple[Row, ...]


class LeaveOneOut(NamedTuple):
    """A fold a length; the recipe of all lengths, and what it says of other models on the same card."""

    folds: tuple[Fold, ...]
    recipe: Recipe
    others: Comparison


def leave_one_length_out(path: Path) -> LeaveOneOut:
    """Run the experiment on a file of cases; TraceError if it has fewer than two lengths of the model."""
    cases = [case for case in read_cases(path) if _belongs(case)]
    own = [case for case in cases if case.model == _MODEL]
    lengths = sorted({int(case.prompt.mean or 0) for case in own})
    if len(lengths) < 2:
        raise TraceError(f"{path}: {len(lengths)} lengths of {_MODEL} on {_GPU}; it takes two to leave one out")
    folds = []
    for length in lengths:
        kept = [case for case in own if case.prompt.mean != length]
        recipe = fit(kept)
        out = [case for case in own if case.prompt.mean == length]
        folds.append(Fold(length, recipe, compare(out, lambda _, recipe=recipe: recipe).rows))  # type: ignore[misc]
    whole = fit(own)
    others = [case for case in cases if case.model in _OTHERS]
    return LeaveOneOut(tuple(folds), whole, compare(others, lambda _: whole))


def _belongs(case: Case) -> bool:
    """Whole batches on one card of the engine; rows of the same measurement by another name are left out."""
    of_card = case.gpu == _GPU and case.engine == _ENGINE and case.tp == 1 and case.grade == "A"
    return of_card and case.kind == "offline_batch" and "output_tok_s" in case.measured and FIGURE in case.measured


def fit(cases: Sequence[Case]) -> Recipe:
    """Step times from the cases that memory did not limit, then the pool from those that it did."""
    short = [case for case in cases if predict(case, START).short_of_memory]
    ample = [case for case in cases if case not in short]
    recipe = fit_steps(ample, FIGURE)
    return fit_pool(short, recipe, FIGURE) if short else recipe
