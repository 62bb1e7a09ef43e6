"""Readers of operator tables: rows become points in SI units, and a row the card cannot have made is refused
by name.

A table measures one layer on one GPU. Times become seconds.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import NamedTuple, TypeVar

from calibrate.checks import Limits
from policies.catalog import ModelShape
from policies.core.errors import CostFileError

_C = TypeVar("_C", bound=Sized)

LINEAR_OPERATORS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
"""Operators of one layer in the linear tables, each counted once. The layer sums in use elsewhere (0.290 ms
at 1 token, 8.12 ms at 4,096) count ``add`` once, although a layer has two residuals; a second one would add
0.3 to 0.7 %. ``emb`` runs once a step, a few microseconds, and is left out."""


class AttentionPoint(NamedTuple):
    """Attention of one layer: ``batch`` sequences, each ``chunk`` query tokens (1 in decode) over ``context``
    cached ones."""

    batch: int
    chunk: int
    context: int
    seconds: float


class GemmPoint(NamedTuple):
    """One matrix product, m x k by k x n."""

    m: int
    n: int
    k: int
    seconds: float


class Row:
    """One row of a table, which knows its file and number and says so when a cell is wrong."""

    def __init__(self, path: Path, number: int, cells: dict[str, str]) -> None:
        self.where = f"{path.name}, row {number}"
        self._cells = cells

    def text(self, key: str) -> str:
        """A cell as text."""
        value = self._cells.get(key)
        if value is None:
            raise CostFileError(f"{self.where}: column '{key}' is missing; use the table as published")
        return value

    def number(self, key: str) -> float:
        """A cell as a number that is not negative."""
        try:
            value = float(self.text(key))
        except ValueError:
            raise CostFileError(f"{self.where}: '{key}' is {self.text(key)!r}, not a number") from None
        if not 0 <= value < float("inf"):
            raise CostFileError(f"{self.where}: '{key}' is {value}; it must be a number >= 0")
        return value

    def integer(self, key: str) -> int:
        """A cell as a count."""
        return int(self.number(key))

    def seconds(self, key: str) -> float:
        """A cell in milliseconds, as seconds."""
        return self.number(key) * 1e-3


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a CSV file, compressed or not; the first data row is number 2, as in an editor."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as stream:
            for number, cells in enumerate(csv.DictReader(stream), start=2):
                yield Row(path, number, cells)
    except OSError as error:
        reason = error.strerror or error
        raise CostFileError(
            f"{path}: cannot be read ({reason}); --data is the folder of the tables"
        ) from None


def read_linear(path: Path, shape: ModelShape, limits: Limits) -> dict[int, list[float]]:
    """Seconds of all linear operators of one layer by number of tokens, one value a measurement (tensor
    parallel 1)."""
    sums: dict[int, list[float]] = {}
    for row in read_rows(path):
        if row.integer("num_tensor_parallel_workers") != 1:
            continue
        num_tokens = row.integer("num_tokens")
        medians = {name: row.seconds(f"time_stats.{name}.median") for name in LINEAR_OPERATORS}
        limits.linear(row.where, num_tokens, medians, shape)
        sums.setdefault(num_tokens, []).append(sum(medians.values()))
    return _some(sums, path, "rows with num_tensor_parallel_workers = 1")


def read_attention(path: Path, kind: str, shape: ModelShape, limits: Limits) -> list[AttentionPoint]:
    """Points of one ``kind`` (decode or prefill) of a sampled attention table."""
    points = []
    for row in read_rows(path):
        if row.text("kind") != kind:
            continue
        chunk = row.integer("prefill_chunk_size") if kind == "prefill" else 1
        point = AttentionPoint(
            row.integer("batch_size"), chunk, row.integer("kv_cache_size"), row.seconds("median_ms")
        )
        limits.attention(row.where, point.batch, point.chunk, point.context, point.seconds, shape)
        points.append(point)
    return _some(points, path, f"rows of kind {kind}")


def read_context_attention(path: Path, shape: ModelShape, limits: Limits) -> list[AttentionPoint]:
    """Causal prefill without cached tokens, of the model's heads, by batch and length."""
    points = []
    for row in read_rows(path):
        heads = (row.integer("num_heads"), row.integer("num_key_value_heads"), row.integer("head_dim"))
        if heads != (shape.heads, shape.kv_heads, shape.head_dim):
            continue
        point = AttentionPoint(
            row.integer("batch_size"), row.integer("isl"), row.integer("step"), row.seconds("latency_ms")
        )
        limits.attention(row.where, point.batch, point.chunk, point.context, point.seconds, shape)
        points.append(point)
    return _some(points, path, f"rows with {shape.heads} heads of {shape.head_dim}, {shape.kv_heads} for KV")


def read_gemm(path: Path, k: int, shape: ModelShape, limits: Limits) -> list[GemmPoint]:
    """Matrix products with the given inner size."""
    points = []
    for row in read_rows(path):
        if row.integer("k") != k:
            continue
        point = GemmPoint(row.integer("m"), row.integer("n"), k, row.seconds("latency_ms"))
        limits.gemm(row.where, point.m, point.n, point.k, point.seconds, shape)
        points.append(point)
    return _some(points, path, f"rows with k = {k}")


def _some(found: _C, path: Path, what: str) -> _C:
    if not len(found):
        raise CostFileError(f"{path.name}: has no {what}; use the table of this model and card")
    return found
