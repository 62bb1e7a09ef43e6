"""Token ids of prompts whose text nobody knows: traces name what a prompt holds, and equal names are equal tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.core.request import Request, RequestId

Ints = NDArray[np.int64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_OUTPUT: Final = "out:"


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014), which spreads counters over all 64 bits."""
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * _MIX_1
        values = (values ^ (values >> np.uint64(27))) * _MIX_2
    result: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return result


def segment_ids(key: str, length: int, vocab: int, seed: int) -> Ints:
    """The first ``length`` tokens of the segment of that name: a function of seed, name and place alone."""
    root = np.frombuffer(blake2b(f"{seed}:{key}".encode(), digest_size=8).digest(), np.uint64)[0]
    with np.errstate(over="ignore"):
        counters = root + np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN
    result: Ints = (mixed(counters) % np.uint64(vocab)).astype(np.int64)
    return result


def sampling_seeds(seed: int, ids: Sequence[RequestId], positions: Ints) -> Ints:
    """One number a token to be sampled, from seed, request and place: the draw does not depend on its batch."""
    with np.errstate(over="ignore"):
        requests = mixed(np.array(ids, np.uint64) + np.uint64(seed) * _GOLDEN + np.uint64(1))
        values = mixed(requests + positions.astype(np.uint64) * _GOLDEN)
    return values.view(np.int64)


def prompt_ids(request: Request, outputs: Mapping[RequestId, Sequence[int]], vocab: int, seed: int) -> Ints:
    """The tokens of a prompt by its segments; where it has none, its content is nobody else's.

    ``outputs`` are the tokens that requests have made: a segment ``out:ID`` repeats them, and what that request did not
    make is drawn like any other segment.
    """
    parts = []
    for key, length in request.segments or ((f"in:{request.id}", request.prompt_tokens),):
        ids = segment_ids(key, length, vocab, seed)
        number = key.removeprefix(_OUTPUT)
        if number != key and number.isdecimal():
            made = outputs.get(int(number), ())[:length]
            ids[: len(made)] = made
        parts.append(ids)
    return np.concatenate(parts)
