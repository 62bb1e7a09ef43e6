"""Fits the terms of a profile on any choice of its points, and measures the error of the step on any other."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from calibrate.fitting import (
    decode_knots,
    fit_chunks,
    fit_decode,
    fit_linear,
    fit_mixed,
    fit_prefill,
    fit_uneven,
    fit_walks,
    step_once_s,
)
from calibrate.operators import AttentionPoint, MixedPoint, UnevenPoint
from calibrate.profile import Measurement, Profile
from policies.catalog import Card, ModelShape
from policies.core.errors import CostFileError
from sim.costs.floor import floor_of
from sim.costs.terms import DecodeTerm, HeadTerm, LinearTerm, MixedTerm, PrefillTable, PrefillTerm, interpolate

_P = TypeVar("_P")

HELD_OUT_SEED = 0
CONTEXTS = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
"""Knots of attention in the context, as far as it was measured."""

_WALKS = 0.5
"""Where a batch of unequal contexts lies between an even one at the mean (0) and one at the longest (1)."""

_FEW_BATCHES = 20
_FEW_CHUNKS = 4
"""Chunk sizes with cached tokens from which they are a table."""


class Hints(NamedTuple):
    """``num_sms`` sets where the waves of decode attention jump; ``knots`` are batch sizes beside these jumps where it
    turns as well."""

    num_sms: int = 108
    knots: tuple[int, ...] = ()


class Terms(NamedTuple):
    """The fitted terms of one layer, and the head. ``chunks`` and ``mixed`` where these were measured."""

    linear: LinearTerm
    decode: DecodeTerm
    prefill: PrefillTerm
    head: HeadTerm
    chunks: PrefillTable | None = None
    mixed: MixedTerm | None = None

    def chunk_s(self, tokens: int, context: int) -> float:
        """Seconds of one layer's prefill attention in a step of one such chunk."""
        return self.prefill.step_s + self.more_s(tokens, context)

    def more_s(self, tokens: int, context: int) -> float:
        """The same of a chunk beside others."""
        if self.chunks is None:
            return self.prefill.at(tokens, context)
        return interpolate(self.chunks.contexts, self.chunks.row(tokens), context)


class Uneven(NamedTuple):
    """What the longest context over the mean costs: a part of a token of context (``fit_uneven``), or, for kernels that
    walk all sequences as far as the longest, seconds and seconds a sequence (``fit_walks``)."""

    share: float = 0.0
    walks: tuple[float, float] | None = None

    def added_to(self, even: DecodeTerm) -> DecodeTerm:
        """The term with it."""
        if self.walks is not None:
            return even._replace(uneven_s=self.walks[0], uneven_seq_s=self.walks[1])
        return even._replace(uneven_s=self.share * _token_s(even))


class Measured(NamedTuple):
    """The points a fit uses. ``fresh``: prefill without cached tokens; ``cached``: chunks on top of some, of the same
    kernel or, if ``is_other``, of one of which only what cached tokens add counts; ``whole``: steps that
    decode and prefill, on which the sum of the terms is checked."""

    linear: dict[int, list[float]]
    decode: list[AttentionPoint]
    fresh: list[AttentionPoint]
    cached: list[AttentionPoint]
    mixed: list[MixedPoint]
    head: HeadTerm
    uneven: Uneven
    uneven_mixed: Uneven
    is_other: bool
    whole: list[MixedPoint]


def measured_of(profile: Profile, name: str, most_tokens: float, usual_head: HeadTerm) -> Measured:
    """The points of a profile over up to ``most_tokens`` cached tokens in all, with ``usual_head`` where it has none;
    CostFileError, which names it by ``name``, if it lacks another operator."""
    for operator in ("linear", "decode", "prefill"):
        if not profile.of(operator):
            raise CostFileError(
                f"{name}: has no rows of operator '{operator}'; a fit takes linear, decode and prefill (or whole steps"
                " alone): import or measure these too"
            )
    if all(row.chunk_context for row in profile.of("prefill")):
        raise CostFileError(
            f"{name}: has no prefill rows without cached tokens (chunk_context 0), which tell what new tokens cost:"
            " import or measure these too"
        )
    linear: dict[int, list[float]] = {}
    for row in profile.of("linear"):
        linear.setdefault(row.tokens, []).append(row.seconds)
    other = [_prefill_point(row) for row in profile.of("prefill_added")]
    chunks = [_prefill_point(row) for row in profile.of("prefill")]
    return Measured(
        linear=linear,
        decode=[
            AttentionPoint(row.sequences, 1, row.context, row.seconds)
            for row in profile.of("decode")
            if row.sequences * row.context <= most_tokens
        ],
        fresh=[point for point in chunks if not point.context],
        cached=other or [point for point in chunks if point.context],
        mixed=[
            _mixed_point(row)
            for row in profile.of("mixed")
            if row.sequences * row.context + row.chunk_context <= most_tokens
        ],
        head=_head(profile.of("head")) if profile.of("head") else usual_head,
        uneven=_uneven(profile, "uneven"),
        uneven_mixed=_uneven(profile, "uneven_mixed"),
        is_other=bool(other),
        whole=[_mixed_point(row) for row in profile.of("step") if row.sequences and row.chunks == 1],
    )


def _prefill_point(row: Measurement) -> AttentionPoint:
    return AttentionPoint(row.chunks, row.chunk_tokens, row.chunk_context, row.seconds)


def _head(rows: Iterable[Measurement]) -> HeadTerm:
    by_sequences: dict[int, list[float]] = {}
    for row in rows:
        by_sequences.setdefault(row.sequences, []).append(row.seconds)
    counts = sorted(by_sequences)
    return HeadTerm(tuple(counts), tuple(statistics.median(by_sequences[count]) for count in counts))


def _mixed_point(row: Measurement) -> MixedPoint:
    return MixedPoint(row.sequences, row.context, row.chunk_tokens, row.chunk_context, row.seconds)


def _uneven(profile: Profile, operator: str) -> Uneven:
    rows = profile.of(operator)
    if not rows:
        return Uneven()
    between = [
        (row.seconds - row.even_seconds) / (row.longest_seconds - row.even_seconds)
        for row in rows
        if row.longest_seconds > row.even_seconds
    ]
    # Kernels that split work between blocks lie near the even batch, those that walk all as far as the longest beyond.
    if between and statistics.median(between) > _WALKS:
        return Uneven(walks=fit_walks(rows))
    return Uneven(_uneven_share(rows))


def _uneven_share(rows: Sequence[Measurement]) -> float:
    points = [UnevenPoint(row.sequences, row.even_seconds, row.longest_seconds, row.seconds) for row in rows]
    return fit_uneven([point for point in points if point.mean_s > 0]) if points else 0.0


class Residual(NamedTuple):
    """One point: what it is of, its sizes in words, and the measured and the predicted seconds of its step."""

    kind: str
    what: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative error, not below zero."""
        return abs(self.predicted_s / self.measured_s - 1.0)


class Fitter:
    """Fits on any choice of points and measures the error of the step on any other."""

    def __init__(self, shape: ModelShape, card: Card, measured: Measured, hints: Hints = Hints()) -> None:  # noqa: B008
        self.shape = shape
        self.measured = measured
        self.linear = fit_linear(measured.linear)
        self.layer_read_s = floor_of(shape, card).context_read_s / shape.layers
        batches = {point.batch for point in measured.decode}
        # A table of few batch sizes is its own set of knots.
        few = len(batches) < _FEW_BATCHES
        knots = decode_knots(shape.kv_heads, hints.num_sms, max(batches))
        self.knots = tuple(sorted(batches if few else {*knots, *hints.knots}))
        self.contexts = _as_far(CONTEXTS, max(point.context for point in measured.decode))

    def terms(
        self,
        decode: Sequence[AttentionPoint],
        fresh: Sequence[AttentionPoint],
        cached: Sequence[AttentionPoint],
        mixed: Sequence[MixedPoint],
    ) -> Terms:
        """The terms fitted on these points."""
        even = fit_decode(decode, self._weights(decode), self.knots, self.contexts, self.layer_read_s)
        single = [point for point in (*fresh, *cached) if point.batch == 1]
        is_other = self.measured.is_other
        prefill = fit_prefill(fresh, self._weights(fresh), cached, self._weights(cached), self.layer_read_s)
        terms = Terms(self.linear, self.measured.uneven.added_to(even), prefill, self.measured.head)
        if not is_other and cached and len({point.chunk for point in single}) >= _FEW_CHUNKS:
            contexts = _as_far(CONTEXTS, max(point.context for point in cached))
            once_s = step_once_s(fresh, min(point.seconds for point in single))
            table = fit_chunks(single, self._weights(single), contexts, once_s, self.layer_read_s)
            terms = terms._replace(chunks=table, prefill=prefill._replace(step_s=once_s))
        return terms if not mixed else terms._replace(mixed=self._mixed(mixed, terms))

    def _mixed(self, mixed: Sequence[MixedPoint], terms: Terms) -> MixedTerm:
        chunk_s = [terms.chunk_s(point.chunk, point.chunk_context) for point in mixed]
        weights = [1.0 / self._mixed_step_s(point, point.seconds) for point in mixed]
        contexts = _as_far(CONTEXTS, max(point.context for point in mixed))
        shorter_s = [shorter_walk_s(terms, point) for point in mixed]
        term = fit_mixed(mixed, chunk_s, shorter_s, weights, contexts, self.layer_read_s)
        return term._replace(decode=self.measured.uneven_mixed.added_to(term.decode))

    def residuals(
        self,
        terms: Terms,
        decode: Sequence[AttentionPoint],
        fresh: Sequence[AttentionPoint],
        cached: Sequence[AttentionPoint],
        mixed: Sequence[MixedPoint],
    ) -> list[Residual]:
        """Measured and predicted step of each of these points."""
        return [
            *(self._residual("decode", point, decode_s(terms, point)) for point in decode),
            *(self._residual("prefill", point, prefill_s(terms, point)) for point in fresh),
            *self._cached_residuals(terms, cached),
            *(self._mixed_residual(terms, point) for point in mixed),
        ]

    def whole(self, terms: Terms) -> list[Residual]:
        """Those of steps measured as a whole, none of which a fit sees."""
        return [
            self._mixed_residual(terms, point)._replace(kind="whole", measured_s=point.seconds)
            for point in self.measured.whole
        ]

    def held_out(self) -> list[Residual]:
        """Those of a third of the points, by the terms fitted on the other two thirds."""
        measured = self.measured
        decode, decode_out = split(measured.decode, HELD_OUT_SEED)
        fresh, fresh_out = split(measured.fresh, HELD_OUT_SEED)
        cached, cached_out = split(measured.cached, HELD_OUT_SEED)
        mixed, mixed_out = split(measured.mixed, HELD_OUT_SEED)
        return self.residuals(self.terms(decode, fresh, cached, mixed), decode_out, fresh_out, cached_out, mixed_out)

    def step_s(self, point: AttentionPoint, attention_s: float) -> float:
        """Seconds of the step of a point: the other terms are the measured ones."""
        layer_s = self.linear.at(point.batch * point.chunk) + attention_s
        return self.shape.layers * layer_s + self.measured.head.at(point.batch)

    def _mixed_step_s(self, point: MixedPoint, attention_s: float) -> float:
        layer_s = self.linear.at(point.batch + point.chunk) + attention_s
        return self.shape.layers * layer_s + self.measured.head.at(point.batch + 1)

    def _weights(self, points: Sequence[AttentionPoint]) -> list[float]:
        return [1.0 / self.step_s(point, point.seconds) for point in points]

    def _residual(self, kind: str, point: AttentionPoint, predicted_s: float) -> Residual:
        what = f"{point.batch} x {point.chunk} tokens over {point.context}"
        return Residual(kind, what, self.step_s(point, point.seconds), self.step_s(point, predicted_s))

    def _mixed_residual(self, terms: Terms, point: MixedPoint) -> Residual:
        what = (
            f"{point.batch} sequences over {point.context}, a chunk of {point.chunk} tokens over {point.chunk_context}"
        )
        return Residual(
            "mixed", what, self._mixed_step_s(point, point.seconds), self._mixed_step_s(point, mixed_s(terms, point))
        )

    def _cached_residuals(self, terms: Terms, points: Sequence[AttentionPoint]) -> list[Residual]:
        """Of chunks on cached tokens; of those of another kernel, what cached tokens add, against what the table says
        they add over its own fresh chunk of that size. Chunk sizes without a fresh row there cannot be judged."""
        if not self.measured.is_other:
            return [self._residual("chunk_on_context", point, prefill_s(terms, point)) for point in points]
        fresh = {point.chunk: point.seconds for point in self.measured.cached if point.context == 0}
        found = []
        for point in points:
            if point.context and point.chunk in fresh:
                base_s = terms.chunk_s(point.chunk, 0)
                moved = point._replace(seconds=base_s + point.seconds - fresh[point.chunk])
                found.append(self._residual("chunk_on_context", moved, terms.chunk_s(point.chunk, point.context)))
        return found


def decode_s(terms: Terms, point: AttentionPoint) -> float:
    """Predicted decode attention of a point."""
    return interpolate(terms.decode.contexts, terms.decode.at(point.batch), point.context)


def prefill_s(terms: Terms, point: AttentionPoint) -> float:
    """Predicted prefill attention of a point."""
    return terms.prefill.step_s + point.batch * terms.more_s(point.chunk, point.context)


def mixed_s(terms: Terms, point: MixedPoint) -> float:
    """Predicted attention of a step that decodes and prefills."""
    chunk_s = terms.chunk_s(point.chunk, point.chunk_context)
    mixed = terms.mixed
    if mixed is None:
        return chunk_s + decode_s(terms, AttentionPoint(point.batch, 1, point.context, 0.0))
    table_s = interpolate(mixed.decode.contexts, mixed.decode.at(point.batch), point.context)
    saved_s = mixed.share(point.chunk) * shorter_walk_s(terms, point)
    return chunk_s + table_s + mixed.token_seq_s * point.batch * point.chunk - saved_s


def shorter_walk_s(terms: Terms, point: MixedPoint) -> float:
    """The shorter of what the chunk's cached tokens add and of one sequence's walk over its context."""
    if terms.chunks is None:
        return 0.0
    added_s = terms.more_s(point.chunk, point.chunk_context) - terms.more_s(point.chunk, 0)
    return min(added_s, interpolate(terms.chunks.contexts, terms.chunks.walk, point.context))


def term_errors(points: Sequence[AttentionPoint], predict: Callable[[AttentionPoint], float]) -> list[float]:
    """Relative errors of a term alone."""
    return [abs(predict(point) / point.seconds - 1.0) for point in points if point.seconds]


def split(points: Sequence[_P], seed: int) -> tuple[list[_P], list[_P]]:
    """(kept two thirds, held-out third); whole points, the same for the same seed on any machine."""
    out = set(random.Random(seed).sample(range(len(points)), len(points) // 3))
    kept = [point for index, point in enumerate(points) if index not in out]
    return kept, [points[index] for index in sorted(out)]


def _as_far(knots: Sequence[int], longest: int) -> tuple[int, ...]:
    near = tuple(knot for knot in knots if knot < 1.5 * longest)
    return near if len(near) > 1 else tuple(knots[:2])


def _token_s(decode: DecodeTerm) -> float:
    """What a token of context costs in a large batch."""
    first, last = decode.seconds[-1][0], decode.seconds[-1][-1]
    return (last - first) / (decode.num_seqs[-1] * decode.contexts[-1])
