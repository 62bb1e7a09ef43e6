"""A recipe: how long the steps of one engine take on one card, from operator tables and a few figures fitted to
measured runs.

    step = layers x (linear + attention) + head + host

Operator times are those of a shipped cost file for the card, or of its sister (the same chip with slower memory: what
reads memory takes longer by the ratio of the bandwidths), or the roofline's where no file has the model's layers. A
card in ``SISTERS`` gets its sister's file scaled here even where one is shipped under its own name: those of the A100
40 GB are computed from the same tables by another rule, operator by operator (``calibrate.recipes``), and no figure
predicted with a recipe is a test of them.

Fitted are ``base_s`` and ``per_seq_s`` of the host, and factors near 1 on what reading weights and KV, computing and
all-reduces take; then, apart, the memory that is no KV pool (``reserve_bytes``).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from policies.catalog import Card, ModelShape, card, model
from policies.presets import preset
from sim.costs.costfile import CostFile, read_cost_file
from sim.costs.links import link_of
from sim.costs.load import shipped, shipped_path
from sim.costs.model import CostModel
from sim.costs.pool import DEFAULT_RESERVE_BYTES
from sim.costs.roofline import roofline
from sim.costs.terms import AllReduceTerm, DecodeTerm, GraphTerm, HeadTerm, HostTerm

SISTERS = {"a100-40gb": "a100-80gb", "a100-pcie-80gb": "a100-80gb", "gh200-96gb": "h100-80gb"}
"""Cards whose operators were not measured, and the card of the same chip whose were."""

_READ_ONLY_TOKENS = 64
"""Up to so many tokens a layer of A100 takes as long as its weights take to be read (docs/costs.md)."""


class Recipe(NamedTuple):
    """The fitted figures. ``weights`` and ``kv`` multiply the time that reading weights and KV takes, ``compute`` that
    of products and attention of many tokens, ``links`` that of all-reduces; ``parallel_s`` is added to the host's time
    of a step where several GPUs share the model. The KV pool is ``utilization`` of the memory less all else."""

    base_s: float
    per_seq_s: float
    weights: float = 1.0
    kv: float = 1.0
    compute: float = 1.0
    links: float = 1.0
    parallel_s: float = 0.0
    utilization: float = 0.9
    reserve_bytes: int = DEFAULT_RESERVE_BYTES

    def host(self, tp: int) -> HostTerm:
        """Host time of a step on a group of ``tp`` GPUs."""
        return HostTerm(self.base_s + self.parallel_s * (tp > 1), self.per_seq_s)


def costs_of(recipe: Recipe, shape: ModelShape, device: Card, preset_name: str) -> CostModel:
    """The cost model of a model's part on a card under a recipe, with the graphs of the preset."""
    graphs = preset(preset_name).graphs
    return CostModel(
        terms_of(shape, device, recipe),
        shape,
        device,
        recipe.host(shape.tp),
        graphs=GraphTerm(*graphs) if graphs else GraphTerm(),
        all_reduce=_times(link_of(device, shape.tp).all_reduce, recipe.links),
    )


def _times(term: AllReduceTerm, factor: float) -> AllReduceTerm:
    return term._replace(seconds=tuple(factor * value for value in term.seconds))


def terms_of(shape: ModelShape, device: Card, recipe: Recipe) -> CostFile:
    """The operator terms of a model's part on a card.

    Attention of models without grouped heads is the roofline's: the tables that have it come from other kernels than
    those of the engines (FlashInfer; kernels that do not split long contexts).
    """
    own = roofline(shape, device)
    named = file_for(shape, device)
    if named is None:
        return _scaled(own, own.decode, 1.0, recipe)
    file, measured = named
    ratio = measured.bytes_per_s / device.bytes_per_s
    decode = own.decode if shape.heads == shape.kv_heads else _reads(file.decode, ratio)
    is_own_head = model(file.model).vocab == model(shape.name).vocab
    file = file._replace(card=device.name, model=shape.name, head=file.head if is_own_head else own.head)
    return _scaled(file, decode, ratio, recipe, head_ratio=ratio if is_own_head else 1.0)


def adjusted(file: CostFile, recipe: Recipe) -> CostFile:
    """The terms of a cost file under the factors of a recipe."""
    return _scaled(file, file.decode, 1.0, recipe)


def _scaled(
    file: CostFile, decode: DecodeTerm, ratio: float, recipe: Recipe, *, head_ratio: float = 1.0
) -> CostFile:
    """The factors of a recipe, and the ratio of bandwidths, on the terms of a file."""
    weights, compute, head = recipe.weights, recipe.compute, file.head
    linear, prefill = file.linear, file.prefill
    return file._replace(
        linear=linear._replace(
            seconds=_read_bound(linear.num_tokens, linear.seconds, ratio * weights, compute),
            tile_s=linear.tile_s * compute,
        ),
        decode=_reads(decode, recipe.kv)._replace(uneven_s=decode.uneven_s),
        prefill=prefill._replace(
            context_token_s=prefill.context_token_s * compute, token_token_s=prefill.token_token_s * compute
        ),
        head=HeadTerm(head.num_rows, _read_bound(head.num_rows, head.seconds, head_ratio * weights, compute)),
    )


def file_for(shape: ModelShape, device: Card) -> tuple[CostFile, Card] | None:
    """A shipped cost file of a model with the same layers, on this card or its sister, and the card it is of."""
    if (shape.weight_bits, shape.kv_bits) != (16, 16):
        return None
    places = [SISTERS[device.name]] if device.name in SISTERS else [device.name]
    for place in places:
        for file in map(_file, shipped()):
            is_alike = _layers(model(file.model).shard(file.tp)) == _layers(shape)
            if is_alike and (file.card, file.tp) == (place, shape.tp):
                return file, card(place)
    return None


@cache
def _file(stem: str) -> CostFile:
    place, name, *group = stem.split("_")
    return read_cost_file(shipped_path(name, place, int(group[0].removeprefix("tp")) if group else 1))


def _layers(shape: ModelShape) -> tuple[object, ...]:
    """What decides the time of a layer."""
    return shape.hidden, shape.intermediate, shape.heads, shape.kv_heads, shape.head_dim, shape.layers, shape.gated_mlp


def _read_bound(
    counts: tuple[int, ...], seconds: tuple[float, ...], factor: float, compute: float
) -> tuple[float, ...]:
    """Times of few tokens multiplied by ``factor``; those of more are compute's, and no shorter than the last of the
    few."""
    few = [value * factor for count, value in zip(counts, seconds, strict=True) if count <= _READ_ONLY_TOKENS]
    least = few[-1] if few else 0.0
    return (*few, *(max(value * compute, least) for value in seconds[len(few) :]))


def _reads(term: DecodeTerm, factor: float) -> DecodeTerm:
    """What the context adds multiplied; the time without context is launch and latency."""
    rows = (tuple(row[0] + (value - row[0]) * factor for value in row) for row in term.seconds)
    return term._replace(seconds=tuple(rows), uneven_s=term.uneven_s * factor)
