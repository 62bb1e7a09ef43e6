"""Operator tables of Vidur (milliseconds): linear operators, attention, and a sample of medians of the latter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from calibrate.checks import Limits
from calibrate.importing import Group, first_row, unknown_table
from calibrate.operators import read_attention, read_linear
from calibrate.profile import Measurement


def measurements(path: Path, group: Group) -> Iterator[Measurement]:
    """The rows of one table, whose kind its columns tell, for the group's number of GPUs."""
    columns = first_row(path).columns()
    if "time_stats.mlp_up_proj.median" in columns:
        return _linear(path, group)
    if {"kv_cache_size", "prefill_chunk_size", "batch_size"} <= set(columns):
        return attention_rows(path, group)
    if "kind" in columns:
        return attention_rows(path, group)
    raise unknown_table(path, "Vidur", columns, "mlp.csv and attention.csv of data/profiling/compute")


def _linear(path: Path, group: Group) -> Iterator[Measurement]:
    for tokens, values in read_linear(path, group.shape, Limits(group.card)).items():
        for seconds in values:
            yield Measurement("linear", group.source, seconds, tokens=tokens)


def attention_rows(path: Path, group: Group) -> Iterator[Measurement]:
    """Decode and prefill attention of the group's number of GPUs."""
    limits = Limits(group.card)
    for point in read_attention(path, "decode", group.shape, limits):
        yield Measurement(
            "decode", group.source, point.seconds, sequences=point.batch, context=point.context
        )
    for point in read_attention(path, "prefill", group.shape, limits):
        yield Measurement(
            "prefill",
            group.source,
            point.seconds,
            chunks=point.batch,
            chunk_tokens=point.chunk,
            chunk_context=point.context,
        )
