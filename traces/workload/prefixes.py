"""What prompts have in common with those before them: measured in a trace, and drawn again from a profile."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from random import Random
from typing import NamedTuple

from policies.core.request import Segments
from traces.workload.quantiles import QuantileTable

MAX_TRIES = 256
"""Earlier prompts that are looked at for one that is long enough."""


class Reuse(NamedTuple):
    """Of each row, in order: ``hit_tokens`` at the start of its prompt that some earlier prompt has too, and
    ``distance``, how many rows ago the last of these was (0: no hit)."""

    hit_tokens: array[int]
    distance: array[int]


def reuse_of(prompts: Iterable[Segments]) -> Reuse:
    """What a prefix cache without bounds would find of each prompt; one without segments shares nothing."""
    hits, distances = array("q"), array("q")
    longest: dict[tuple[int, str], list[int]] = {}
    nodes: dict[tuple[int, str, int], int] = {}
    for row, segments in enumerate(prompts):
        node, hit, distance, matches = 0, 0, 0, True
        for key, length in segments:
            seen = longest.get((node, key))
            if matches and seen is not None:
                hit += min(length, seen[0])
                distance = row - seen[1]
            matches = matches and seen is not None and (node, key, length) in nodes
            if seen is None:
                longest[node, key] = [length, row]
            else:
                seen[0], seen[1] = max(seen[0], length), row
            node = nodes.setdefault((node, key, length), len(nodes) + 1)
        hits.append(hit)
        distances.append(distance)
    return Reuse(hits, distances)


class Sharing(NamedTuple):
    """Shared prefixes of a profile, by class of prompt length: the share of requests that begin like an earlier one,
    and quantiles of the part of their prompt that they share; ``distance``: quantiles of how many requests ago that
    one was. Prefixes are whole blocks of ``block_tokens``, or the whole prompt."""

    block_tokens: int
    share_of_requests: tuple[float, ...]
    shared_part: tuple[QuantileTable, ...]
    distance: QuantileTable


class PrefixDrawer:
    """Gives each prompt its segments: a prefix of an earlier prompt, and content of its own.

    Takes exactly three numbers of the stream for each request. Remembers as many requests as the largest distance.
    """

    def __init__(self, sharing: Sharing, random_stream: Random) -> None:
        self._sharing = sharing
        self._draw = random_stream.random
        self._earlier: deque[tuple[int, Segments]] = deque(maxlen=max(1, int(sharing.distance.values[-1])))
        self._number = 0

    def segments(self, prompt_tokens: int, length_class: int) -> Segments:
        """The content of the next prompt, of a class of prompt lengths."""
        sharing = self._sharing
        any_hit, part, distance = self._draw(), self._draw(), self._draw()
        shared: Segments = ()
        if self._earlier and any_hit < sharing.share_of_requests[length_class]:
            tokens = self._whole_blocks(prompt_tokens, sharing.shared_part[length_class].at(part))
            shared = self._prefix(tokens, max(1, round(sharing.distance.at(distance))))
        own = prompt_tokens - sum(length for _, length in shared)
        segments = (*shared, (f"p{self._number}", own)) if own else shared
        self._earlier.appendleft((prompt_tokens, segments))
        self._number += 1
        return segments

    def _whole_blocks(self, prompt_tokens: int, part: float) -> int:
        """``part`` of a prompt, in whole blocks unless it is all of it."""
        size = self._sharing.block_tokens
        return prompt_tokens if part >= 1.0 else min(prompt_tokens, round(part * prompt_tokens / size) * size)

    def _prefix(self, tokens: int, distance: int) -> Segments:
        """The first ``tokens`` of the prompt that was ``distance`` requests ago, or of the next one to it that is long
        enough; of the longest if none is."""
        best: tuple[int, Segments] = (0, ())
        for place in _outwards(min(distance, len(self._earlier)) - 1, len(self._earlier)):
            found = self._earlier[place]
            if found[0] >= tokens:
                return _cut(found[1], tokens)
            best = max(best, found, key=lambda prompt: prompt[0])
        return best[1]


def _outwards(start: int, end: int) -> Iterator[int]:
    """``start`` and its neighbours in [0, end), the nearest first."""
    yield start
    for step in range(1, MAX_TRIES // 2):
        if start + step < end:
            yield start + step
        if start >= step:
            yield start - step


def _cut(segments: Segments, tokens: int) -> Segments:
    """The first ``tokens`` of a prompt."""
    kept: list[tuple[str, int]] = []
    for key, length in segments:
        if tokens <= 0:
            break
        kept.append((key, min(length, tokens)))
        tokens -= length
    return tuple(kept)
