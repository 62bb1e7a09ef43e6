"""Which steps ``batchscope calibrate measure`` times, from coarse to fine: decoding, chunks, both, unequal contexts.

Each point has a level; a time budget takes whole levels, coarse ones first, so that the whole range is always covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

BLOCK_SIZE = 16
"""Tokens of a block of KV memory under the presets that the agreement and the GPU check run: vLLM's default."""

_LEAST_CHUNK = 16
_LEAST_CONTEXT = 16
_CHUNKS = (2, 4)
"""Chunks of the steps that tell what each of several takes."""


class Step(NamedTuple):
    """One step to time: ``contexts`` of the decoding sequences, the current token included, and ``chunks`` of
    ``chunk_tokens`` each on top of ``chunk_context`` cached ones, if any. A ``bare`` step leaves attention out, a
    ``silent`` one the head: no token is sampled."""

    contexts: tuple[int, ...] = ()
    chunk_tokens: int = 0
    chunk_context: int = 0
    bare: bool = False
    silent: bool = False
    chunks: int = 1

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed."""
        return len(self.contexts) + self.chunks * self.chunk_tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens that lie in the cache during the step."""
        return sum(self.contexts) + self.chunks * (self.chunk_tokens + self.chunk_context)


class Sizes(NamedTuple):
    """How far to measure: longest context, most sequences, most tokens of a step, tokens that the cache holds.

    ``eager``: steps that decode are launched as those that prefill are, by no CUDA graph, so that the difference of a
    step that samples many rows and one of as many tokens that samples one is the head's.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    cache_tokens: int
    eager: bool = False


class Point(NamedTuple):
    """A step and its level, from 0 on."""

    level: int
    step: Step


def points(sizes: Sizes) -> list[Point]:
    """Everything that could be measured, coarse levels first. What a step is compared with, the same without attention
    or of as many tokens in one chunk, stands before it, so that points may be cut off after any."""
    levels: dict[Step, int] = {}
    for part in (_decode(sizes), _chunks(sizes), _several(sizes), _uneven(sizes), _mixed(sizes)):
        for level, step in part:
            if step.cached_tokens <= sizes.cache_tokens:
                levels[step] = min(level, levels.get(step, level))
    return sorted((Point(level, step) for step, level in levels.items()), key=lambda point: point.level)


def grid(least: int, most: int) -> dict[int, int]:
    """Sizes from ``least`` to ``most`` and their levels: powers of four and both ends 0, powers of two 1, and what lies
    half-way between these 2."""
    levels, size, place = {}, least, 0
    while size < most:
        levels[size] = place % 2
        if size * 3 // 2 < most and size > 1:
            levels[size * 3 // 2] = 2
        size, place = size * 2, place + 1
    levels[most] = 0
    return levels


def _decode(sizes: Sizes) -> Iterator[Point]:
    for batch, level in grid(1, sizes.max_num_seqs).items():
        if sizes.eager:
            yield Point(level, Step(chunk_tokens=batch, bare=True))
        yield Point(level, Step((_LEAST_CONTEXT,) * batch, bare=True))
        for context, finer in grid(_LEAST_CONTEXT, sizes.max_model_len).items():
            yield Point(max(level, finer), Step((context,) * batch))


def _chunks(sizes: Sizes) -> Iterator[Point]:
    if sizes.eager:
        yield Point(0, Step(chunk_tokens=min(_LEAST_CHUNK, _longest_chunk(sizes)), bare=True, silent=True))
    for tokens, level in grid(_LEAST_CHUNK, _longest_chunk(sizes)).items():
        yield Point(level, Step(chunk_tokens=tokens, bare=True))
        yield Point(level, Step(chunk_tokens=tokens))
        for context, finer in grid(_LEAST_CONTEXT, sizes.max_model_len).items():
            if context + tokens <= sizes.max_model_len:
                yield Point(max(level, finer, 1), Step(chunk_tokens=tokens, chunk_context=context))


def _several(sizes: Sizes) -> Iterator[Point]:
    """Chunks beside each other, without cached tokens."""
    for tokens, level in grid(_LEAST_CHUNK, _longest_chunk(sizes)).items():
        for chunks in _CHUNKS:
            step = Step(chunk_tokens=tokens, chunks=chunks)
            if chunks <= sizes.max_num_seqs and step.num_tokens <= sizes.max_num_batched_tokens:
                yield Point(max(level, 1), step._replace(bare=True))
                yield Point(max(level, 1), step)


def _longest_chunk(sizes: Sizes) -> int:
    return min(sizes.max_num_batched_tokens, sizes.max_model_len)


def _uneven(sizes: Sizes) -> Iterator[Point]:
    """Half of the sequences far over the mean and half far under it; the even batch is a point of its own."""
    for batch, level in grid(1, sizes.max_num_seqs).items():
        for context, finer in grid(_LEAST_CONTEXT, sizes.max_model_len // 2).items():
            if batch > 1 and context > 2 * _LEAST_CONTEXT:
                half, more = batch // 2, context * 3 // 4
                contexts = (context + more,) * half + (context,) * (batch % 2) + (context - more,) * half
                yield Point(max(level, finer), Step(contexts))


def _mixed(sizes: Sizes) -> Iterator[Point]:
    """Steps that both decode and prefill: the sum of the two is checked on them."""
    for batch, level in grid(1, sizes.max_num_seqs).items():
        for tokens, finer in grid(_LEAST_CHUNK, _longest_chunk(sizes)).items():
            if batch + tokens <= sizes.max_num_batched_tokens:
                yield Point(max(level, finer), Step((sizes.max_model_len // 2,) * batch, tokens))
