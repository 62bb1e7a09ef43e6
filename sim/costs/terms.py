"""The terms of a step's cost, as a cost file gives them. Seconds of one layer unless said; all evaluation is
exact piecewise-linear arithmetic in plain Python."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple


def interpolate(xs: Sequence[int], ys: Sequence[float], x: float) -> float:
    """Linear between the points, constant below the first, continued by the last segment above the last."""
    if x <= xs[0] or len(xs) == 1:
        return ys[0]
    right = min(bisect_right(xs, x), len(xs) - 1)
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * ((x - xs[left]) / (xs[right] - xs[left]))


class LinearTerm(NamedTuple):
    """All of a layer but attention, by the number of tokens in the step: a table, which need not be monotone,
    and beyond it whole tiles of ``tile_tokens`` at ``tile_s`` seconds each."""

    num_tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    tile_tokens: int
    tile_s: float

    def at(self, num_tokens: int) -> float:
        """Seconds of one layer for that many tokens."""
        if num_tokens > self.num_tokens[-1]:
            return max(self.seconds[-1], -(-num_tokens // self.tile_tokens) * self.tile_s)
        return interpolate(self.num_tokens, self.seconds, num_tokens)


class DecodeTerm(NamedTuple):
    """Decode attention by the number of sequences and their mean context: ``seconds[i][k]`` for ``num_seqs[i]``
    sequences over ``contexts[k]`` tokens each (the first 0), linear between the knots in both, and on top
    ``(uneven_s + uneven_seq_s * sequences) * (max - mean context)``, the second where a kernel walks all of them as far
    as the longest. Beyond the last context its last segment goes on; beyond the last number of
    sequences the time without context is continued and a token of context costs what it did there."""

    num_seqs: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    uneven_s: float
    max_context: int
    uneven_seq_s: float = 0.0

    def at(self, num_seqs: int) -> tuple[float, ...]:
        """Seconds of one layer for that many sequences, at each of ``contexts``."""
        counts, seconds = self.num_seqs, self.seconds
        last = counts[-1]
        within = min(num_seqs, last)
        row = [interpolate(counts, column, within) for column in zip(*seconds, strict=True)]
        if num_seqs > last:
            base_s = max(row[0], interpolate(counts, [line[0] for line in seconds], num_seqs))
            row = [base_s + (value - row[0]) * (num_seqs / last) for value in row]
        return tuple(row)


class AllReduceTerm(NamedTuple):
    """One all-reduce between the GPUs of a group, by the bytes of the message: linear between the sizes, the last
    segment continued. No sizes: a single GPU."""

    num_bytes: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()

    def at(self, num_bytes: int) -> float:
        """Seconds for a message of that size."""
        return interpolate(self.num_bytes, self.seconds, num_bytes) if self.num_bytes else 0.0


class PrefillTerm(NamedTuple):
    """Prefill attention: ``step_s`` once a step with chunks, and for each chunk of p tokens on top of c
    cached ones ``chunk_s + token_s*p + context_s*c + context_token_s*c*p + token_token_s*p*p``."""

    step_s: float
    chunk_s: float
    token_s: float
    context_s: float
    context_token_s: float
    token_token_s: float
    max_tokens: int
    max_context: int

    def at(self, num_tokens: int, context: int) -> float:
        """Seconds of one layer for one chunk, without ``step_s``."""
        return (
            self.chunk_s
            + self.token_s * num_tokens
            + self.context_s * context
            + num_tokens * (self.context_token_s * context + self.token_token_s * num_tokens)
        )


class PrefillTable(NamedTuple):
    """Prefill attention where it was measured on cached tokens: ``seconds[i][k]`` for a chunk of ``num_tokens[i]`` on
    top of ``contexts[k]`` cached ones (the first 0), linear between the knots in both, without ``PrefillTerm.step_s``.
    Beyond the last context its last segment goes on; beyond the longest chunk the time without cached tokens grows with
    the square of the chunk and that of a cached token with the chunk."""

    num_tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def row(self, num_tokens: int) -> tuple[float, ...]:
        """Seconds of one layer for a chunk of that size, at each of ``contexts``."""
        sizes = self.num_tokens
        row = [interpolate(sizes, column, min(num_tokens, sizes[-1])) for column in zip(*self.seconds, strict=True)]
        beyond = max(1.0, num_tokens / sizes[-1])
        return tuple(row[0] * beyond**2 + (value - row[0]) * beyond for value in row)

    @property
    def walk(self) -> tuple[float, ...]:
        """Seconds of one sequence's walk over each of ``contexts``: what they add to the smallest chunk."""
        first = self.seconds[0]
        return tuple(value - first[0] for value in first)


class MixedTerm(NamedTuple):
    """Decode attention in a step that also prefills, where one kernel does both: a table as for decode steps, and
    ``token_seq_s`` for each pair of a new token and a decoding sequence.

    The walk of the longest sequence over its context and that of a chunk over its cached tokens go side by side as far
    as the kernel has room: of the shorter one ``overlap`` is saved, a share by the size of the chunk (``num_tokens``).
    """

    decode: DecodeTerm
    token_seq_s: float
    num_tokens: tuple[int, ...] = (1,)
    overlap: tuple[float, ...] = (0.0,)

    def share(self, num_tokens: int) -> float:
        """The share that a chunk of that size saves."""
        return interpolate(self.num_tokens, self.overlap, min(num_tokens, self.num_tokens[-1]))


class HeadTerm(NamedTuple):
    """The output head, once a step, by the number of rows that yield a token."""

    num_rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, num_rows: int) -> float:
        """Seconds for that many rows; 0 for none."""
        return interpolate(self.num_rows, self.seconds, num_rows) if num_rows else 0.0


class SwapTerm(NamedTuple):
    """Copies between GPU and host: ``max(bytes / bytes_per_s, pieces * copy_s) + fixed_s``."""

    bytes_per_s: float
    copy_s: float
    fixed_s: float

    def at(self, num_bytes: int, pieces: int) -> float:
        """Seconds of one transfer, one way."""
        return max(num_bytes / self.bytes_per_s, pieces * self.copy_s) + self.fixed_s


class HostTerm(NamedTuple):
    """Host time of a step that the device waits for; a property of the engine preset, zero where it has no
    data. ``prefill_s`` is what a step takes more that also prefills."""

    base_s: float = 0.0
    per_seq_s: float = 0.0
    prefill_s: float = 0.0

    def at(self, num_seqs: int, *, prefills: bool = False) -> float:
        """Seconds for that many sequences in the step."""
        return self.base_s + self.per_seq_s * num_seqs + (self.prefill_s if prefills else 0.0)


class GraphTerm(NamedTuple):
    """CUDA graphs: a step of up to ``sizes[-1]`` tokens is padded to the next size, for which a graph was recorded.
    Steps that prefill are padded too if ``pads_chunks``. No sizes: no padding."""

    sizes: tuple[int, ...] = ()
    pads_chunks: bool = False

    def padded(self, num_tokens: int) -> int:
        """Tokens that the linear part computes."""
        place = bisect_left(self.sizes, num_tokens)
        return self.sizes[place] if place < len(self.sizes) else num_tokens
