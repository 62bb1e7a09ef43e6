"""The executor's Llama says what `transformers` says, token by token, however its requests are scheduled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpu_backend.device import placement  # noqa: E402
from gpu_backend.model import LlamaModel, open_model  # noqa: E402
from tests.executor.reference import KINDS, greedy, save_random  # noqa: E402
from tests.executor.request_schedules import SCHEDULES, Case, said  # noqa: E402
from tests.executor.sequences import Sequences  # noqa: E402

PROMPT_LENGTHS = (1, 5, 9, 23)

Schedule = Callable[[Sequences, Case], None]


class Oracle(NamedTuple):
    folder: Path
    theirs: Any
    ours: LlamaModel
    case: Case
    answers: dict[str, list[int]]


def oracle_of(folder: Path, prompt_lengths: tuple[int, ...], num_tokens: int, ops: str, **settings: Any) -> Oracle:
    theirs = save_random(folder, **settings)
    draw = Random(str(settings))
    prompts = {f"r{n}": [draw.randrange(256) for _ in range(n)] for n in prompt_lengths}
    answers = {name: greedy(theirs, prompt, num_tokens) for name, prompt in prompts.items()}
    ours = open_model(str(folder), placement("cpu", ops=ops))
    return Oracle(folder, theirs, ours, Case(prompts, num_tokens), answers)


@pytest.fixture(scope="module", params=KINDS)
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return oracle_of(tmp_path_factory.mktemp(request.param), PROMPT_LENGTHS, 12, "torch", **KINDS[request.param])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.__name__)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_greedy_tokens_are_those_of_transformers(oracle: Oracle, schedule: Schedule, block_size: int) -> None:
    run = Sequences(oracle.ours, block_size=block_size, num_blocks=256 // block_size)
    schedule(run, oracle.case)
    assert said(run, oracle.case) == oracle.answers


def test_logits_are_those_of_transformers(oracle: Oracle) -> None:
    prompt = oracle.case.prompts["r23"]
    run = Sequences(oracle.ours)
    run.add("x", prompt)
    run.step(chunks={"x": 20})
    ours = run.step(chunks={"x": 3})
    with torch.no_grad():
        theirs = oracle.theirs(torch.tensor([prompt])).logits[0, -1:]
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_answers_depend_on_all_of_the_context(oracle: Oracle) -> None:
    """Else the tests above would pass with a cache that forgets."""
    prompt = oracle.case.prompts["r23"]
    other = [(prompt[0] + 1) % 256, *prompt[1:]]
    assert greedy(oracle.theirs, other, oracle.case.num_tokens) != oracle.answers["r23"]


def test_bfloat16_follows_float32_closely(oracle: Oracle) -> None:
    logits = []
    for dtype in ("float32", "bfloat16"):
        run = Sequences(open_model(str(oracle.folder), placement("cpu", dtype, "torch")))
        run.add("x", range(30))
        logits.append(run.step(chunks={"x": 30}))
    assert float((logits[0] - logits[1]).norm() / logits[0].norm()) < 0.05


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("triton")
    settings = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return oracle_of(folder, (2, 19), 5, "triton", **settings)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_triton_kernels_say_the_same(small: Oracle, schedule: Schedule) -> None:
    run = Sequences(small.ours, block_size=16, num_blocks=8)
    schedule(run, small.case)
    assert said(run, small.case) == small.answers
