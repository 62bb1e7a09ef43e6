"""The untuned cost model: bytes over bandwidth and FLOPs over peak, at the shares of the data sheet that kernels on
measured cards reach.

It times any dense decoder on any card of the catalog. ``roofline.json`` holds the shares, fitted by
``calibrate.roofline`` on A100, H100 and H200 tables, and the band of its error against measured runs.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from policies.catalog import Card, ModelShape
from policies.catalog.shapes import WHOLE_BYTES
from sim.costs.costfile import CostFile
from sim.costs.floor import rate_of
from sim.costs.terms import DecodeTerm, HeadTerm, LinearTerm, PrefillTerm, SwapTerm

ROOFLINE_FILE = Path(__file__).with_name("roofline.json")
TILE_TOKENS = 128
"""Kernels compute whole tiles of so many tokens."""

SMALL_COPY_S = 12e-6
"""One copy of a piece of 128 KiB between card and host, as measured on an A100."""

_TILES = 128
_MOST_SEQS = 1024


class Shares(NamedTuple):
    """What kernels reach: shares of the bandwidth for weights and KV, shares of the peak for matrices and prefill
    attention, and seconds a layer and a step's decode attention take at least; ``uneven`` is that of
    ``calibrate.fitting.fit_uneven``."""

    weights: float
    layer_s: float
    matrices: float
    kv: float
    decode_s: float
    sequence_s: float
    attention: float
    uneven: float


def swap_term(card: Card) -> SwapTerm:
    """Copies between the card and its host: bulk rate of its link, and the least time of a small copy."""
    return SwapTerm(card.host_bytes_per_s, SMALL_COPY_S, 0.0)


def roofline(shape: ModelShape, card: Card) -> CostFile:
    """The terms of ``shape``, one GPU's part of a model, on a card, as if they came from a cost file."""
    data = _data()
    return terms_from(Shares(**data["shares"]), shape, card)._replace(
        version=data["version"], provenance=data["provenance"], band=data["band"]
    )


def terms_from(shares: Shares, shape: ModelShape, card: Card) -> CostFile:
    """The same, from any ``shares``."""
    return CostFile(
        name="roofline",
        version=0,
        model=shape.name,
        card=card.name,
        tp=shape.tp,
        kind="roofline",
        linear=_linear(shares, shape, card),
        decode=_decode(shares, shape, card),
        prefill=_prefill(shares, shape, card),
        head=_head(shares, shape, card),
        swap=swap_term(card),
        held_out={},
        provenance={},
    )


def _linear(shares: Shares, shape: ModelShape, card: Card) -> LinearTerm:
    """The weights are read once; whole tiles are computed."""
    parameters = shape.layer_matrix_parameters
    read_s = parameters * shape.weight_bits / 8 / (shares.weights * card.bytes_per_s)
    tile_s = 2.0 * TILE_TOKENS * parameters / (shares.matrices * rate_of(card, shape.weight_bits))
    sizes = [size for tile in range(_TILES) for size in (tile * TILE_TOKENS + 1, (tile + 1) * TILE_TOKENS)]
    seconds = [shares.layer_s + max(read_s, -(-size // TILE_TOKENS) * tile_s) for size in sizes]
    return LinearTerm(tuple(sizes), tuple(seconds), TILE_TOKENS, seconds[-1] / _TILES)


def _decode(shares: Shares, shape: ModelShape, card: Card) -> DecodeTerm:
    """K and V of every cached token are read."""
    token_s = shape.kv_bytes_per_token / shape.layers / (shares.kv * card.bytes_per_s)
    longest = shape.max_model_len

    def at(num_seqs: int) -> tuple[float, float]:
        base_s = shares.decode_s + shares.sequence_s * num_seqs
        return base_s, base_s + token_s * num_seqs * longest

    counts = (1, _MOST_SEQS)
    return DecodeTerm(counts, (0, longest), tuple(map(at, counts)), shares.uneven * token_s, longest)


def _prefill(shares: Shares, shape: ModelShape, card: Card) -> PrefillTerm:
    """Every new token attends to all before it; K and V of the cached ones are read once a chunk."""
    pair_s = 4.0 * shape.heads * shape.head_dim / (shares.attention * rate_of(card, 16))
    return PrefillTerm(
        step_s=shares.decode_s,
        chunk_s=0.0,
        token_s=0.0,
        context_s=shape.kv_bytes_per_token / shape.layers / (shares.kv * card.bytes_per_s),
        context_token_s=pair_s,
        token_token_s=pair_s / 2,
        max_tokens=shape.max_model_len,
        max_context=shape.max_model_len,
    )


def _head(shares: Shares, shape: ModelShape, card: Card) -> HeadTerm:
    read_s = shape.head_parameters * WHOLE_BYTES / (shares.weights * card.bytes_per_s)
    row_s = 2.0 * shape.head_parameters / (shares.matrices * rate_of(card, 16))
    rows = (1, max(2, int(read_s / row_s)), _MOST_SEQS * 2)
    return HeadTerm(rows, tuple(max(read_s, row_s * count) for count in rows))


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(ROOFLINE_FILE.read_text(encoding="utf-8"))
    return data
