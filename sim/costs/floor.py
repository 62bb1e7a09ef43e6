"""What the hardware cannot undercut: bytes over bandwidth and FLOPs over peak of a step."""

from __future__ import annotations

from typing import NamedTuple

from policies.catalog import Card, ModelShape


class Floor(NamedTuple):
    """Least seconds of the parts of a step on one card, by the nominal figures of its data sheet.

    ``body_read_s`` and ``head_read_s``: the weights of all layers and of the head, read once.
    ``context_read_s``: K and V of one cached token. ``token_s``, ``head_row_s``: the matrix work of one token
    in the layers, of one row in the head. ``pair_s``: attention of one query token over one cached token (2
    FLOPs for QK, 2 for PV a head dimension).
    """

    body_read_s: float
    head_read_s: float
    context_read_s: float
    token_s: float
    head_row_s: float
    pair_s: float

    def step_s(self, num_tokens: int, num_rows: int, context_tokens: int, pairs: int) -> float:
        """Least seconds of a step: ``num_tokens`` computed, ``num_rows`` through the head, ``context_tokens``
        cached tokens read, ``pairs`` of a query token and a token it attends to."""
        body_read_s, head_read_s, context_read_s, token_s, head_row_s, pair_s = self
        read_s = body_read_s + context_read_s * context_tokens
        if num_rows:
            read_s += head_read_s
        compute_s = token_s * num_tokens + head_row_s * num_rows + pair_s * pairs
        return compute_s if compute_s > read_s else read_s

    def decode_s(self, num_seqs: int, sum_context: int) -> float:
        """Least seconds of a step in which ``num_seqs`` sequences decode over ``sum_context`` tokens in
        all."""
        return self.step_s(num_seqs, num_seqs, sum_context, sum_context)


def floor_of(shape: ModelShape, card: Card) -> Floor:
    """The floor of a model on one card, or of one GPU's part of it.

    8-bit matrices and attention over 8-bit KV may run at the doubled rate of cards that have it; 4-bit weights are
    unpacked and multiply at the 16-bit rate.
    """
    return Floor(
        body_read_s=(shape.read_bytes - shape.head_bytes) / card.bytes_per_s,
        head_read_s=shape.head_bytes / card.bytes_per_s,
        context_read_s=shape.kv_bytes_per_token / card.bytes_per_s,
        token_s=shape.layers * shape.layer_matrix_parameters * 2.0 / rate_of(card, shape.weight_bits),
        head_row_s=shape.head_parameters * 2.0 / card.flops_per_s,
        pair_s=2 * shape.layers * shape.heads * shape.head_dim * 2.0 / rate_of(card, shape.kv_bits),
    )


def rate_of(card: Card, bits: int) -> float:
    """FLOPs a second of products of so many bits: 8-bit ones at twice the 16-bit rate where the card has them."""
    return card.flops_per_s * (2.0 if bits == 8 and card.fp8 else 1.0)


def bound_output_tokens_per_s(
    shape: ModelShape,
    card: Card,
    *,
    mean_context_tokens: float,
    prompt_tokens_per_output_token: float,
    pool_tokens: int,
    max_num_seqs: int,
) -> float:
    """Output tokens a second that no schedule can exceed on this card.

    1 / max(FLOPs of an output token with its share of prefill / peak, (weights / B + mean context x KV bytes)
    / bandwidth), B the mean number of requests the pool holds, from 1 to ``max_num_seqs``. The attention
    FLOPs of the prefill are left out, which only raises the bound.
    """
    floor = floor_of(shape, card)
    requests = max(1.0, min(float(max_num_seqs), pool_tokens / max(mean_context_tokens, 1.0)))
    flops_s = (
        floor.token_s * (1.0 + prompt_tokens_per_output_token)
        + floor.head_row_s
        + floor.pair_s * mean_context_tokens
    )
    read_s = (floor.body_read_s + floor.head_read_s) / requests + floor.context_read_s * mean_context_tokens
    return 1.0 / max(flops_s, read_s)
