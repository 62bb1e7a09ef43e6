"""Least-squares fits of the terms of a step's cost, weighted by the step they belong to, coefficients bounded
below.

Bounds are physical: no coefficient may be negative, and reading one cached token costs at least its bytes
over the bandwidth of the card.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from calibrate.operators import AttentionPoint, MixedPoint, UnevenPoint
from sim.costs.terms import (
    DecodeTerm,
    HostTerm,
    LinearTerm,
    MixedTerm,
    PrefillTable,
    PrefillTerm,
    SwapTerm,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from calibrate.profile import Measurement

    Array = NDArray[np.float64]

TILE_TOKENS = 128
_TILE_FROM_TOKENS = 2048
_STRAIGHT = 0.03
"""Weight of the pull towards straight lines, against a typical point."""


def fit_linear(measured: Mapping[int, Sequence[float]]) -> LinearTerm:
    """The table of medians, and the seconds of a tile of 128 tokens from the sizes of 2,048 tokens and
    more."""
    sizes = sorted(measured)
    seconds = [statistics.median(measured[size]) for size in sizes]
    large = [size for size in sizes if size >= _TILE_FROM_TOKENS] or sizes[-1:]
    tile_s = statistics.median(
        statistics.median(measured[size]) / math.ceil(size / TILE_TOKENS) for size in large
    )
    return LinearTerm(tuple(sizes), tuple(seconds), TILE_TOKENS, tile_s)


def decode_knots(heads: int, num_sms: int, largest: int) -> tuple[int, ...]:
    """Batch sizes between which the coefficients of decode attention are interpolated.

    The kernel runs one block a sequence and head (KV head where these are fewer), and slows down where these fill
    another wave: batch x heads = SMs, then every 2 x SMs. Both sides of the first six such jumps are knots; beyond,
    steps of a third.
    """
    edges = [num_sms / heads / 2, num_sms / heads, *(2 * wave * num_sms / heads for wave in range(1, 7))]
    knots = {1, 2, largest}
    for edge in edges:
        knots |= {math.floor(edge), math.floor(edge) + 1}
    size = float(max(knot for knot in knots if knot <= 2 * 6 * num_sms / heads + 1))
    while size * 4 / 3 < largest * 0.9:
        size *= 4 / 3
        knots.add(round(size))
    return tuple(sorted(knot for knot in knots if 1 <= knot <= largest))


def fit_uneven(points: Sequence[UnevenPoint]) -> float:
    """What a token that the longest sequence has over the mean costs, in the cost of a token of context in a batch of
    even ones."""
    # Least squares of what a mixed batch takes more, over what one token a sequence more would take.
    weighted = [
        ((point.longest_s - point.mean_s) / point.batch / point.mean_s, point.mixed_s / point.mean_s - 1.0)
        for point in points
    ]
    return max(0.0, sum(x * y for x, y in weighted) / sum(x * x for x, _ in weighted))


def fit_walks(rows: Sequence[Measurement]) -> tuple[float, float]:
    """(seconds, seconds a sequence) for each token that the longest context has over the mean, from batches of unequal
    contexts measured beside even ones on the same card."""
    import numpy as np

    over = np.array([row.longest_context - row.context for row in rows], float)
    batch = np.array([row.sequences for row in rows], float)
    extra_s = np.array([row.seconds - row.even_seconds for row in rows], float)
    weights = [1.0 / (row.sequences * row.longest_context) for row in rows]
    alone_s, sequence_s = least_squares(np.column_stack([over, over * batch]), extra_s, weights, [0.0, 0.0])
    return alone_s, sequence_s


def fit_swap(rows: Sequence[Measurement]) -> SwapTerm:
    """Rate and fixed time of transfers, each byte of them at least as dear as in the largest."""
    import numpy as np

    columns = np.array([[row.bytes, 1.0] for row in rows], float)
    seconds = np.array([row.seconds for row in rows], float)
    byte_s, fixed_s = least_squares(columns, seconds, list(1.0 / seconds), [0.0, 0.0])
    largest = max(rows, key=lambda row: row.bytes)
    return SwapTerm(1.0 / (byte_s or largest.seconds / largest.bytes), 0.0, fixed_s)


def fit_host(rows: Sequence[Measurement], prefills: Sequence[Measurement] = ()) -> HostTerm:
    """A time a step and a time a sequence in it, and how much more it mostly is where a step prefills."""
    import numpy as np

    columns = np.array([[1.0, row.sequences] for row in rows], float)
    seconds = np.array([row.seconds for row in rows], float)
    term = HostTerm(*least_squares(columns, seconds, list(1.0 / seconds), [0.0, 0.0]))
    if not prefills:
        return term
    more_s = statistics.median(row.seconds - term.at(row.sequences) for row in prefills)
    return term._replace(prefill_s=max(more_s, 0.0))


def fit_decode(
    points: Sequence[AttentionPoint],
    weights: Sequence[float],
    knots: tuple[int, ...],
    contexts: tuple[int, ...],
    least_context_s: float,
) -> DecodeTerm:
    """Linear in the context between ``contexts`` for each number of sequences, linear between ``knots`` in these."""
    places = [(point.batch, point.context) for point in points]
    least = [knot * least_context_s for knot in knots]
    rows, _ = _fit_table(places, _seconds(points), weights, knots, contexts, least)
    return DecodeTerm(knots, contexts, rows, 0.0, max(point.context for point in points))


def fit_chunks(
    points: Sequence[AttentionPoint],
    weights: Sequence[float],
    contexts: tuple[int, ...],
    step_s: float,
    least_context_s: float,
) -> PrefillTable:
    """The same of single chunks by their size and the tokens they find cached, which each chunk reads once. Every size
    is a knot; ``step_s`` is what a step with chunks takes once."""
    import numpy as np

    knots = tuple(sorted({point.chunk for point in points}))
    places = [(point.chunk, point.context) for point in points]
    seconds = np.maximum(_seconds(points) - step_s, 0.0)
    rows, _ = _fit_table(places, seconds, weights, knots, contexts, [least_context_s] * len(knots))
    return PrefillTable(knots, contexts, rows)


def step_once_s(fresh: Sequence[AttentionPoint], least_s: float) -> float:
    """What a step with chunks takes once, however many they are: told by steps of several equal ones, of which n take
    n times one, less what is paid once. At most ``least_s``, the shortest step's, and that where there is none."""
    alone_s = {point.chunk: point.seconds for point in fresh if point.batch == 1}
    once_s = [
        (point.batch * alone_s[point.chunk] - point.seconds) / (point.batch - 1)
        for point in fresh
        if point.batch > 1 and point.chunk in alone_s
    ]
    return min(max(statistics.median(once_s), 0.0), least_s) if once_s else least_s


def fit_mixed(
    points: Sequence[MixedPoint],
    chunk_s: Sequence[float],
    shorter_s: Sequence[float],
    weights: Sequence[float],
    contexts: tuple[int, ...],
    least_context_s: float,
) -> MixedTerm:
    """What decoding sequences add to the attention of a step with a chunk, of which ``chunk_s`` is the chunk's part.

    A table as of decode steps, with every measured number of sequences a knot; a cost a pair of sequence and new token,
    since such a kernel starts as many blocks for each sequence as the longest chunk needs; and by the size of the chunk
    the share of ``shorter_s`` that is saved, the shorter of the two walks over cached tokens.
    """
    import numpy as np

    knots = tuple(sorted({point.batch for point in points}))
    sizes = tuple(sorted({point.chunk for point in points}))
    places = [(point.batch, point.context) for point in points]
    seconds = np.array([point.seconds for point in points]) - np.array(chunk_s)
    chunk = np.array([point.chunk for point in points], float)
    by_size = np.array([np.interp(chunk, sizes, row) for row in np.eye(len(sizes))]).T
    saved = by_size * -np.array(shorter_s)[:, None]
    pairs = np.array([[point.batch * point.chunk] for point in points], float)
    least = [knot * least_context_s for knot in knots]
    table, others = _fit_table(places, seconds, weights, knots, contexts, least, np.hstack([pairs, saved]))
    return MixedTerm(
        DecodeTerm(knots, contexts, table, 0.0, max(point.context for point in points)),
        others[0],
        sizes,
        tuple(min(1.0, share) for share in others[1:]),
    )


def _fit_table(
    places: Sequence[tuple[int, int]],
    seconds: Array,
    weights: Sequence[float],
    knots: tuple[int, ...],
    contexts: tuple[int, ...],
    least_context_s: Sequence[float],
    others: Array | None = None,
) -> tuple[tuple[tuple[float, ...], ...], list[float]]:
    """Seconds at ``knots`` x ``contexts`` of what was measured at ``places``, and factors of the ``others`` columns.

    Unknown are the time without context at each knot and what each segment of the context adds, in the last one at
    least ``least_context_s`` a token. Where points do not tell the segments of a knot apart, a weak pull keeps them
    straight and a token of each sequence as dear as at the next knot.
    """
    import numpy as np

    batch, context = np.array(places, float).T
    hats = np.array([np.interp(batch, knots, row) for row in np.eye(len(knots))]).T
    widths = np.diff(np.array(contexts, float))
    share = (context[:, None] - np.array(contexts[:-1], float)) / widths
    share = np.column_stack([np.clip(share[:, :-1], 0.0, 1.0), np.maximum(share[:, -1], 0.0)])
    shape = np.column_stack([np.ones_like(context), share])
    columns = (hats[:, :, None] * shape[:, None, :]).reshape(len(places), -1)
    straight = np.vstack([_straightness(len(knots), widths), _likeness(knots, len(widths))])
    extra = np.zeros((len(places), 0)) if others is None else others
    pull = _STRAIGHT * statistics.median(abs(value) * w for value, w in zip(seconds, weights, strict=True))
    scale = [pull / statistics.median(abs(seconds))] * len(straight)
    # Short contexts hide behind what a step of attention takes at least, so that only the last segment, which goes on
    # beyond the table, is bounded.
    last = np.arange(len(widths)) == len(widths) - 1
    least = np.array([[0.0, *(token_s * widths * last)] for token_s in least_context_s]).ravel()
    fitted = least_squares(
        np.block([[columns, extra], [straight, np.zeros((len(straight), extra.shape[1]))]]),
        np.concatenate([seconds, np.zeros(len(straight))]),
        [*weights, *scale],
        [*least, *[0.0] * extra.shape[1]],
    )
    table = np.cumsum(np.array(fitted[: len(least)]).reshape(len(knots), -1), axis=1)
    return tuple(tuple(float(value) for value in row) for row in table), fitted[len(least) :]


def _straightness(num_knots: int, widths: Array) -> Array:
    """Rows that say that neighbouring segments of a knot are equally steep, scaled to seconds of the wider one."""
    import numpy as np

    rows = []
    for knot in range(num_knots):
        for segment in range(len(widths) - 1):
            row = np.zeros((num_knots, len(widths) + 1))
            wider = max(widths[segment : segment + 2])
            row[knot, segment + 1] = wider / widths[segment]
            row[knot, segment + 2] = -wider / widths[segment + 1]
            rows.append(row.ravel())
    return np.array(rows).reshape(len(rows), num_knots * (len(widths) + 1))


def _likeness(knots: Sequence[int], num_segments: int) -> Array:
    """Rows that say that a segment adds as much to each sequence of a knot as to those of the next, scaled to seconds
    of the smaller knot."""
    import numpy as np

    rows = []
    for knot, (few, many) in enumerate(itertools.pairwise(knots)):
        for segment in range(num_segments):
            row = np.zeros((len(knots), num_segments + 1))
            row[knot, segment + 1] = 1.0
            row[knot + 1, segment + 1] = -few / many
            rows.append(row.ravel())
    return np.array(rows).reshape(len(rows), len(knots) * (num_segments + 1))


def fit_prefill(
    fresh: Sequence[AttentionPoint],
    fresh_weights: Sequence[float],
    cached: Sequence[AttentionPoint],
    cached_weights: Sequence[float],
    least_context_s: float,
) -> PrefillTerm:
    """Prefill attention from two tables.

    ``fresh`` (chunks without cached tokens) gives the cost of a step, of a chunk, and of its tokens.
    ``cached`` gives only what cached tokens add: each chunk size has an intercept of its own there. It is thrown away,
    since the kernel of that table may be another, older and slower on fresh chunks. Without ``cached`` a
    pair of a new and a cached token costs what a pair of new ones does, of which a causal chunk of p tokens has p*p/2.
    """
    import numpy as np

    batch = np.array([point.batch for point in fresh], float)
    chunk = np.array([point.chunk for point in fresh], float)
    columns = np.column_stack([np.ones_like(batch), batch, batch * chunk, batch * chunk * chunk])
    step_s, chunk_s, token_s, square_s = least_squares(columns, _seconds(fresh), fresh_weights, [0.0] * 4)
    if cached:
        context_s, context_token_s = _fit_cached(cached, cached_weights, least_context_s)[:2]
    else:
        context_s, context_token_s = least_context_s, 2 * square_s
    return PrefillTerm(
        step_s,
        chunk_s,
        token_s,
        context_s,
        context_token_s,
        square_s,
        max_tokens=max(point.batch * point.chunk for point in fresh),
        max_context=max((point.context for point in cached), default=0),
    )


def _fit_cached(
    points: Sequence[AttentionPoint], weights: Sequence[float], least_context_s: float
) -> list[float]:
    """[seconds a cached token, seconds a (cached, new) pair, then one intercept a chunk size]."""
    import numpy as np

    chunk = np.array([point.chunk for point in points], float)
    context = np.array([point.context for point in points], float)
    sizes = np.unique(chunk)
    intercepts = (chunk[:, None] == sizes[None, :]).astype(float)
    columns = np.column_stack([context, chunk * context, intercepts])
    return least_squares(columns, _seconds(points), weights, [least_context_s] + [0.0] * (1 + len(sizes)))


def _seconds(points: Sequence[AttentionPoint]) -> Array:
    import numpy as np

    return np.array([point.seconds for point in points], float)


def least_squares(columns: Array, seconds: Array, weights: Sequence[float], least: Sequence[float]) -> list[float]:
    """Weighted least squares with a lower bound a coefficient (non-negative least squares of what exceeds
    it)."""
    import numpy as np
    from scipy.optimize import nnls

    weight = np.array(weights, float)
    bound = np.array(least, float)
    scale = np.abs(columns).max(axis=0)
    scale[scale == 0.0] = 1.0
    target = (seconds - columns @ bound) * weight
    # Of many rows an orthogonal factor leaves as many as there are columns, with the same solution.
    orthogonal, triangle = np.linalg.qr(columns / scale * weight[:, None])
    excess, _ = nnls(triangle, orthogonal.T @ target)
    return [float(value) for value in bound + excess / scale]
