"""The next token: the largest logit, or a draw by Gumbel noise from a counter-based generator, within top-p."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mass(
    logits_ptr: tl.tensor,
    temperature: tl.tensor,
    top: tl.tensor,
    edge: tl.tensor,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> tl.tensor:
    """Sum of ``exp(score - top)`` of the tokens whose ``score - top`` is at least ``edge``."""
    mass = 0.0
    for first in range(0, V, BLOCK_V):
        tokens = first + tl.arange(0, BLOCK_V)
        logits = tl.load(logits_ptr + tokens, mask=tokens < V, other=float("-inf")).to(tl.float32)
        below = logits / temperature - top
        mass += tl.sum(tl.where(below >= edge, tl.exp(below), 0.0), axis=0)
    return mass


@triton.jit
def _largest(
    logits_ptr: tl.tensor,
    temperature: tl.tensor,
    top: tl.tensor,
    edge: tl.tensor,
    seed: tl.tensor,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NOISE: tl.constexpr,
    ROUNDS: tl.constexpr,
) -> tl.tuple:
    """Largest score, which is ``logit / temperature``, and its token, of equal ones the first.

    With ``NOISE`` only tokens whose ``score - top`` is at least ``edge`` take part, and each gets noise that comes from
    the seed and the token's number alone.
    """
    best = float("-inf")
    best_token = 0
    for first in range(0, V, BLOCK_V):
        tokens = first + tl.arange(0, BLOCK_V)
        logits = tl.load(logits_ptr + tokens, mask=tokens < V, other=float("-inf")).to(tl.float32)
        scores = logits / temperature
        if NOISE:
            bits = tl.randint(seed, tokens, ROUNDS).to(tl.uint32, bitcast=True)
            uniform = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23: never 0, never 1
            noisy = scores - tl.log(-tl.log(uniform))
            scores = tl.where(scores - top >= edge, noisy, float("-inf"))
        highest, place = tl.max(scores, axis=0, return_indices=True)
        if highest > best:
            best = highest
            best_token = first + place
    return best, best_token


@triton.jit
def sample_kernel(
    logits_ptr: tl.tensor,  # B x V, float32
    temperature_ptr: tl.tensor,  # B, float32
    top_p_ptr: tl.tensor,  # B, float32
    seeds_ptr: tl.tensor,  # B, int64
    tokens_ptr: tl.tensor,  # B, int64
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    ROUNDS: tl.constexpr,
    HALVINGS: tl.constexpr,
) -> None:
    """Program (request). Top-p keeps the tokens down to a score that is found without a sort: an interval is halved
    ``HALVINGS`` times, at first from 88 below the largest score (e^-88 is about the smallest normal float32) to it."""
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * V
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    seed = tl.load(seeds_ptr + row)
    token = 0
    if temperature == 0:
        _, token = _largest(logits, 1.0, 0.0, 0.0, seed, V, BLOCK_V, False, ROUNDS)
    else:
        top_p = tl.load(top_p_ptr + row).to(tl.float32)
        top, low = 0.0, float("-inf")
        if top_p < 1:
            top, _ = _largest(logits, temperature, 0.0, 0.0, seed, V, BLOCK_V, False, ROUNDS)
            enough = top_p * _mass(logits, temperature, top, float("-inf"), V, BLOCK_V)
            low, high = -88.0, 0.0
            for _ in range(HALVINGS):
                middle = 0.5 * (low + high)
                if _mass(logits, temperature, top, middle, V, BLOCK_V) >= enough:
                    low = middle
                else:
                    high = middle
        _, token = _largest(logits, temperature, top, low, seed, V, BLOCK_V, True, ROUNDS)
    tl.store(tokens_ptr + row, token.to(tl.int64))
