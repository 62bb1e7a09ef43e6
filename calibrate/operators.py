"""Readers of operator tables: rows become points in SI units, and a row the card cannot have made is refused
by name.

A table measures one layer on one GPU, which has ``shape``, a part of the model under tensor parallelism. Times become
seconds.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sized
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


class MixedPoint(NamedTuple):
    """Attention of one layer in a step of ``batch`` sequences that decode over ``context`` tokens each, beside a chunk
    of ``chunk`` tokens on top of ``chunk_context`` cached ones."""

    batch: int
    context: int
    chunk: int
    chunk_context: int
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

    def has(self, key: str) -> bool:
        """Whether the table has such a column."""
        return key in self._cells

    def columns(self) -> list[str]:
        """Names of the table's columns."""
        return [name for name in self._cells if name]

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
        value = self.number(key)
        if value % 1:
            raise CostFileError(f"{self.where}: '{key}' is {value}; it must be a whole number")
        return int(value)

    def seconds(self, key: str) -> float:
        """A cell in milliseconds, as seconds."""
        return self.number(key) * 1e-3

    def microseconds(self, key: str) -> float:
        """A cell in microseconds, as seconds."""
        return self.number(key) * 1e-6


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a CSV file, compressed or not, or of a Parquet file; the first data row is number 2, as in an editor."""
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
            yield from csv_rows(path, stream)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CostFileError(f"{path}: cannot be read ({reason}); give the table as published") from None


def _parquet_rows(path: Path) -> Iterator[Row]:
    from pyarrow import ArrowException, parquet

    try:
        columns = parquet.read_table(path).to_pydict()
    except (OSError, ArrowException) as error:
        reason = " ".join(str(error).split())
        raise CostFileError(f"{path}: cannot be read ({reason}); name a Parquet file") from None
    for number, cells in enumerate(zip(*columns.values(), strict=True), start=2):
        yield Row(path, number, dict(zip(columns, map(str, cells), strict=True)))


def csv_rows(path: Path, lines: Iterable[str], skipped: int = 0) -> Iterator[Row]:
    """Rows of the lines of a table, the names of its columns first, that follow ``skipped`` others of a file."""
    for number, cells in enumerate(csv.DictReader(lines), start=skipped + 2):
        yield Row(path, number, cells)


def read_linear(path: Path, shape: ModelShape, limits: Limits) -> dict[int, list[float]]:
    """Seconds of all linear operators of one layer by number of tokens, one value a measurement, for a group of
    ``shape.tp`` GPUs."""
    sums: dict[int, list[float]] = {}
    for row in read_rows(path):
        if row.integer("num_tensor_parallel_workers") != shape.tp:
            continue
        num_tokens = row.integer("num_tokens")
        medians = {name: row.seconds(f"time_stats.{name}.median") for name in LINEAR_OPERATORS}
        limits.linear(row.where, num_tokens, medians, shape)
        sums.setdefault(num_tokens, []).append(sum(medians.values()))
    return _some(sums, path, f"rows with num_tensor_parallel_workers = {shape.tp}")


def read_attention(path: Path, kind: str, shape: ModelShape, limits: Limits) -> list[AttentionPoint]:
    """Points of one ``kind`` (decode or prefill) of a Vidur attention table, as published or as a sample of medians."""
    points = []
    for row in read_rows(path):
        is_sample = row.has("kind")
        of_kind = row.text("kind") if is_sample else "prefill" if row.text("is_prefill") == "True" else "decode"
        if of_kind != kind or (not is_sample and row.integer("num_tensor_parallel_workers") != shape.tp):
            continue
        chunk = row.integer("prefill_chunk_size") if kind == "prefill" else 1
        seconds = row.seconds("median_ms" if is_sample else f"time_stats.attn_{kind}.median")
        point = AttentionPoint(row.integer("batch_size"), chunk, row.integer("kv_cache_size"), seconds)
        limits.attention(row.where, point.batch, point.chunk, point.context, point.seconds, shape)
        points.append(point)
    return _some(points, path, f"rows of kind {kind} for {shape.tp} GPU{'s' if shape.tp > 1 else ''}")


def read_generation_attention(path: Path, shape: ModelShape, limits: Limits, num_seqs: int) -> list[AttentionPoint]:
    """Decode attention of up to ``num_seqs`` sequences within the model's length, of the model's heads.

    The tables have up to 8 KV heads. Without grouping, B sequences of h heads are as many independent heads as
    B x h / 8 sequences of 8, which is how they are read.
    """
    fold = shape.heads // 8 if shape.heads == shape.kv_heads and shape.heads % 8 == 0 else 1
    wanted = (shape.heads // fold, shape.kv_heads // fold, shape.head_dim)
    points = []
    for row in read_rows(path):
        heads = (row.integer("num_heads"), row.integer("num_key_value_heads"), row.integer("head_dim"))
        batch, context = row.integer("batch_size"), row.integer("step")
        if heads != wanted or batch % fold or batch > num_seqs * fold or context > shape.max_model_len:
            continue
        point = AttentionPoint(batch // fold, 1, context, row.seconds("latency_ms"))
        limits.attention(row.where, point.batch, 1, context, point.seconds, shape)
        points.append(point)
    return _some(points, path, f"decode rows with {wanted[0]} heads of {shape.head_dim}, {wanted[1]} for KV")


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


class UnevenPoint(NamedTuple):
    """One layer's decode attention of ``batch`` sequences: all at the mean context, all at the longest, and mixed."""

    batch: int
    mean_s: float
    longest_s: float
    mixed_s: float


def read_uneven(path: Path) -> list[UnevenPoint]:
    """Batches of unequal contexts without prompts, beside even ones."""
    points = []
    for row in read_rows(path):
        if row.text("regime") == "pure":
            times_s = (row.number(f"t_{name}_us") * 1e-6 for name in ("mean", "max", "skew"))
            points.append(UnevenPoint(row.integer("n"), *times_s))
    return _some(points, path, "rows of regime pure")


def _some(found: _C, path: Path, what: str) -> _C:
    if not len(found):
        raise CostFileError(f"{path.name}: has no {what}; use the table of this model and card")
    return found
