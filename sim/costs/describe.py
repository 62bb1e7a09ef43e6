"""What ``batchscope hardware`` prints: cards, models, and every term of the KV pool and the cost model of a model on
one card or a group of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from policies.catalog import Card, ModelShape, cards, models
from policies.core.errors import ConfigError
from policies.presets import Parameters
from sim.costs.cost_text import cost_lines, ms_line
from sim.costs.floor import Floor
from sim.costs.load import shipped
from sim.costs.model import CostModel
from sim.costs.pool import KvPool, kv_pool

_GIB = float(1 << 30)


class Engine(NamedTuple):
    """What of an engine matters to memory: its widest step, its block, its share of the card's memory."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    block_size: int = 16
    utilization: float = 0.9

    @classmethod
    def of(cls, parameters: Parameters) -> Engine:
        """That of a preset's parameters."""
        return cls(parameters.max_num_batched_tokens, parameters.max_num_seqs, parameters.pool_block_size)


def describe_cards() -> str:
    """All cards of the catalog, one a line, with the models that have a cost file for them and the source of their
    figures."""
    costed = {card.name: ", ".join(_files(card=card.name)) or "-" for card in cards()}
    width = max(map(len, costed.values()))
    lines = [f"{'card':16} {'TFLOP/s':>8} {'GB/s':>6} {'GiB':>5}  {'cost file for':{width}}  source"]
    for card in cards():
        lines.append(
            f"{card.name:16} {card.flops_per_s / 1e12:8.0f} {card.bytes_per_s / 1e9:6.0f}"
            f" {card.memory_bytes / _GIB:5.0f}  {costed[card.name]:{width}}  {card.title}: {card.source}"
        )
    return "\n".join(lines)


def describe_models() -> str:
    """All models of the catalog, one a line, and whether a cost file for one of the cards is shipped."""
    lines = [f"{'model':16} {'parameters, 1e9':>15} {'KV bytes/token':>14} {'max_model_len':>13}  cost file"]
    for shape in models():
        on = _files(model=shape.name)
        lines.append(
            f"{shape.name:16} {shape.num_parameters / 1e9:15.3f} {shape.kv_bytes_per_token:14,}"
            f" {shape.max_model_len:13,}  {'yes, on ' + ', '.join(on) if on else 'no'}"
        )
    lines.append("Without a cost file: the roofline, as for any config.json of these families (model.config = FILE).")
    return "\n".join(lines)


def _files(*, card: str | None = None, model: str | None = None) -> list[str]:
    """What the shipped files of a card, or of a model, are for; ``(tp 2, 4)`` names the sizes of groups."""
    sizes: dict[str, list[int]] = {}
    for name in shipped():
        on, of, *group = name.split("_")
        if card in (on, None) and model in (of, None):
            sizes.setdefault(on if card is None else of, []).append(int(group[0][2:]) if group else 1)
    return [
        name if found == [1] else f"{name} (tp {', '.join(map(str, sorted(found)))})" for name, found in sizes.items()
    ]


def describe_hardware(costs: CostModel, engine: Engine = Engine(), pieces_per_block: int | None = None) -> str:  # noqa: B008
    """The pool, the floor, the cost model and the swap break-even of the model and card (or group) of ``costs``, every
    term named. A pool that is not there, for want of memory, is said in its place."""
    shape, card = costs.shape, costs.card
    group = card.name if shape.tp == 1 else f"{shape.tp} x {card.name}"
    lines = [
        f"{shape.name} on {group} ({card.title})",
        f"card: {card.flops_per_s / 1e12:g} TFLOP/s 16-bit, {card.bytes_per_s / 1e9:g} GB/s,"
        f" {card.memory_bytes / _GIB:g} GiB ({card.source})",
        f"{'model' if shape.tp == 1 else 'part of the model on each'}: {shape.num_parameters / 1e9:.3f} billion"
        f" parameters of {shape.weight_bits} bits, {shape.kv_bytes_per_token:,} B of KV a token ({shape.kv_bits} bits)",
    ]
    try:
        lines += _pool_lines(_pool(shape, card, engine), engine)
    except ConfigError as error:
        lines += ["", f"KV pool: none. {error}"]
    lines += _floor_lines(costs.floor)
    lines += cost_lines(costs, engine.block_size, pieces_per_block)
    return "\n".join(lines)


def _pool(shape: ModelShape, card: Card, engine: Engine) -> KvPool:
    return kv_pool(
        shape,
        card,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        block_size=engine.block_size,
        utilization=engine.utilization,
    )


def _pool_lines(pool: KvPool, engine: Engine) -> Iterable[str]:
    usable = pool.utilization * pool.memory_bytes
    left = usable - pool.weight_bytes - pool.activation_bytes - pool.reserve_bytes
    return (
        "",
        "KV pool",
        _gb(f"usable memory, {pool.utilization:g} of {pool.memory_bytes / _GIB:g} GiB nominal", usable),
        _gb("- weights", pool.weight_bytes),
        _gb(
            f"- activations, assumed for {engine.max_num_batched_tokens} tokens, {engine.max_num_seqs} sequences",
            pool.activation_bytes,
        ),
        _gb("- reserve, assumed", pool.reserve_bytes),
        _gb("= left for KV", left),
        f"  / {pool.block_bytes:,} B a block of {pool.block_size} tokens"
        f" = {pool.num_gpu_blocks:,} blocks = {pool.tokens:,} tokens",
    )


def _floor_lines(floor: Floor) -> Iterable[str]:
    return (
        "",
        "hardware floor, which no step undercuts",
        ms_line("weights of the layers, read once a step", floor.body_read_s),
        ms_line("weights of the head", floor.head_read_s),
        ms_line("KV of 1,000 cached tokens", 1000 * floor.context_read_s),
        ms_line("matrix work of 1,000 tokens", 1000 * floor.token_s),
    )


def _gb(what: str, num_bytes: float) -> str:
    return f"  {what:62} {num_bytes / 1e9:9.3f} GB"
