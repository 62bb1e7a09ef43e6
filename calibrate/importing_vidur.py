"""Operator tables of Vidur (milliseconds): linear operators, attention, and a sample of medians of the latter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from calibrate.checks import Limits
from calibrate.importing import Group, first_row, unknown_table
from calibrate.operators import Row, read_attention, read_linear
from calibrate.profile import Measurement
from policies.core.errors import CostFileError


def measurements(path: Path, group: Group) -> Iterator[Measurement]:
    """The rows of one table, whose kind its columns tell, for the group's number of GPUs."""
    first = first_row(path)
    _check_widths(first, group)
    columns = first.columns()
    if "time_stats.mlp_up_proj.median" in columns:
        return _linear(path, group)
    if {"kv_cache_size", "prefill_chunk_size", "batch_size"} <= set(columns):
        return attention_rows(path, group)
    if "kind" in columns:
        return attention_rows(path, group)
    raise unknown_table(path, "Vidur", columns, "mlp.csv and attention.csv of data/profiling/compute")


def _check_widths(row: Row, group: Group) -> None:
    """CostFileError for a table of another model: it states the widths of the whole one, of which a group has parts."""
    shape = group.shape
    tp = shape.tp
    for columns, wanted in (
        (("n_embd",), shape.hidden),
        (("n_head", "n_q_head"), shape.heads * tp),
        (("n_expanded_embd",), shape.intermediate * tp),
    ):
        for name in columns:
            if row.has(name) and row.integer(name) != wanted:
                raise CostFileError(
                    f"{row.where}: {name} is {row.integer(name)}, in {shape.name} {wanted}; use a table of this model"
                )


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
