"""Operator tables of AIConfigurator (milliseconds), as CSV or as the Parquet files of an installed
``aiconfigurator-core``: matrix products, attention of prompts, attention of decoding sequences.

Products are of given sizes, not of a model: those of a layer and of the head are put together from the nearest widths
and depths, and the small operators between them, which the tables do not have, are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from calibrate.checks import Limits, products
from calibrate.importing import Group, first_row, unknown_table
from calibrate.operators import Row, read_rows
from calibrate.profile import Measurement
from policies.catalog import ModelShape
from policies.catalog.shapes import WHOLE_BYTES
from policies.core.errors import CostFileError
from sim.costs.terms import interpolate

_SMALL_OPERATORS = 5
"""Two norms with the residual, rotary embedding, writing K and V, and the activation."""

_LAUNCH_S = 2.5e-6
"""One of them on a few tokens, as measured in graphs and by profilers on recent cards (2.4 to 2.9 us)."""

_SMALL_SHARE = 0.8
"""Share of the bandwidth that they reach."""

_WHOLE = ("bfloat16", "float16", "half")
_HEAD_ROWS = 2048
_MOST_TOKENS = 16_384
_LONGEST = 16_384

Table = Mapping[int, Mapping[int, Mapping[int, float]]]
"""Seconds of a product by k, n and m."""


def measurements(path: Path, group: Group) -> Iterator[Measurement]:
    """The rows of one table, whose kind its columns tell."""
    columns = set(first_row(path).columns())
    if {"m", "n", "k"} <= columns:
        return _products(path, group)
    if {"isl", "step", "num_heads"} <= columns:
        return _attention(path, group)
    if "message_size" in columns:
        raise CostFileError(
            f"{path.name}: is a table of communication, which a profile does not hold; all-reduces are in"
            " sim/costs/links.json (python -m calibrate.links)"
        )
    known = "gemm_perf, context_attention_perf and generation_attention_perf"
    raise unknown_table(path, "aiconfigurator", sorted(columns), known)


def method(path: Path) -> str:
    """What is computed of a table."""
    columns = set(first_row(path).columns())
    if {"m", "n", "k"} <= columns:
        return (
            "products of a layer interpolated between the nearest widths and depths; norms, rotary embedding,"
            f" activation and cache write computed: {1e6 * _LAUNCH_S:g} us each and their bytes at {_SMALL_SHARE:g} of"
            " the bandwidth"
        )
    return "heads that the table lacks are read as more or fewer sequences of those it has"


def _products(path: Path, group: Group) -> Iterator[Measurement]:
    """A layer by tokens, and the head by rows."""
    shape, table = group.shape, _gemm_table(path, group)
    sizes = sorted({m for by_n in table.values() for by_m in by_n.values() for m in by_m})
    for m in sizes:
        if m <= _MOST_TOKENS:
            seconds = sum(product_s(table, m, n, k) for n, k in products(shape).values())
            yield Measurement("linear", group.source, seconds + small_s(shape, group, m), tokens=m)
    for m in sizes:
        if m <= _HEAD_ROWS:
            head_s = product_s(table, m, shape.vocab, shape.hidden)
            yield Measurement("head", group.source, head_s, sequences=m)


def _whole_rows(path: Path) -> Iterator[Row]:
    """Rows in 16 bits; of several kernels for attention those of FlashAttention, which vLLM takes by default."""
    kept: list[tuple[str, Row]] = []
    for row in read_rows(path):
        if all(row.text(key) in _WHOLE for key in ("gemm_dtype", "attn_dtype", "kv_cache_dtype") if row.has(key)):
            kept.append((row.text("kernel_source") if row.has("kernel_source") else "", row))
    flash = [row for kernel, row in kept if "flash_attn" in kernel]
    yield from flash or (row for _, row in kept)


def _seconds(row: Row) -> float:
    """Milliseconds, in ``latency_ms`` or, as the distribution calls them, ``latency``."""
    return row.seconds("latency_ms" if row.has("latency_ms") or not row.has("latency") else "latency")


def _gemm_table(path: Path, group: Group) -> Table:
    table: dict[int, dict[int, dict[int, float]]] = {}
    limits = Limits(group.card)
    for row in _whole_rows(path):
        m, n, k = row.integer("m"), row.integer("n"), row.integer("k")
        seconds = _seconds(row)
        limits.gemm(row.where, m, n, k, seconds, group.shape)
        table.setdefault(k, {}).setdefault(n, {})[m] = seconds
    return table


def product_s(table: Table, m: int, n: int, k: int) -> float:
    """Seconds of an m x k by k x n product: linear in the width between the nearest ones, then in the depth; beyond
    the widest or deepest in proportion, as the bytes read are."""

    def at_depth(depth: int) -> float:
        widths = sorted(width for width, by_m in table[depth].items() if m in by_m)
        return _in_proportion(widths, [table[depth][width][m] for width in widths], n)

    depths = sorted(depth for depth, by_n in table.items() if any(m in by_m for by_m in by_n.values()))
    if k in table and k in depths:
        return at_depth(k)
    inside = [depth for pair in pairwise(depths) if pair[0] < k < pair[1] for depth in pair] or depths[-1:]
    return _in_proportion(inside, [at_depth(depth) for depth in inside], k)


def _in_proportion(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Between the points linear; beyond the last it grows with x."""
    inside = min(x, xs[-1])
    return interpolate(xs, ys, inside) * (x / inside)


def small_s(shape: ModelShape, group: Group, tokens: int) -> float:
    """Seconds of a layer's small operators by the bytes they read and write."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    elements = 2 * 4 * shape.hidden + 2 * (queries + keys) + 4 * keys + 3 * shape.intermediate
    num_bytes = tokens * elements * WHOLE_BYTES
    return _SMALL_OPERATORS * _LAUNCH_S + num_bytes / (_SMALL_SHARE * group.card.bytes_per_s)


class _Sizes(NamedTuple):
    """Heads, KV heads, and whether sequences decode (then over ``context`` tokens) or are prompts of ``tokens``."""

    heads: int
    kv_heads: int
    decodes: bool


def _attention(path: Path, group: Group) -> Iterator[Measurement]:
    """Prompts (``step`` 0) and decoding sequences, of the model's heads or of others read as more or fewer of them."""
    shape, limits = group.shape, Limits(group.card)
    tables: dict[_Sizes, dict[int, dict[int, float]]] = {}
    for row in _whole_rows(path):
        if row.integer("head_dim") != shape.head_dim or (row.has("window_size") and row.integer("window_size")):
            continue
        step, batch = row.integer("step"), row.integer("batch_size")
        sizes = _Sizes(row.integer("num_heads"), row.integer("num_key_value_heads"), step > 0)
        tokens, seconds = step or row.integer("isl"), _seconds(row)
        if sizes[:2] == (shape.heads, shape.kv_heads):
            limits.measurement(row.where, _measurement(group, step > 0, batch, tokens, seconds), shape)
        tables.setdefault(sizes, {}).setdefault(tokens, {})[batch] = seconds
    for decodes in (False, True):
        kinds = [sizes for sizes in tables if sizes.decodes is decodes]
        sizes_or_none = _like(kinds, shape)
        if sizes_or_none is not None:
            yield from _read_as(tables[sizes_or_none], sizes_or_none, group)


def _read_as(table: Mapping[int, Mapping[int, float]], sizes: _Sizes, group: Group) -> Iterator[Measurement]:
    """B sequences of the model's heads take as long as B x ``times`` of the table's, interpolated where it has none."""
    shape = group.shape
    times = shape.heads / sizes.heads
    if sizes.decodes and sizes.kv_heads == shape.kv_heads:
        times = 1.0
    for tokens, by_batch in sorted(table.items()):
        if tokens > min(shape.max_model_len, _LONGEST):
            continue
        batches = sorted(by_batch)
        whole = [int(batch / times) for batch in batches if (batch / times) % 1 == 0]
        for batch in whole or [1 << power for power in range(12)]:
            if batch <= group.max_num_seqs and batches[0] <= batch * times <= batches[-1]:
                seconds = interpolate(batches, [by_batch[size] for size in batches], batch * times)
                yield _measurement(group, sizes.decodes, batch, tokens, seconds)


def _measurement(group: Group, decodes: bool, batch: int, tokens: int, seconds: float) -> Measurement:
    if decodes:
        return Measurement("decode", group.source, seconds, sequences=batch, context=tokens)
    return Measurement("prefill", group.source, seconds, chunks=batch, chunk_tokens=tokens)


def _like(kinds: Sequence[_Sizes], shape: ModelShape) -> _Sizes | None:
    """Which of the table's heads to read: the model's; with grouping its KV heads and more queries; without, the most
    that divide its own, else any."""
    exact = [sizes for sizes in kinds if sizes[:2] == (shape.heads, shape.kv_heads)]
    if exact:
        return exact[0]
    if shape.heads != shape.kv_heads:
        wider = [sizes for sizes in kinds if sizes.kv_heads == shape.kv_heads and sizes.heads > shape.heads]
        return min(wider, default=None)
    alike = [sizes for sizes in kinds if sizes.heads == sizes.kv_heads]
    dividing = [sizes for sizes in alike if shape.heads % sizes.heads == 0]
    return max(dividing or alike, default=None)
