"""A profile whose times are computed from known terms, so that a fit must find these again."""

from __future__ import annotations

from collections.abc import Iterator

from calibrate.profile import Measurement, Origin, Profile

CONTEXT_S = 1e-8
"""Decode attention of one layer: a cached token of a sequence."""

PAIR_S = 2e-10
"""Prefill attention of one layer: a new token and one before it."""

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096)
CHUNKS = (64, 128, 256, 512, 1024, 2048)


def linear_s(tokens: int) -> float:
    """All of a layer but attention."""
    return 0.3e-3 + 2e-6 * max(0, tokens - 128)


def decode_s(batch: int, context: int) -> float:
    """Decode attention of a layer."""
    return 1e-5 + CONTEXT_S * batch * context


def chunk_s(tokens: int, context: int) -> float:
    """Prefill attention of a layer."""
    return 1e-5 + CONTEXT_S * context + PAIR_S * tokens * (context + tokens / 2)


def own_profile(model: str = "llama-2-7b", card: str = "a100-80gb") -> Profile:
    """Every operator that a fit knows, on a small grid."""
    origin = Origin("computed for tests", "MIT", "2026-01-01")
    return Profile(model, card, 1, "2026-01-01", {"own": origin}, tuple(_rows()))


def _rows() -> Iterator[Measurement]:
    for tokens in (1, 16, 64, 128, 256, 512, 1024, 2048, 4096):
        yield Measurement("linear", "own", linear_s(tokens), tokens=tokens)
    for batch in BATCHES:
        yield Measurement("head", "own", 0.2e-3 + 1e-6 * batch, sequences=batch)
        yield Measurement("host", "own", 1e-3 + 2e-5 * batch, sequences=batch)
        yield Measurement("host_prefill", "own", 1.4e-3 + 2e-5 * batch, sequences=batch, chunks=1)
        for context in CONTEXTS:
            yield Measurement("decode", "own", decode_s(batch, context), sequences=batch, context=context)
        for chunk in CHUNKS:
            seconds = chunk_s(chunk, 0) + decode_s(batch, 512)
            yield Measurement(
                "mixed", "own", seconds, sequences=batch, context=512, chunks=1, chunk_tokens=chunk, chunk_context=0
            )
    for chunk in CHUNKS:
        for context in (0, *CONTEXTS[1:]):
            yield Measurement(
                "prefill", "own", chunk_s(chunk, context), chunks=1, chunk_tokens=chunk, chunk_context=context
            )
    for batch in BATCHES[1:]:
        even_s = decode_s(batch, 1024)
        # Every sequence is walked as far as the longest.
        seconds = even_s + CONTEXT_S * batch * 768
        yield Measurement(
            "uneven",
            "own",
            seconds,
            sequences=batch,
            context=1024,
            longest_context=1792,
            even_seconds=even_s,
            longest_seconds=decode_s(batch, 1792),
        )
    for blocks in (1, 4, 16, 64):
        num_bytes = blocks * 16 * 524_288
        yield Measurement("swap", "own", 1e-4 + num_bytes / 20e9, bytes=num_bytes, pieces=1)
