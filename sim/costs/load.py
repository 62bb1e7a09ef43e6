"""Finds and loads the cost model of a model on a card or a group of cards."""

from __future__ import annotations

from pathlib import Path

from policies.catalog import Card, ModelShape, model, models
from policies.core.errors import CatalogError, ConfigError, CostFileError
from sim.costs.costfile import CostFile, read_cost_file
from sim.costs.links import link_of
from sim.costs.model import NO_GRAPHS, NO_HOST, CostModel
from sim.costs.roofline import roofline
from sim.costs.terms import GraphTerm, HostTerm, SwapTerm

DATA_DIR = Path(__file__).with_name("data")
CALIBRATED = "calibrated"
ROOFLINE = "roofline"


def load_cost_model(
    shape: ModelShape,
    card: Card,
    cost_model: str | None = None,
    host: HostTerm | None = NO_HOST,
    *,
    graphs: GraphTerm = NO_GRAPHS,
    all_reduce: str = "nccl",
    swap: SwapTerm | None = None,
) -> CostModel:
    """The cost model of ``shape``, a model or one GPU's part of it, on ``card``.

    ``cost_model`` is ``calibrated`` (a shipped cost file), ``roofline``, or the path of a cost file; None takes the
    shipped file, and the roofline where there is none. ``swap`` takes the place of the file's term; the file's host
    time, if it was measured, that of ``host``, unless this is None: then there is none. Such a file was measured on
    whole steps with the graphs that they ran in, if any, and ``graphs`` pad none of them again. CostFileError when a
    file is missing or is for something else.
    """
    file = _file(shape, card, cost_model)
    if swap is not None:
        file = file._replace(swap=swap)
    if file.host is not None:
        graphs, host = NO_GRAPHS, None if host is None else file.host
    host = NO_HOST if host is None else host
    return CostModel(file, shape, card, host, graphs=graphs, all_reduce=link_of(card, shape.tp, all_reduce).all_reduce)


def _file(shape: ModelShape, card: Card, cost_model: str | None) -> CostFile:
    if cost_model == ROOFLINE or (cost_model is None and not is_shipped(shape, card)):
        return roofline(shape, card)
    if cost_model is None or cost_model == CALIBRATED:
        if not is_shipped(shape, card):
            raise CostFileError(
                f"no cost file is shipped for {_group(shape.name, card.name, shape.tp)}{_bits(shape)}{_sizes(shape)}"
                f" (shipped: {', '.join(shipped())}); set hardware.cost_model = \"roofline\", or to a file that"
                " `batchscope calibrate fit` wrote"
            )
        return read_cost_file(shipped_path(shape.name, card.name, shape.tp))
    file = read_cost_file(Path(cost_model))
    _check_group(file, shape, card, Path(cost_model))
    return file


def is_shipped(shape: ModelShape, card: Card) -> bool:
    """Whether a shipped cost file times this: they are all of 16-bit weights and KV, and of models of the catalog,
    whose names a ``config.json`` of other sizes may bear too."""
    return not _bits(shape) and _is_of_catalog(shape) and shipped_path(shape.name, card.name, shape.tp).exists()


def _is_of_catalog(shape: ModelShape) -> bool:
    try:
        known = model(shape.name).shard(shape.tp)
    except (CatalogError, ConfigError):
        return False
    return known == shape._replace(max_model_len=known.max_model_len)


def shipped_path(model: str, card: str, tp: int = 1) -> Path:
    """Where the shipped cost file of a group lies or would lie."""
    return DATA_DIR / f"{card}_{model}{f'_tp{tp}' if tp > 1 else ''}.json"


def shipped() -> list[str]:
    """Names of the shipped cost files, ``CARD_MODEL`` or ``CARD_MODEL_tpN``."""
    return sorted(path.stem for path in DATA_DIR.glob("*.json"))


def _bits(shape: ModelShape) -> str:
    """What is not 16 bits wide, for a message; else ""."""
    if shape.weight_bits == shape.kv_bits == 16:
        return ""
    return f" with weights of {shape.weight_bits} and KV of {shape.kv_bits} bits"


def _sizes(shape: ModelShape) -> str:
    """That a name of the catalog is borne by another model, for a message; else ""."""
    other = not _bits(shape) and not _is_of_catalog(shape) and shape.name in {known.name for known in models()}
    return ", whose sizes are not those of the catalog" if other else ""


def _group(model: str, card: str, tp: int) -> str:
    return f"{model} on {card if tp == 1 else f'{tp} x {card}'}"


def _check_group(file: CostFile, shape: ModelShape, card: Card, path: Path) -> None:
    pairs = (("model", file.model, shape.name), ("card", file.card, card.name), ("tp", file.tp, shape.tp))
    for key, found, wanted in pairs:
        if found != wanted:
            raise CostFileError(f"{path}: its {key} is {found!r}, not {wanted!r}; use a file that matches")
