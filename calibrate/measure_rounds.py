"""Rounds over the steps to time: each in another order, so that what else the machine does hits all alike."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calibrate.measure_levels import levelled
from calibrate.measure_points import Point, Step
from calibrate.measure_rows import Timed

if TYPE_CHECKING:
    from calibrate.measure_steps import StepTimer, SwapTimer

LEAST_ROUNDS = 5
SWAPPED_BLOCKS = (1, 2, 4, 8, 16, 32, 64)

_SEED = 0
_BARE_VISITS = 3
"""A round times steps without attention, and the head, so often: all terms rest on these few points."""


class Rounds:
    """Times of ``candidates``, of the head alone unless these tell it, and of transfers of so many blocks, round by
    round. ``hosts``, by decoding sequences and chunks, are filled by who knows what the host takes."""

    def __init__(
        self, timer: StepTimer, swap_timer: SwapTimer, candidates: Sequence[Point], swaps: Iterable[int]
    ) -> None:
        self.candidates = candidates
        self.steps: dict[Step, list[float]] = {}
        self.hosts: dict[tuple[int, int], list[float]] = {}
        self.rounds = 0
        self.least_s = 0.0
        self._timer, self._swap_timer = timer, swap_timer
        self._heads: dict[int, list[float]] = {}
        self._swaps: dict[int, list[float]] = {blocks: [] for blocks in swaps}
        self._played: list[tuple[Step, float]] = []
        self._alike: dict[Step, Step] = {}
        self._draw = random.Random(_SEED)

    def choose(self, budget_s: float) -> None:
        """Take as many points, coarse ones first, as ``LEAST_ROUNDS`` fit into the budget with; each is run before.

        All of the coarsest level are taken: ``least_s`` says how long the rounds over what was taken will last.
        """
        round_s = 0.0
        for level, step in self.candidates:
            began = time.perf_counter()
            self._timer.seconds(step)
            self._timer.seconds(step)
            round_s += (time.perf_counter() - began) / 2 * _visits(step) * (1 if step.chunk_tokens else 2)
            if level and round_s * (LEAST_ROUNDS + 2) > budget_s:
                break
            self.steps[step] = []
            self.least_s = round_s * LEAST_ROUNDS
        if not any(step.silent for step in self.steps):
            self._heads = {len(step.contexts): [] for step in self.steps if step.bare and step.contexts}

    def round(self) -> None:
        """Every point, in an order of its own."""
        order = [step for step in self.steps for _ in range(_visits(step))]
        self._draw.shuffle(order)
        for step in order:
            self._time(step)
        for rows, times in self._heads.items():
            times += [self._timer.head_seconds(rows) for _ in range(_BARE_VISITS)]
        for blocks, times in self._swaps.items():
            times.append(self._swap_timer.seconds(blocks))
        self.rounds += 1

    def once_more(self, wanted: Step) -> None:
        """Time the step that is most like this one, for who wants to know how slow the machine is just now."""
        step = self._alike.get(wanted)
        if step is None:
            step = self._alike[wanted] = min(self.steps, key=lambda step: _unlike(step, wanted))
        self._time(step)

    def _time(self, step: Step) -> None:
        seconds = self._seconds(step)
        self._played.append((step, seconds))
        self.steps[step].append(seconds)

    def _seconds(self, step: Step) -> float:
        """Of one step. One that decodes comes after another of its kind, as it nearly always does in a run: after a
        long prompt it takes up to a fifth longer on a CPU. What a prompt takes does not depend on what was before."""
        if not step.chunk_tokens:
            self._timer.seconds(step)
        return self._timer.seconds(step)

    def timed(self) -> Timed:
        """Medians of what was found so far at each point, steps without what slowed the machine for a while."""
        found = (levelled(self._played), self._heads, self._swaps, self.hosts)
        return Timed(*(_medians(times) for times in found))

    @property
    def num_timed(self) -> int:
        """How many times a step was timed so far."""
        return len(self._played)

    def slowness(self, when: slice = slice(None)) -> list[float]:
        """How long each of some of all timed steps took, over its median in ``timed``."""
        usual_s = self.timed().steps
        return [seconds / usual_s[step] for step, seconds in self._played[when]]


def _unlike(step: Step, wanted: Step) -> tuple[bool, float]:
    """The same operations, then about as many tokens and as much in the cache."""
    another = (bool(step.contexts), bool(step.chunk_tokens), step.bare, step.silent) != (
        bool(wanted.contexts),
        bool(wanted.chunk_tokens),
        wanted.bare,
        wanted.silent,
    )
    tokens, cached = step.num_tokens / wanted.num_tokens, step.cached_tokens / wanted.cached_tokens
    return another, abs(math.log(tokens)) + abs(math.log(cached))


def _visits(step: Step) -> int:
    return _BARE_VISITS if step.bare else 1


def _medians(times: Mapping[Any, Sequence[float]]) -> dict[Any, float]:
    return {key: statistics.median(values) for key, values in times.items() if values}
