"""Fits the cost file of one model on one card from measured operator tables."""

from __future__ import annotations

import hashlib
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.checks import Limits
from calibrate.fitting import decode_knots, fit_decode, fit_head, fit_linear, fit_prefill, fit_uneven
from calibrate.operators import (
    AttentionPoint,
    read_attention,
    read_context_attention,
    read_gemm,
    read_generation_attention,
    read_linear,
    read_uneven,
)
from calibrate.sources import FitSources, Source, sources_for
from policies.catalog import Card, ModelShape
from sim.costs.costfile import SCHEMA
from sim.costs.floor import floor_of
from sim.costs.load import shipped_path
from sim.costs.roofline import swap_term
from sim.costs.terms import DecodeTerm, HeadTerm, LinearTerm, PrefillTerm, interpolate

HELD_OUT_SEED = 0
VERSION = 2
DATE = "2026-11-30"
"""Of the fits that are shipped; a fit that differs gets another version and date."""
CONTEXTS = (0, 256, 512, 1024, 2048, 4096, 8192)
"""Knots of decode attention in the context, as far as it was measured."""

_FEW_BATCHES = 20



class Errors(NamedTuple):
    """Relative errors of a set of points: median, 95th percentile, maximum, number."""

    median: float
    p95: float
    max: float
    points: int


class Terms(NamedTuple):
    """The fitted terms of one layer, and the head."""

    linear: LinearTerm
    decode: DecodeTerm
    prefill: PrefillTerm
    head: HeadTerm


class Measured(NamedTuple):
    """The points a fit uses. ``fresh``: prefill without cached tokens; ``cached``: chunks on top of some; ``uneven``:
    see ``fit_uneven``."""

    linear: dict[int, list[float]]
    decode: list[AttentionPoint]
    fresh: list[AttentionPoint]
    cached: list[AttentionPoint]
    head: HeadTerm
    uneven: float


def fit(shape: ModelShape, card: Card, profile_dir: Path, tp: int = 1) -> dict[str, Any]:
    """The cost file of ``shape`` on ``card``, or on one of a group of ``tp``, as a JSON-ready mapping.

    The coefficients are fitted on all points; ``held_out`` states the error on a random third of the points
    of fits that did not see that third. CostFileError names a table or row that cannot be used.
    """
    sources = sources_for(shape.name, card.name, tp)
    shape = shape.shard(tp)
    measured = _read(profile_dir, sources, shape, card)
    fitter = _Fitter(shape, card, measured, sources)
    terms = fitter.terms(measured.decode, measured.fresh, measured.cached)
    return {
        "schema": SCHEMA,
        "name": shipped_path(shape.name, card.name, tp).stem,
        "version": VERSION,
        "date": DATE,
        "model": shape.name,
        "card": card.name,
        "tp": tp,
        "units": "seconds on one GPU, without communication; one layer, but the head once a step",
        "terms": _terms_json(terms, card),
        "held_out": fitter.report(terms),
        "floor": {key: _round(value) for key, value in floor_of(shape, card)._asdict().items()},
        "provenance": _provenance(profile_dir, sources, card),
    }


def _read(folder: Path, sources: FitSources, shape: ModelShape, card: Card) -> Measured:
    limits = Limits(card)
    products = read_gemm(folder / sources.gemm.file, shape.hidden, shape, limits)
    context, decode = sources.context, folder / sources.decode.file
    return Measured(
        linear=read_linear(folder / sources.linear.file, shape, limits),
        decode=(
            read_generation_attention(decode, shape, limits, sources.max_num_seqs)
            if "generation" in decode.name
            else read_attention(decode, "decode", shape, limits)
        ),
        fresh=read_context_attention(folder / sources.prefill.file, shape, limits),
        cached=[] if context is None else read_attention(folder / context.file, "prefill", shape, limits),
        head=fit_head(products, shape.vocab),
        uneven=fit_uneven(read_uneven(_beside(folder, sources.uneven.file))),
    )


def _beside(folder: Path, file: str) -> Path:
    """In the folder of the tables, or in the folder ``e2e`` beside it."""
    path = folder / file
    return path if path.exists() else folder.parent / "e2e" / file


class _Fitter:
    """Fits on any choice of points and measures the error of the step on any other."""

    def __init__(self, shape: ModelShape, card: Card, measured: Measured, sources: FitSources) -> None:
        self.shape = shape
        self.measured = measured
        self.linear = fit_linear(measured.linear)
        self.floor = floor_of(shape, card)
        largest = max(point.batch for point in measured.decode)
        knots = decode_knots(shape.kv_heads, sources.num_sms, largest)
        batches = {point.batch for point in measured.decode}
        # A table of few batch sizes is its own set of knots.
        few = len(batches) < _FEW_BATCHES
        self.knots = tuple(sorted(batches if few else {*knots, *sources.knots}))
        longest = max(point.context for point in measured.decode)
        self.contexts = tuple(context for context in CONTEXTS if context < 1.5 * longest)

    def terms(
        self,
        decode: Sequence[AttentionPoint],
        fresh: Sequence[AttentionPoint],
        cached: Sequence[AttentionPoint],
    ) -> Terms:
        """The terms fitted on these points."""
        layer_read_s = self.floor.context_read_s / self.shape.layers
        even = fit_decode(decode, self._weights(decode), self.knots, self.contexts, layer_read_s)
        return Terms(
            self.linear,
            even._replace(uneven_s=self.measured.uneven * _token_s(even)),
            fit_prefill(fresh, self._weights(fresh), cached, self._weights(cached), layer_read_s),
            self.measured.head,
        )

    def report(self, terms: Terms) -> dict[str, Any]:
        """Errors of the step on held-out points and of each term on all of them."""
        held_out = self._held_out()
        everything = [error for errors in held_out.values() for error in errors]
        return {
            "definition": (
                "relative error of the whole step (all terms, no host time) on a random third of the"
                " (batch, context) and (chunk, context) points, predicted from the other two thirds; the shipped"
                " coefficients are fitted on all points; a group of GPUs without its communication"
            ),
            "seed": HELD_OUT_SEED,
            "step": _errors_json(everything),
            "step_decode": _errors_json(held_out["decode"]),
            "step_prefill": _errors_json(held_out["prefill"]),
            **(
                {"step_chunk_on_context": _errors_json(held_out["chunk_on_context"])}
                if self.measured.cached
                else {}
            ),
            "linear_between_sizes": _errors_json(_leave_one_out(terms.linear)),
            "decode_attention": _errors_json(self._term(self.measured.decode, _decode_seconds(terms))),
            "prefill_attention": _errors_json(self._term(self.measured.fresh, _prefill_seconds(terms))),
        }

    def _held_out(self) -> dict[str, list[float]]:
        splits = [_split(points, HELD_OUT_SEED) for points in self.measured[1:4]]
        terms = self.terms(*(kept for kept, _ in splits))
        decode, fresh, cached = (out for _, out in splits)
        return {
            "decode": self._step(decode, _decode_seconds(terms)),
            "prefill": self._step(fresh, _prefill_seconds(terms)),
            "chunk_on_context": self._step_cached(cached, terms.prefill),
        }

    def _step_s(self, point: AttentionPoint, attention_s: float) -> float:
        """Seconds of the step of a point: the other terms are the measured ones."""
        layer_s = self.linear.at(point.batch * point.chunk) + attention_s
        return self.shape.layers * layer_s + self.measured.head.at(point.batch)

    def _weights(self, points: Sequence[AttentionPoint]) -> list[float]:
        return [1.0 / self._step_s(point, point.seconds) for point in points]

    def _step(
        self, points: Sequence[AttentionPoint], predict: Callable[[AttentionPoint], float]
    ) -> list[float]:
        return [
            abs(self._step_s(point, predict(point)) / self._step_s(point, point.seconds) - 1.0)
            for point in points
        ]

    def _step_cached(self, points: Sequence[AttentionPoint], prefill: PrefillTerm) -> list[float]:
        """What cached tokens add, against what the table says they add over its own fresh chunk of that size.

        Chunk sizes without a fresh row in the table cannot be judged so and are left out.
        """
        fresh = {point.chunk: point.seconds for point in self.measured.cached if point.context == 0}
        errors = []
        for point in points:
            if point.context and point.chunk in fresh:
                base_s = prefill.step_s + prefill.at(point.chunk, 0)
                measured_s = self._step_s(point, base_s + point.seconds - fresh[point.chunk])
                predicted_s = self._step_s(point, prefill.step_s + prefill.at(point.chunk, point.context))
                errors.append(abs(predicted_s / measured_s - 1.0))
        return errors

    @staticmethod
    def _term(points: Sequence[AttentionPoint], predict: Callable[[AttentionPoint], float]) -> list[float]:
        return [abs(predict(point) / point.seconds - 1.0) for point in points]


def _decode_seconds(terms: Terms) -> Callable[[AttentionPoint], float]:
    def predict(point: AttentionPoint) -> float:
        return interpolate(terms.decode.contexts, terms.decode.at(point.batch), point.context)

    return predict


def _token_s(decode: DecodeTerm) -> float:
    """What a token of context costs in a large batch."""
    first, last = decode.seconds[-1][0], decode.seconds[-1][-1]
    return (last - first) / (decode.num_seqs[-1] * decode.contexts[-1])


def _prefill_seconds(terms: Terms) -> Callable[[AttentionPoint], float]:
    def predict(point: AttentionPoint) -> float:
        return terms.prefill.step_s + point.batch * terms.prefill.at(point.chunk, point.context)

    return predict


def _split(points: Sequence[AttentionPoint], seed: int) -> tuple[list[AttentionPoint], list[AttentionPoint]]:
    """(kept two thirds, held-out third); whole points, the same for the same seed on any machine."""
    out = set(random.Random(seed).sample(range(len(points)), len(points) // 3))
    kept = [point for index, point in enumerate(points) if index not in out]
    return kept, [points[index] for index in sorted(out)]


def _leave_one_out(linear: LinearTerm) -> list[float]:
    """Error at each inner size of the table when it is interpolated from its neighbours."""
    sizes, seconds = linear.num_tokens, linear.seconds
    return [
        abs(interpolate(sizes[i - 1 : i + 2 : 2], seconds[i - 1 : i + 2 : 2], sizes[i]) / seconds[i] - 1.0)
        for i in range(1, len(sizes) - 1)
    ]


def errors_of(values: Sequence[float]) -> Errors:
    """Median, 95th percentile (linear interpolation) and maximum of relative errors."""
    ordered = sorted(values)
    position = 0.95 * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    p95 = ordered[low] + (ordered[high] - ordered[low]) * (position - low)
    return Errors(statistics.median(ordered), p95, ordered[-1], len(ordered))


def _errors_json(values: Sequence[float]) -> dict[str, float]:
    errors = errors_of(values)._asdict()
    return {key: value if key == "points" else round(value, 5) for key, value in errors.items()}


def _round(value: float) -> float:
    """Six significant digits: far below the error of any term."""
    return float(f"{value:.6g}")


def _terms_json(terms: Terms, card: Card) -> dict[str, dict[str, Any]]:
    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return _round(value) if isinstance(value, float) else value

    fitted = {
        name: {key: plain(value) for key, value in term._asdict().items()}
        for name, term in terms._asdict().items()
    }
    return {**fitted, "swap": swap_term(card)._asdict()}


def _provenance(folder: Path, sources: FitSources, card: Card) -> dict[str, Any]:
    cached = (
        {"method": "not measured: a pair with a cached token costs as much as one of two new tokens"}
        if sources.context is None
        else _source_json(folder, sources.context)
    )
    head_method = "interpolated between the nearest widths at equal m, k; beyond the widest in proportion to the width"
    return {
        "linear": _source_json(folder, sources.linear),
        "decode": _source_json(folder, sources.decode),
        "uneven": {
            **_source_json(folder, sources.uneven),
            "method": "ratio to the cost of a token of context in even batches, measured on that card, used here",
        },
        "prefill": {"fresh_chunks": _source_json(folder, sources.prefill), "cached_tokens": cached},
        "head": {
            **_source_json(folder, sources.gemm),
            "method": head_method,
        },
        "swap": {
            "source": "bulk copies to pinned memory and one small copy, as on an A100 with PCIe 4",
            "method": "stated, not fitted",
        },
        "all_reduce": "sim/costs/links.json, by link of the card and number of GPUs",
        "floor": {"source": f"{card.title}: {card.source}"},
    }


def _source_json(folder: Path, source: Source) -> dict[str, str]:
    return {
        "file": source.file,
        "file_sha256": hashlib.sha256(_beside(folder, source.file).read_bytes()).hexdigest()[:16],
        "origin": source.origin,
        "origin_sha256": source.origin_sha256,
        "licence": source.licence,
    }
