"""Finds and loads the cost model of a model on a card."""

from __future__ import annotations

from pathlib import Path

from policies.catalog import Card, ModelShape
from policies.core.errors import CostFileError
from sim.costs.costfile import CostFile, read_cost_file
from sim.costs.model import NO_HOST, CostModel
from sim.costs.terms import HostTerm

DATA_DIR = Path(__file__).with_name("data")


def load_cost_model(
    shape: ModelShape, card: Card, cost_model: str = "calibrated", host: HostTerm = NO_HOST
) -> CostModel:
    """The cost model of ``shape`` on ``card``, from the shipped cost file for ``"calibrated"``, else a path.

    CostFileError when no file is shipped for the pair, or when the file is for another model or card.
    """
    path = shipped_path(shape.name, card.name) if cost_model == "calibrated" else Path(cost_model)
    if cost_model == "calibrated" and not path.exists():
        raise CostFileError(
            f"no cost file is shipped for {shape.name} on {card.name} (shipped: {', '.join(shipped())});"
            " set hardware.cost_model to a file that `batchscope calibrate fit` wrote"
        )
    file = read_cost_file(path)
    _check_pair(file, shape, card, path)
    return CostModel(file, shape, card, host)


def shipped_path(model: str, card: str) -> Path:
    """Where the shipped cost file of a pair lies or would lie."""
    return DATA_DIR / f"{card}_{model}.json"


def shipped() -> list[str]:
    """Names of the shipped cost files, ``CARD_MODEL``."""
    return sorted(path.stem for path in DATA_DIR.glob("*.json"))


def _check_pair(file: CostFile, shape: ModelShape, card: Card, path: Path) -> None:
    for key, found, wanted in (("model", file.model, shape.name), ("card", file.card, card.name)):
        if found != wanted:
            raise CostFileError(f"{path}: its {key} is '{found}', not '{wanted}'; use a file that matches")
