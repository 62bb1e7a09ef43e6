"""The recipes that travel with the project: fitted to measured cases of an engine on a card, each with its source."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.validation.cases import Case
from calibrate.validation.recipe import Recipe
from calibrate.validation.setups import CARDS
from policies.json_text import read_json

RECIPES_FILE = Path(__file__).with_name("recipes.json")


class Shipped(NamedTuple):
    """A recipe, and which cases it times: those of an engine whose version begins with one of ``versions``, on one of
    ``cards``, of some ``kinds`` of workload (none: all). ``source`` says what it was fitted to."""

    name: str
    engine: str
    versions: tuple[str, ...]
    kinds: tuple[str, ...]
    cards: tuple[str, ...]
    recipe: Recipe
    source: str

    def times(self, case: Case) -> bool:
        """Whether it is for a case."""
        return (
            case.engine == self.engine
            and case.version.startswith(self.versions)
            and (not self.kinds or case.kind in self.kinds)
            and CARDS.get(case.gpu) in self.cards
        )


@cache
def shipped_recipes() -> tuple[Shipped, ...]:
    """All of them, in the order of the file; the first that times a case is used."""
    return tuple(_shipped(entry) for entry in read_json(RECIPES_FILE)["recipes"])


def _shipped(entry: dict[str, Any]) -> Shipped:
    return Shipped(
        name=entry["name"],
        engine=entry["engine"],
        versions=tuple(entry["versions"]),
        kinds=tuple(entry.get("kinds", ())),
        cards=tuple(entry["cards"]),
        recipe=Recipe(**entry["recipe"]),
        source=entry["source"],
    )


def recipe_of(case: Case) -> Recipe | None:
    """The recipe that times a case; None: the shipped costs and the host time of the engine's preset."""
    return next((entry.recipe for entry in shipped_recipes() if entry.times(case)), None)
