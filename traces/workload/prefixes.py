"""What prompts have in common with those before them: measured in a trace, and drawn again from a profile."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
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
    once there are enough of these, and quantiles of the part of their prompt that they share; ``distance``: quantiles
    of how many requests ago the last one like it was. Prefixes are whole blocks of ``block_tokens``, or the prompt.
    """

    block_tokens: int
    share_of_requests: tuple[float, ...]
    shared_part: tuple[QuantileTable, ...]
    distance: QuantileTable


class _Prompt(NamedTuple):
    """An earlier prompt that nobody has taken up since."""

    number: int
    tokens: int
    segments: Segments


class PrefixDrawer:
    """Gives each prompt its segments: a prefix of an earlier prompt, and content of its own.

    Takes exactly three numbers of the stream for each request. A distance that leads before the first request is a
    prompt that is new: a workload begins with new content, as a trace does. Remembers as many requests as the largest
    distance.
    """

    def __init__(self, sharing: Sharing, random_stream: Random) -> None:
        self._sharing = sharing
        self._draw = random_stream.random
        self._earlier: list[_Prompt] = []
        self._reach = max(1, int(sharing.distance.values[-1]))
        self._number = 0

    def segments(self, prompt_tokens: int, length_class: int) -> Segments:
        """The content of the next prompt, of a class of prompt lengths."""
        sharing = self._sharing
        any_hit, part, distance_share = self._draw(), self._draw(), self._draw()
        distance = max(1, round(sharing.distance.at(distance_share)))
        shared: Segments = ()
        if any_hit < sharing.share_of_requests[length_class] and distance <= self._number:
            tokens = self._whole_blocks(prompt_tokens, sharing.shared_part[length_class].at(part))
            shared = self._take_up(tokens, distance)
        own = prompt_tokens - sum(length for _, length in shared)
        segments = (*shared, (f"p{self._number}", own)) if own else shared
        self._earlier.append(_Prompt(self._number, prompt_tokens, segments))
        if self._earlier[0].number < self._number - self._reach:
            del self._earlier[0]
        self._number += 1
        return segments

    def _whole_blocks(self, prompt_tokens: int, part: float) -> int:
        """``part`` of a prompt, in whole blocks unless it is all of it."""
        size = self._sharing.block_tokens
        return prompt_tokens if part >= 1.0 else min(prompt_tokens, round(part * prompt_tokens / size) * size)

    def _take_up(self, tokens: int, distance: int) -> Segments:
        """The first ``tokens`` of a prompt of about ``distance`` requests ago: of those nearby the one that is least
        longer, else the nearest that is long enough, else the longest. It is the last of its kind then no more."""
        if not tokens:
            return ()
        earlier, near = self._earlier, max(2, distance // 4)
        start = bisect_left(earlier, self._number - distance, key=_number_of)
        best: int | None = None
        longest = min(start, len(earlier) - 1)
        for place in _outwards(longest, len(earlier)):
            found = earlier[place]
            if best is not None and abs(self._number - distance - found.number) > near:
                break
            if found.tokens >= tokens and (best is None or found.tokens < earlier[best].tokens):
                best = place
            if found.tokens > earlier[longest].tokens:
                longest = place
        return _cut(earlier.pop(longest if best is None else best).segments, tokens)


def _number_of(prompt: _Prompt) -> int:
    return prompt.number


def _outwards(start: int, end: int) -> Iterator[int]:
    """``start`` and its neighbours in [0, end), the nearest first."""
    yield start
    for step in range(1, MAX_TRIES // 2):
        if start + step < end:
            yield start + step
        if start >= step:
            yield start - step


def distances_without_end(rows: Sequence[int], distances: Sequence[int]) -> tuple[list[int], list[float]]:
    """How many requests ago the last alike was, as if the trace had begun long ago: distances, rising, and the share
    of reuses up to each.

    In a trace row ``i`` can only show a distance of at most i, which favours short ones. Lynden-Bell's estimator for
    such right-truncated values: from the largest down, each takes its share of those that could have been as large.
    """
    by_distance, by_row = sorted(distances), sorted(rows)
    steps = sorted(set(by_distance))
    shares = [1.0] * len(steps)
    for place in range(len(steps) - 1, 0, -1):
        distance = steps[place]
        up_to = bisect_right(by_distance, distance)
        possible = up_to - bisect_left(by_row, distance)
        equal = up_to - bisect_left(by_distance, distance)
        shares[place - 1] = shares[place] * max(0.0, 1.0 - equal / possible)
    return steps, shares


def _cut(segments: Segments, tokens: int) -> Segments:
    """The first ``tokens`` of a prompt."""
    kept: list[tuple[str, int]] = []
    for key, length in segments:
        if tokens <= 0:
            break
        kept.append((key, min(length, tokens)))
        tokens -= length
    return tuple(kept)
