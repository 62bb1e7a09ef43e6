"""How TensorRT-LLM divides the tokens of a step among prompts that do not all fit."""

from __future__ import annotations

from collections.abc import Sequence


def first_come_first_served(rests: Sequence[int], capacity: int, unit: int) -> list[int]:
    """Tokens for each prompt, in order: its rest, or the multiple of ``unit`` within the ``capacity`` left, which may
    be 0; later ones are tried all the same."""
    sizes = []
    for rest in rests:
        size = rest if rest <= capacity else capacity // unit * unit
        sizes.append(size)
        capacity -= size
    return sizes


def equal_progress(rests: Sequence[int], capacity: int, unit: int) -> list[int]:
    """Tokens for each prompt: ``unit`` by turns (what is left of it in the last), whoever still fits, until a round
    gives nobody anything."""
    sizes = [0] * len(rests)
    while (unfinished := [place for place, rest in enumerate(rests) if sizes[place] < rest]) and (
        rounds := capacity // (unit * len(unfinished))
    ):  # so many rounds surely give each of them a unit
        capacity -= _give(sizes, rests, unfinished, rounds * unit)
    before = -1
    while capacity != before:
        before = capacity
        for place in unfinished:
            if min(unit, rests[place] - sizes[place]) <= capacity:
                capacity -= _give(sizes, rests, (place,), unit)
    return sizes


def _give(sizes: list[int], rests: Sequence[int], places: Sequence[int], most: int) -> int:
    """Add up to ``most`` tokens to each of these prompts; returns how many that took."""
    given = 0
    for place in places:
        step = min(most, rests[place] - sizes[place])
        sizes[place] += step
        given += step
    return given
