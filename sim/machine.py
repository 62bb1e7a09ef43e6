"""From the [model] and [hardware] tables of a configuration to what one GPU holds and how long its steps take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from policies.catalog import Card, ModelShape, card, model, model_from_config, unmodelled
from policies.presets import Preset, preset, resolve
from sim.config import RunConfig, load_config
from sim.costs.load import load_cost_model
from sim.costs.model import CostModel
from sim.costs.roofline import swap_term
from sim.costs.terms import GraphTerm, HostTerm, SwapTerm
from sim.world.replica import SwapLink

_ANY_WORKLOAD: Mapping[str, object] = {
    "generator": "closed-loop",
    "concurrency": 1,
    "num_requests": 1,
    "prompt": {"dist": "fixed", "value": 1},
    "output": {"dist": "fixed", "value": 1},
}
"""A configuration needs one; nothing is run."""


def shape_of(config: RunConfig) -> ModelShape:
    """One GPU's part of the model: all of it, with ``hardware.tp`` its share."""
    given = config.model
    whole = model(given.name) if given.config is None else model_from_config(Path(given.config))
    return whole._replace(weight_bits=given.weight_bits, kv_bits=given.kv_bits).shard(config.hardware.tp)


def model_notes(config: RunConfig) -> list[str]:
    """What the ``config.json`` of the model says that is not simulated, a line each."""
    given = config.model
    return [] if given.config is None else unmodelled(Path(given.config), given.weight_bits)


def costs_of(config: RunConfig, shape: ModelShape, device: Card, engine: Preset | None) -> CostModel:
    """The cost model of ``shape`` with the host time and the graphs of a preset, if there is one."""
    hardware = config.hardware
    graphs = engine.graphs if engine else None
    return load_cost_model(
        shape,
        device,
        hardware.cost_model,
        None if not hardware.host_term else host_term(engine, shape.tp) if engine else HostTerm(),
        graphs=GraphTerm(*graphs) if graphs else GraphTerm(),
        all_reduce=hardware.all_reduce,
        swap=_swap(hardware.swap_bytes_per_s, hardware.swap_copy_s, device),
    )


def host_term(engine: Preset, tp: int) -> HostTerm:
    """The host time of a step under a preset; zero where none was measured."""
    host = engine.host
    return HostTerm() if host is None else HostTerm(host.base_s + host.parallel_s * (tp > 1), host.per_seq_s)


def swap_link(config: RunConfig, shape: ModelShape, block_size: int) -> SwapLink:
    """Bytes and copies of a block that is swapped, on each GPU of a group at once."""
    pieces = 1 if config.hardware.swap_layout == "block" else shape.swap_pieces_per_block()
    return SwapLink(shape.block_bytes(block_size), pieces)


def _swap(bytes_per_s: float | None, copy_s: float | None, device: Card) -> SwapTerm | None:
    """As given, the rest as the card has it; None: as the cost model has it."""
    if bytes_per_s is None and copy_s is None:
        return None
    usual = swap_term(device)
    return SwapTerm(
        usual.bytes_per_s if bytes_per_s is None else bytes_per_s,
        usual.copy_s if copy_s is None else copy_s,
        usual.fixed_s,
    )


def describe(
    tables: Mapping[str, Mapping[str, object]],
    overrides: Sequence[str],
    preset_name: str | None,
    engine: Mapping[str, Any],
) -> str:
    """What ``batchscope hardware show`` prints for the [model] and [hardware] tables of a configuration.

    ``preset_name`` gives host time, graphs and sizes (None: no host time, no graphs); ``engine`` replaces sizes, fields
    of ``sim.costs.describe.Engine``.
    """
    from sim.costs.describe import Engine, describe_hardware

    config = load_config({"workload": _ANY_WORKLOAD, **tables}, overrides)
    shape, device = shape_of(config), card(config.hardware.name)
    chosen = None if preset_name is None else preset(preset_name)
    costs, sizes = costs_of(config, shape, device, chosen), Engine()
    if chosen is not None:
        sizes = Engine.of(resolve(chosen, {}, max_model_len=shape.max_model_len, card=device))
    shown = describe_hardware(costs, sizes._replace(**engine), swap_link(config, shape, 1).pieces_per_block)
    return "\n".join([shown, *(f"note: {note}" for note in model_notes(config))])
