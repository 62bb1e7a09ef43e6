"""Least-squares fits of the terms of a step's cost, weighted by the step they belong to, coefficients bounded
below.

Bounds are physical: no coefficient may be negative, and reading one cached token costs at least its bytes
over the bandwidth of the card.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from calibrate.operators import AttentionPoint, GemmPoint, UnevenPoint
from sim.costs.terms import DecodeTerm, HeadTerm, LinearTerm, PrefillTerm, interpolate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


def fit_decode(
    points: Sequence[AttentionPoint],
    weights: Sequence[float],
    knots: tuple[int, ...],
    contexts: tuple[int, ...],
    least_context_s: float,
) -> DecodeTerm:
    """Linear in the context between ``contexts`` for each number of sequences, linear between ``knots`` in these.

    Unknown are the time without context at each knot and what each segment of the context adds, at least the bytes it
    reads over the bandwidth. Where points do not tell the segments of a knot apart, a weak pull keeps them straight.
    """
    import numpy as np

    batch = np.array([point.batch for point in points], float)
    context = np.array([point.context for point in points], float)
    hats = np.array([np.interp(batch, knots, row) for row in np.eye(len(knots))]).T
    widths = np.diff(np.array(contexts, float))
    share = (context[:, None] - np.array(contexts[:-1], float)) / widths
    share = np.column_stack([np.clip(share[:, :-1], 0.0, 1.0), np.maximum(share[:, -1], 0.0)])
    shape = np.column_stack([np.ones_like(context), share])
    columns = (hats[:, :, None] * shape[:, None, :]).reshape(len(points), -1)
    straight = _straightness(len(knots), widths)
    pull = _STRAIGHT * statistics.median(point.seconds * w for point, w in zip(points, weights, strict=True))
    scale = [pull / statistics.median(point.seconds for point in points)] * len(straight)
    least = np.array([[0.0, *(knot * least_context_s * widths)] for knot in knots]).ravel()
    fitted = least_squares(
        np.vstack([columns, straight]),
        np.concatenate([_seconds(points), np.zeros(len(straight))]),
        [*weights, *scale],
        list(least),
    )
    seconds = np.cumsum(np.array(fitted).reshape(len(knots), -1), axis=1)
    return DecodeTerm(
        num_seqs=knots,
        contexts=contexts,
        seconds=tuple(tuple(float(value) for value in row) for row in seconds),
        uneven_s=0.0,
        max_context=max(point.context for point in points),
    )


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
    return np.array(rows).reshape(len(rows), -1)


def fit_prefill(
    fresh: Sequence[AttentionPoint],
    fresh_weights: Sequence[float],
    cached: Sequence[AttentionPoint],
    cached_weights: Sequence[float],
    least_context_s: float,
) -> PrefillTerm:
    """Prefill attention from two tables.

    ``fresh`` (chunks without cached tokens) gives the cost of a step, of a chunk, and of its tokens.
    ``cached`` gives only what cached tokens add: each chunk size has an intercept of its own there, which is
    thrown away, since that table's kernel is older and slower on fresh chunks. Without ``cached`` a pair of a new and
    a cached token costs what a pair of new ones does, of which a causal chunk of p tokens has p*p/2.
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


def fit_head(points: Sequence[GemmPoint], width: int) -> HeadTerm:
    """Seconds of the head by rows: interpolated in the width of the product, for each number of rows measured. Beyond
    the widest product the time grows with the width, as the weights read do."""
    by_rows: dict[int, dict[int, float]] = {}
    for point in points:
        by_rows.setdefault(point.m, {})[point.n] = point.seconds
    widest = max(point.n for point in points)
    inside = min(width, widest)
    rows = [m for m in sorted(by_rows) if min(by_rows[m]) <= inside <= max(by_rows[m])]
    seconds = []
    for m in rows:
        widths = sorted(by_rows[m])
        seconds.append(interpolate(widths, [by_rows[m][n] for n in widths], inside) * (width / inside))
    return HeadTerm(tuple(rows), tuple(seconds))


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
    target = (seconds - columns @ bound) * weight
    # Of many rows an orthogonal factor leaves as many as there are columns, with the same solution.
    orthogonal, triangle = np.linalg.qr(columns / scale * weight[:, None])
    excess, _ = nnls(triangle, orthogonal.T @ target)
    return [float(value) for value in bound + excess / scale]
