"""The terms of a step's cost, as a cost file gives them. Seconds of one layer unless said; all evaluation is
exact piecewise-linear arithmetic in plain Python."""

from __future__ import annotations

from bisect import bisect_right
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
    """Decode attention: ``base_s + slope_s * sum_context``, both piecewise linear in the number of sequences,
    and ``uneven_s * (max - mean context)``. Beyond the table the base is continued and the slope stays."""

    num_seqs: tuple[int, ...]
    base_s: tuple[float, ...]
    slope_s: tuple[float, ...]
    uneven_s: float
    max_context: int

    def at(self, num_seqs: int) -> tuple[float, float]:
        """(base, slope) of one layer for that many sequences."""
        base_s = max(0.0, interpolate(self.num_seqs, self.base_s, num_seqs))
        return base_s, interpolate(self.num_seqs, self.slope_s, min(num_seqs, self.num_seqs[-1]))


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
    data."""

    base_s: float = 0.0
    per_seq_s: float = 0.0

    def at(self, num_seqs: int) -> float:
        """Seconds for that many sequences in the step."""
        return self.base_s + self.per_seq_s * num_seqs
