"""Ways to schedule the same requests: none of them may change what is said."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from gpu_backend.swap import SwapPool
from policies.core.plan import Transfer
from tests.executor.sequences import Sequences


class Case(NamedTuple):
    """Prompts by name, and how many tokens to say after each."""

    prompts: dict[str, list[int]]
    num_tokens: int


def said(run: Sequences, case: Case) -> dict[str, list[int]]:
    """The answers of a run."""
    return {name: run.known[name][len(prompt) :][: case.num_tokens] for name, prompt in case.prompts.items()}


def alone(run: Sequences, case: Case) -> None:
    for name, prompt in case.prompts.items():
        run.add(name, prompt)
        run.step(chunks={name: len(prompt)})
        for _ in range(case.num_tokens - 1):
            run.step([name])
        run.release(name)


def batched(run: Sequences, case: Case) -> None:
    for name, prompt in case.prompts.items():
        run.add(name, prompt)
    run.step(chunks={name: len(prompt) for name, prompt in case.prompts.items()})
    for _ in range(case.num_tokens - 1):
        run.step(list(case.prompts))


def chunked(run: Sequences, case: Case) -> None:
    """Four tokens of each prompt a step, beside the decodes of those that are ready."""
    for name, prompt in case.prompts.items():
        run.add(name, prompt)
    while any(len(run.known[name]) < len(prompt) + case.num_tokens for name, prompt in case.prompts.items()):
        left = {name: len(prompt) - run.computed[name] for name, prompt in case.prompts.items()}
        run.step(
            [name for name, count in left.items() if count <= 0],
            {name: min(4, count) for name, count in left.items() if count > 0},
        )


def staggered(run: Sequences, case: Case) -> None:
    """One joins every other step; whoever has all its tokens leaves, and its memory goes to others."""
    waiting = list(case.prompts)
    running: list[str] = []
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
            if len(run.known[name]) >= len(case.prompts[name]) + case.num_tokens:
                running.remove(name)
                run.release(name)
        step += 1


def preempted(run: Sequences, case: Case, preempt: Callable[[str], None]) -> None:
    """Every third step somebody is preempted and comes back."""
    draw = Random(7)
    for name, prompt in case.prompts.items():
        run.add(name, prompt)
    run.step(chunks={name: len(prompt) for name, prompt in case.prompts.items()})
    for step in range(1, case.num_tokens):
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
