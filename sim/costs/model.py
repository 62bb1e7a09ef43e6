"""The cost model: seconds of a step from the terms of a cost file, never below the card's floor.

    step = L x (linear(tokens) + 2 x all-reduce(tokens) + decode attention + prefill attention)
           + head(rows that yield a token) + host

of one GPU of the group. For a fixed number of sequences decode attention is piecewise linear in the sum of contexts,
so that a quiet run is summed exactly between two knots. The hot methods run some 100,000 times in a run, so every term
is tabulated on first use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

from policies.catalog import Card, ModelShape
from policies.catalog.shapes import WHOLE_BYTES
from policies.core.errors import ContractError
from policies.core.plan import Chunk
from sim.costs.costfile import CostFile
from sim.costs.floor import floor_of
from sim.costs.terms import AllReduceTerm, DecodeTerm, GraphTerm, HostTerm, interpolate

NO_KNOT = 1 << 60
"""Sum of contexts that no step has: where the last segment ends."""

NO_HOST = HostTerm()
NO_GRAPHS = GraphTerm()
ONE_GPU = AllReduceTerm()
_T = TypeVar("_T")
_Segments = tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]
"""Of a piecewise linear function of the sum of contexts: the sums at which segments end, base and slope of each."""


class CostModel:
    """Seconds of steps, swaps and recomputations of one model on one card, or on a group of ``shape.tp`` of them.

    It answers the three questions of ``policies.core.protocols.Services`` that are about time. ``shape`` is one GPU's
    part of the model. ``largest_step`` says how far it was measured.
    """

    def __init__(
        self,
        file: CostFile,
        shape: ModelShape,
        card: Card,
        host: HostTerm = NO_HOST,
        *,
        graphs: GraphTerm = NO_GRAPHS,
        all_reduce: AllReduceTerm = ONE_GPU,
    ) -> None:
        self.file = file
        self.shape = shape
        self.card = card
        self.host = host
        self.graphs = graphs
        self.all_reduce = all_reduce
        self.floor = floor_of(shape, card)
        layers = shape.layers
        chunk_graphs = graphs if graphs.pads_chunks else NO_GRAPHS
        self._decode_linear: _Table[float] = _Table(lambda n: self._token_s(graphs.padded(n)))
        self._linear: _Table[float] = _Table(lambda n: self._token_s(chunk_graphs.padded(n)))
        self._decode: _Table[_Segments] = _Table(self._decode_segments)
        self._head: _Table[float] = _Table(file.head.at)
        self._curves: dict[tuple[int, int], _Segments] = {}
        self._uneven_s = layers * file.decode.uneven_s
        self._uneven_seq_s = layers * file.decode.uneven_seq_s
        self._mixed: _Table[_Segments] = _Table(self._mixed_segments)
        self._chunk_rows: _Table[tuple[float, ...]] = _Table(self._chunk_row)
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
        """(base_s, slope_s, steps) of a quiet run, up to the next knot of the context.

        Step i < steps lasts ``base_s + slope_s * (sum_context + i * num_seqs)``.
        ``num_seqs`` sequences decode; ``num_tokens`` rows are charged to the linear part.
        """
        ends, bases, slopes = self._curves.get((num_seqs, num_tokens)) or self._add_curve(num_seqs, num_tokens)
        place = bisect_right(ends, sum_context)
        return (
            bases[place] + (self._uneven_s + self._uneven_seq_s * num_seqs) * (max_context - sum_context / num_seqs),
            slopes[place],
            -((sum_context - ends[place]) // num_seqs),
        )

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
        is_table = self.file.chunks is not None
        for _, start, tokens, emits in chunks:
            if is_table:
                device_s += self._chunk_s(tokens, start)
            else:
                device_s += chunk_s + token_s * tokens + context_s * start
                device_s += tokens * (context_token_s * start + token_token_s * tokens)
            context += start
            pairs += tokens * start + tokens * (tokens + 1) // 2
            num_rows += emits
        device_s += self._linear[num_tokens] + self._head[num_rows]
        if num_seqs:
            device_s += self._mixed_s(num_seqs, sum_context, max_context, chunks)
        floor_s = self.floor.step_s(num_tokens, num_rows, context, pairs)
        if device_s < floor_s:
            device_s = floor_s
        base_s, per_seq_s, prefill_s = self.host
        return device_s + (base_s + per_seq_s * (num_seqs + len(chunks)) + prefill_s)

    def host_time_s(self, num_seqs: int, *, prefills: bool = False) -> float:
        """Seconds of the host's part of a step of that many sequences, which ``step_time_s`` includes."""
        return self.host.at(num_seqs, prefills=prefills)

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
        return self.file.linear.num_tokens[-1], decode.num_seqs[-1], decode.max_context

    def parts(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk] = ()
    ) -> dict[str, float]:
        """Seconds of a step by term, for people; ``floor`` is what lifts the sum to the hardware's limit."""
        num_rows = num_seqs + sum(chunk.emits for chunk in chunks)
        prefill_s = sum(self._one_chunk_s(chunk.num_tokens, chunk.start) for chunk in chunks)
        graphs = self.graphs if self.graphs.pads_chunks or not chunks else NO_GRAPHS
        padded = graphs.padded(num_tokens)
        parts = {
            "linear": self._token_s(padded) - self._all_reduces_s(padded),
            "all_reduce": self._all_reduces_s(padded),
            "decode_attention": self._mixed_s(num_seqs, sum_context, max_context, chunks) if num_seqs else 0.0,
            "prefill_attention": prefill_s + (self._prefill_step_s if chunks else 0.0),
            "head": self._head[num_rows],
            "host": self.host.at(num_seqs + len(chunks), prefills=bool(chunks)),
        }
        total_s = self.step_time_s(num_tokens, num_seqs, sum_context, max_context, chunks)
        return {**parts, "floor": max(0.0, total_s - sum(parts.values()))}

    def decode_line(self, num_seqs: int, sum_context: int) -> tuple[float, float]:
        """(base_s, slope_s) of decode attention over even contexts: it takes ``base_s + slope_s * sum_context``, up to
        the next knot; zeros for no sequence."""
        if not num_seqs:
            return 0.0, 0.0
        ends, bases, slopes = self._decode[num_seqs]
        place = bisect_right(ends, sum_context)
        return bases[place], slopes[place]

    def _token_s(self, num_tokens: int) -> float:
        """What all layers take by the number of tokens alone."""
        return self.shape.layers * self.file.linear.at(_positive(num_tokens)) + self._all_reduces_s(num_tokens)

    def _all_reduces_s(self, num_tokens: int) -> float:
        """Two a layer, after attention and after the MLP, of the 16-bit hidden states."""
        return 2 * self.shape.layers * self.all_reduce.at(num_tokens * self.shape.hidden * WHOLE_BYTES)

    def _decode_segments(self, num_seqs: int) -> _Segments:
        return self._segments_of(self.file.decode, num_seqs)

    def _mixed_segments(self, num_seqs: int) -> _Segments:
        mixed = self.file.mixed
        return self._segments_of(self.file.decode if mixed is None else mixed.decode, num_seqs)

    def _segments_of(self, term: DecodeTerm, num_seqs: int) -> _Segments:
        seconds = [self.shape.layers * value for value in term.at(_positive(num_seqs))]
        return self._segments(num_seqs, term.contexts, seconds)

    def _segments(self, num_seqs: int, contexts: Sequence[int], seconds: Sequence[float]) -> _Segments:
        """Through ``seconds`` at each context knot; the last segment is at least as steep as the floor, so that it
        never crosses it."""
        sums = [num_seqs * context for context in contexts]
        slopes = [
            (right_s - left_s) / (right - left)
            for left, right, left_s, right_s in zip(sums, sums[1:], seconds, seconds[1:], strict=False)
        ]
        slopes[-1] = max(slopes[-1], self.floor.context_read_s, self.floor.pair_s)
        bases = [value - slope * total for total, value, slope in zip(sums, seconds, slopes, strict=False)]
        return (*sums[1:-1], NO_KNOT), tuple(bases), tuple(slopes)

    def _decode_s(self, num_seqs: int, sum_context: int, max_context: int) -> float:
        base_s, slope_s = self.decode_line(num_seqs, sum_context)
        uneven_s = self._uneven_s + self._uneven_seq_s * num_seqs
        return base_s + slope_s * sum_context + uneven_s * (max_context - sum_context / num_seqs)

    def _mixed_s(self, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]) -> float:
        """Decode attention beside ``chunks``, which are timed as if they were alone."""
        mixed, table = self.file.mixed, self.file.chunks
        if mixed is None or not chunks:
            return self._decode_s(num_seqs, sum_context, max_context)
        ends, bases, slopes = self._mixed[num_seqs]
        place = bisect_right(ends, sum_context)
        new_tokens = sum(chunk.num_tokens for chunk in chunks)
        uneven_s = mixed.decode.uneven_s + mixed.decode.uneven_seq_s * num_seqs
        uneven_s *= max_context - sum_context / num_seqs
        extra_s = self.shape.layers * (uneven_s + mixed.token_seq_s * new_tokens * num_seqs)
        if table is not None:
            walk_s = self.shape.layers * interpolate(table.contexts, table.walk, max_context)
            added_s = sum(
                self._chunk_s(chunk.num_tokens, chunk.start) - self._chunk_rows[chunk.num_tokens][0] for chunk in chunks
            )
            extra_s -= mixed.share(new_tokens) * min(walk_s, added_s)
        return bases[place] + slopes[place] * sum_context + extra_s

    def _one_chunk_s(self, num_tokens: int, context: int) -> float:
        """All layers' prefill attention of one chunk, without what a step with chunks takes once."""
        if self.file.chunks is None:
            return self.shape.layers * self.file.prefill.at(num_tokens, context)
        return self._chunk_s(num_tokens, context)

    def _chunk_row(self, num_tokens: int) -> tuple[float, ...]:
        table = self.file.chunks
        return () if table is None else tuple(self.shape.layers * value for value in table.row(num_tokens))

    def _chunk_s(self, num_tokens: int, context: int) -> float:
        """The same by the table of chunks on cached tokens, on which the last segment goes on."""
        table = self.file.chunks
        assert table is not None
        return interpolate(table.contexts, self._chunk_rows[num_tokens], context)

    def _add_curve(self, num_seqs: int, num_tokens: int) -> _Segments:
        """The whole step. It is lifted to the floor at each knot: between two of them the floor, which is convex, lies
        below the line."""
        decode, floor = self.file.decode, self.floor
        base_s = self._decode_linear[num_tokens] + self._head[num_seqs]
        seconds = [
            max(
                base_s + self.shape.layers * value,
                floor.step_s(num_tokens, num_seqs, num_seqs * context, num_seqs * context),
            )
            for context, value in zip(decode.contexts, decode.at(_positive(num_seqs)), strict=True)
        ]
        ends, bases, slopes = self._segments(num_seqs, decode.contexts, seconds)
        host_s = self.host.at(num_seqs)
        curve = self._curves[num_seqs, num_tokens] = ends, tuple(base_s + host_s for base_s in bases), slopes
        return curve


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
