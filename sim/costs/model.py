"""The calibrated cost model: seconds of a step from the terms of a cost file, never below the card's floor.

    step = L x (linear(tokens) + decode attention + prefill attention) + head(rows that yield a token) + host

The hot methods run some 100,000 times in a run, so every term is tabulated on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from policies.catalog import Card, ModelShape
from policies.core.errors import ContractError
from policies.core.plan import Chunk
from sim.costs.costfile import CostFile
from sim.costs.floor import floor_of
from sim.costs.terms import HostTerm

NO_KNOT = 1 << 40
"""Steps of a curve that has no knot ahead."""

NO_HOST = HostTerm()
_T = TypeVar("_T")


class CostModel:
    """Seconds of steps, swaps and recomputations of one model on one card.

    It answers the three questions of ``policies.core.protocols.Services`` that are about time.
    ``largest_step`` says how far it was measured.
    """

    def __init__(self, file: CostFile, shape: ModelShape, card: Card, host: HostTerm = NO_HOST) -> None:
        self.file = file
        self.shape = shape
        self.card = card
        self.host = host
        self.floor = floor_of(shape, card)
        layers = shape.layers
        self._linear: _Table[float] = _Table(lambda n: layers * file.linear.at(_positive(n)))
        self._decode: _Table[tuple[float, float]] = _Table(self._decode_at)
        self._head: _Table[float] = _Table(file.head.at)
        self._curves: dict[tuple[int, int], tuple[float, float, int]] = {}
        self._uneven_s = layers * file.decode.uneven_s
        prefill = file.prefill
        self._prefill_step_s = layers * prefill.step_s
        self._prefill = (
            layers * prefill.chunk_s,
            layers * prefill.token_s,
            layers * prefill.context_s,
            layers * prefill.context_token_s,
            layers * prefill.token_token_s,
        )

    @property
    def name(self) -> str:
        """Name of the cost file."""
        return self.file.name

    @property
    def version(self) -> int:
        """Version of the cost file."""
        return self.file.version

    def decode_curve(
        self, num_seqs: int, num_tokens: int, sum_context: int, max_context: int
    ) -> tuple[float, float, int]:
        """(base_s, slope_s, steps) of a quiet run.

        Step i < steps lasts ``base_s + slope_s * (sum_context + i * num_seqs)``.
        ``num_seqs`` sequences decode; ``num_tokens`` rows are charged to the linear part (padding included).
        """
        curve = self._curves.get((num_seqs, num_tokens))
        if curve is None:
            curve = self._curves[num_seqs, num_tokens] = self._curve(num_seqs, num_tokens)
        if self._uneven_s:
            uneven_s = self._uneven_s * (max_context - sum_context / num_seqs)
            return curve[0] + uneven_s, curve[1], curve[2]
        return curve

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        """Seconds of a step, host time included.

        ``num_tokens`` counts decode rows, padding and chunk tokens; contexts are those of the decoding rows.
        If nothing prefills it equals the first step of the curve, bit for bit.
        """
        if not chunks:
            base_s, slope_s, _ = self.decode_curve(num_seqs, num_tokens, sum_context, max_context)
            return base_s + slope_s * sum_context
        num_rows = num_seqs
        context = pairs = sum_context
        chunk_s, token_s, context_s, context_token_s, token_token_s = self._prefill
        device_s = self._prefill_step_s
        for _, start, tokens, emits in chunks:
            device_s += chunk_s + token_s * tokens + context_s * start
            device_s += tokens * (context_token_s * start + token_token_s * tokens)
            context += start
            pairs += tokens * start + tokens * (tokens + 1) // 2
            num_rows += emits
        device_s += self._linear[num_tokens] + self._head[num_rows]
        if num_seqs:
            device_s += self._decode_s(num_seqs, sum_context, max_context)
        floor_s = self.floor.step_s(num_tokens, num_rows, context, pairs)
        if device_s < floor_s:
            device_s = floor_s
        base_s, per_seq_s = self.host
        return device_s + (base_s + per_seq_s * (num_seqs + len(chunks)))

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """Seconds to move ``num_bytes`` of KV in ``pieces`` copies between GPU and host, one way."""
        return self.file.swap.at(num_bytes, pieces)

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        """Seconds of a step that only computes ``num_tokens`` again on top of ``context`` cached ones."""
        return self.step_time_s(num_tokens, 0, 0, 0, (Chunk(0, context, num_tokens, True),))

    @property
    def largest_step(self) -> tuple[int, int, int]:
        """Most tokens of a step, most decoding sequences, and longest mean context that were measured."""
        decode = self.file.decode
        return int(self.file.linear.num_tokens[-1]), int(decode.num_seqs[-1]), int(decode.max_context)

    def parts(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk] = ()
    ) -> dict[str, float]:
        """Seconds of a step by term, for people; ``floor`` is what lifts the sum to the hardware's limit."""
        prefill = self.file.prefill
        num_rows = num_seqs + sum(chunk.emits for chunk in chunks)
        prefill_s = sum(self.shape.layers * prefill.at(chunk.num_tokens, chunk.start) for chunk in chunks)
        parts = {
            "linear": self._linear[num_tokens],
            "decode_attention": self._decode_s(num_seqs, sum_context, max_context) if num_seqs else 0.0,
            "prefill_attention": prefill_s + (self._prefill_step_s if chunks else 0.0),
            "head": self._head[num_rows],
            "host": self.host.at(num_seqs + len(chunks)),
        }
        total_s = self.step_time_s(num_tokens, num_seqs, sum_context, max_context, chunks)
        return {**parts, "floor": max(0.0, total_s - sum(parts.values()))}

    def _decode_at(self, num_seqs: int) -> tuple[float, float]:
        base_s, slope_s = self.file.decode.at(_positive(num_seqs))
        layers = self.shape.layers
        least_s = max(self.floor.context_read_s, self.floor.pair_s)
        return layers * base_s, max(layers * slope_s, least_s)

    def _decode_s(self, num_seqs: int, sum_context: int, max_context: int) -> float:
        base_s, slope_s = self._decode[num_seqs]
        uneven_s = self._uneven_s * (max_context - sum_context / num_seqs) if self._uneven_s else 0.0
        return base_s + slope_s * sum_context + uneven_s

    def _curve(self, num_seqs: int, num_tokens: int) -> tuple[float, float, int]:
        """Base and slope are each at least their floor, so that the curve cannot cross it at any context."""
        base_s, slope_s = self._decode[num_seqs]
        device_s = self._linear[num_tokens] + base_s + self._head[num_seqs]
        device_s = max(device_s, self.floor.step_s(num_tokens, num_seqs, 0, 0))
        return device_s + self.host.at(num_seqs), slope_s, NO_KNOT


class _Table(dict[int, _T]):
    """Values of a function of a count, kept once computed."""

    def __init__(self, function: Callable[[int], _T]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: int) -> _T:
        value = self[key] = self._function(key)
        return value


def _positive(count: int) -> int:
    if count < 1:
        raise ContractError(f"a step was charged with {count} tokens or sequences; a plan computes something")
    return count
