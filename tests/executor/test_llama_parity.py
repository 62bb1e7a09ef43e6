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
from gpu_backend.swap import SwapPool  # noqa: E402
from policies.core.plan import Transfer  # noqa: E402
from tests.executor.reference import KINDS, greedy, save_random  # noqa: E402
from tests.executor.sequences import Sequences  # noqa: E402

NUM_TOKENS = 12
PROMPT_LENGTHS = (1, 5, 9, 23)


class Case(NamedTuple):
    oracle: Any
    model: LlamaModel
    prompts: dict[str, list[int]]
    answers: dict[str, list[int]]


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    oracle = save_random(folder, **KINDS[request.param])
    draw = Random(request.param)
    prompts = {f"r{n}": [draw.randrange(256) for _ in range(n)] for n in PROMPT_LENGTHS}
    answers = {name: greedy(oracle, prompt, NUM_TOKENS) for name, prompt in prompts.items()}
    return Case(oracle, open_model(str(folder), placement("cpu")), prompts, answers)


def answers(run: Sequences, case: Case) -> dict[str, list[int]]:
    return {name: run.known[name][len(prompt) :][:NUM_TOKENS] for name, prompt in case.prompts.items()}


def alone(run: Sequences, case: Case) -> None:
    for name, prompt in case.prompts.items():
        run.add(name, prompt)
        run.step(chunks={name: len(prompt)})
        for _ in range(NUM_TOKENS - 1):
            run.step([name])
        run.release(name)


def batched(run: Sequences, case: Case) -> None:
    for name, prompt in case.prompts.items():
        run.add(name, prompt)
    run.step(chunks={name: len(prompt) for name, prompt in case.prompts.items()})
    for _ in range(NUM_TOKENS - 1):
        run.step(list(case.prompts))


def chunked(run: Sequences, case: Case) -> None:
    """Four tokens of each prompt a step, beside the decodes of those that are ready."""
    for name, prompt in case.prompts.items():
        run.add(name, prompt)
    while any(len(run.known[name]) < len(prompt) + NUM_TOKENS for name, prompt in case.prompts.items()):
        left = {name: len(prompt) - run.computed[name] for name, prompt in case.prompts.items()}
        run.step(
            [name for name, count in left.items() if count <= 0],
            {name: min(4, count) for name, count in left.items() if count > 0},
        )


def staggered(run: Sequences, case: Case) -> None:
    """One joins every other step; whoever has all its tokens leaves, and its memory goes to others."""
    waiting, running = list(case.prompts), []
    step = 0
    while waiting or running:
        chunks = {}
        if waiting and step % 2 == 0:
            name = waiting.pop(0)
            run.add(name, case.prompts[name])
            chunks = {name: len(case.prompts[name])}
        run.step(running, chunks)
        running += chunks
        for name in list(running):
            if len(run.known[name]) >= len(case.prompts[name]) + NUM_TOKENS:
                running.remove(name)
                run.release(name)
        step += 1


def preempted(run: Sequences, case: Case, preempt: Callable[[str], None]) -> None:
    """Every third step somebody is preempted and comes back."""
    draw = Random(7)
    for name, prompt in case.prompts.items():
        run.add(name, prompt)
    run.step(chunks={name: len(prompt) for name, prompt in case.prompts.items()})
    for step in range(1, NUM_TOKENS):
        chunks = {}
        if step % 3 == 0:
            name = draw.choice(list(case.prompts))
            preempt(name)
            if not run.computed[name]:
                chunks = {name: len(run.known[name])}
        run.step([name for name in case.prompts if name not in chunks], chunks)


def swapped(run: Sequences, case: Case) -> None:
    pool = SwapPool(64, run.cache)

    def out_and_in(name: str) -> None:
        places = tuple(range(3, 3 + len(run.table[name])))
        pool.start([Transfer(1, 0, "out", tuple(run.table[name]), places, True)])
        computed = run.computed[name]
        run.release(name)
        run.computed[name] = computed
        run.grow(name, computed)
        pool.start([Transfer(2, 0, "in", places, tuple(run.table[name]), True)])

    preempted(run, case, out_and_in)


def recomputed(run: Sequences, case: Case) -> None:
    preempted(run, case, run.release)


SCHEDULES = (alone, batched, chunked, staggered, swapped, recomputed)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.__name__)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_greedy_tokens_are_those_of_transformers(
    case: Case, schedule: Callable[[Sequences, Case], None], block_size: int
) -> None:
    run = Sequences(case.model, block_size=block_size, num_blocks=256 // block_size)
    schedule(run, case)
    assert answers(run, case) == case.answers


def test_logits_are_those_of_transformers(case: Case) -> None:
    prompt = case.prompts["r23"]
    run = Sequences(case.model)
    run.add("x", prompt)
    run.step(chunks={"x": 20})
    ours = run.step(chunks={"x": 3})
    with torch.no_grad():
        theirs = case.oracle(torch.tensor([prompt])).logits[0, -1:]
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


def test_answers_depend_on_all_of_the_context(case: Case) -> None:
    """Else the tests above would pass with a cache that forgets."""
    prompt = case.prompts["r23"]
    other = [(prompt[0] + 1) % 256, *prompt[1:]]
    assert greedy(case.oracle, other, NUM_TOKENS) != case.answers["r23"]


def test_bfloat16_follows_float32_closely(tmp_path: Path) -> None:
    save_random(tmp_path)
    logits = []
    for dtype in ("float32", "bfloat16"):
        run = Sequences(open_model(str(tmp_path), placement("cpu", dtype)))
        run.add("x", range(30))
        logits.append(run.step(chunks={"x": 30}))
    assert float((logits[0] - logits[1]).norm() / logits[0].norm()) < 0.05
