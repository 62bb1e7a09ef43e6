"""The cost file: versioned JSON with the terms, their provenance, valid range and held-out error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from policies.core.errors import CostFileError
from policies.json_text import read_json
from sim.costs.terms import (
    DecodeTerm,
    HeadTerm,
    HostTerm,
    LinearTerm,
    MixedTerm,
    PrefillTable,
    PrefillTerm,
    SwapTerm,
)

SCHEMA = "batchscope-costs/2"

MOST_SECONDS = 1e6
"""Of any one figure of a term: far above what a step takes, and small enough that sums of them stay exact."""


class CostFile(NamedTuple):
    """A cost file that has been read and checked. ``held_out`` and ``provenance`` are kept as written.

    The terms are those of one GPU of ``tp``, without communication. ``kind`` is how they came about: ``calibrated`` on
    measured operators, or ``roofline``; ``band`` then is the range of predicted over measured times of whole batches.
    ``date`` is that of the fit, ``data_date`` of its measurements.
    ``chunks`` and ``mixed`` take the place of ``prefill`` and ``decode`` where chunks on cached tokens and steps that
    do both were measured, ``host`` that of the preset's host time where steps were measured end to end.
    """

    name: str
    version: int
    model: str
    card: str
    tp: int
    kind: str
    linear: LinearTerm
    decode: DecodeTerm
    prefill: PrefillTerm
    head: HeadTerm
    swap: SwapTerm
    held_out: Mapping[str, Any]
    provenance: Mapping[str, Any]
    band: Mapping[str, float] | None = None
    date: str = ""
    data_date: str = ""
    chunks: PrefillTable | None = None
    mixed: MixedTerm | None = None
    host: HostTerm | None = None


def read_cost_file(path: Path) -> CostFile:
    """Read and check a cost file; CostFileError names the file and the key."""
    try:
        data = read_json(path)
    except OSError as error:
        raise CostFileError(f"{path}: cannot be read ({error.strerror}); name a cost file") from None
    except ValueError as error:
        raise CostFileError(f"{path}: not JSON ({error}); write it with `batchscope calibrate fit`") from None
    return parse_cost_file(data, str(path))


def parse_cost_file(data: Any, where: str) -> CostFile:
    """Check the content of a cost file and give it types; ``where`` names it in errors."""
    reader = _Reader(data, where)
    if reader.get("schema") != SCHEMA:
        raise CostFileError(f"{where}: schema is {reader.get('schema')!r}, not {SCHEMA!r}; fit it again")
    return CostFile(
        name=str(reader.get("name")),
        version=reader.whole("version"),
        model=str(reader.get("model")),
        card=str(reader.get("card")),
        tp=reader.whole("tp"),
        kind="calibrated",
        linear=LinearTerm(
            *reader.table("terms.linear", "num_tokens", "seconds"),
            tile_tokens=reader.whole("terms.linear.tile_tokens"),
            tile_s=reader.seconds("terms.linear.tile_s"),
        ),
        decode=_decode(reader, "terms.decode"),
        prefill=_prefill(reader),
        head=HeadTerm(*reader.table("terms.head", "num_rows", "seconds")),
        swap=SwapTerm(
            reader.rate("terms.swap.bytes_per_s"),
            reader.seconds("terms.swap.copy_s"),
            reader.seconds("terms.swap.fixed_s"),
        ),
        held_out=_held_out(reader),
        provenance=reader.mapping("provenance"),
        date=str(reader.get("date")),
        data_date=str(reader.get("data_date")) if isinstance(data, Mapping) and "data_date" in data else "",
        chunks=_chunks(reader) if reader.has("terms.chunks") else None,
        mixed=_mixed(reader) if reader.has("terms.mixed") else None,
        host=_host(reader) if reader.has("terms.host") else None,
    )


def _host(reader: _Reader) -> HostTerm:
    prefill_s = reader.seconds("terms.host.prefill_s") if reader.has("terms.host.prefill_s") else 0.0
    return HostTerm(reader.seconds("terms.host.base_s"), reader.seconds("terms.host.per_seq_s"), prefill_s)


def _held_out(reader: _Reader) -> Mapping[str, Any]:
    """Errors by term as shares; that of the step, where there is one, is shown with every result."""
    errors = reader.mapping("held_out")
    if errors.get("step") is not None:
        for name in ("median", "p95"):
            reader.number(f"held_out.step.{name}")
    return errors


def _decode(reader: _Reader, key: str) -> DecodeTerm:
    uneven_s = reader.seconds(f"{key}.uneven_s")
    uneven_seq_s = reader.seconds(f"{key}.uneven_seq_s") if reader.has(f"{key}.uneven_seq_s") else 0.0
    table = _by_context(reader, key, "num_seqs")
    return DecodeTerm(*table, uneven_s, reader.whole(f"{key}.max_context"), uneven_seq_s)


def _chunks(reader: _Reader) -> PrefillTable:
    return PrefillTable(*_by_context(reader, "terms.chunks", "num_tokens"))


def _mixed(reader: _Reader) -> MixedTerm:
    return MixedTerm(
        _decode(reader, "terms.mixed.decode"),
        reader.seconds("terms.mixed.token_seq_s"),
        *reader.table("terms.mixed", "num_tokens", "overlap"),
    )


def _by_context(
    reader: _Reader, key: str, counts: str
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[float, ...], ...]]:
    """Counts, contexts, and a list of seconds by context for each count."""
    xs, contexts = reader.counts(f"{key}.{counts}", 1), reader.counts(f"{key}.contexts", 0)
    rows = reader.get(f"{key}.seconds")
    if len(contexts) < 2 or contexts[0]:
        raise CostFileError(f"{reader.where}: '{key}.contexts' must begin with 0 and hold two numbers or more")
    if not isinstance(rows, list) or len(rows) != len(xs):
        raise CostFileError(f"{reader.where}: '{key}.seconds' must hold a list for each of {counts}")
    return xs, contexts, tuple(reader.amounts(row, len(contexts), f"{key}.seconds") for row in rows)


def _prefill(reader: _Reader) -> PrefillTerm:
    seconds, whole = reader.seconds, reader.whole
    return PrefillTerm(
        step_s=seconds("terms.prefill.step_s"),
        chunk_s=seconds("terms.prefill.chunk_s"),
        token_s=seconds("terms.prefill.token_s"),
        context_s=seconds("terms.prefill.context_s"),
        context_token_s=seconds("terms.prefill.context_token_s"),
        token_token_s=seconds("terms.prefill.token_token_s"),
        max_tokens=whole("terms.prefill.max_tokens"),
        max_context=whole("terms.prefill.max_context"),
    )


_MOST_COUNT = 1 << 40
"""Of tokens or sequences in a table."""


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


class _Reader:
    """Looks up dotted keys and names them in errors."""

    def __init__(self, data: Any, where: str) -> None:
        self._data = data
        self.where = where

    def get(self, key: str) -> Any:
        value = self._data
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise CostFileError(f"{self.where}: key '{key}' is missing; fit the file again")
            value = value[part]
        return value

    def has(self, key: str) -> bool:
        """Whether a term that not every file has is there."""
        parent, _, last = key.rpartition(".")
        found = self.get(parent)
        return isinstance(found, Mapping) and last in found

    def number(self, key: str) -> float:
        value = self.get(key)
        if not _is_amount(value):
            raise CostFileError(f"{self.where}: '{key}' is {value!r}; it must be a number >= 0")
        return float(value)

    def seconds(self, key: str) -> float:
        """A number of seconds >= 0 that a term can have."""
        value = self.number(key)
        if value > MOST_SECONDS:
            raise CostFileError(f"{self.where}: '{key}' is {value!r}; it must be at most {MOST_SECONDS:g} seconds")
        return value

    def rate(self, key: str) -> float:
        """A number above 0."""
        value = self.number(key)
        if not value:
            raise CostFileError(f"{self.where}: '{key}' is {value!r}; it must be a number above 0")
        return value

    def whole(self, key: str) -> int:
        """A whole number >= 0."""
        value = self.number(key)
        if not value.is_integer():
            raise CostFileError(f"{self.where}: '{key}' is {value!r}; it must be a whole number")
        return int(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise CostFileError(f"{self.where}: '{key}' must be an object")
        return value

    def table(self, key: str, x_key: str, y_key: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Two lists of one length, the first of positive integers that rise."""
        xs, ys = self.get(f"{key}.{x_key}"), self.get(f"{key}.{y_key}")
        if not isinstance(xs, list) or not isinstance(ys, list) or not xs or len(xs) != len(ys):
            raise CostFileError(f"{self.where}: {x_key} and {y_key} of '{key}' must be lists of one length")
        return self.counts(f"{key}.{x_key}", 1), self.amounts(ys, len(xs), f"{key}.{y_key}")

    def counts(self, key: str, least: int) -> tuple[int, ...]:
        """A list of integers of at least ``least`` that rise."""
        xs = self.get(key)
        is_list = isinstance(xs, list) and xs
        if not is_list or any(type(x) is not int or not least <= x <= _MOST_COUNT for x in xs) or _falls(xs):
            kind = "positive integers" if least else "integers >= 0"
            raise CostFileError(f"{self.where}: '{key}' must hold {kind} in rising order")
        return tuple(xs)

    def amounts(self, values: Any, length: int, key: str) -> tuple[float, ...]:
        """A list of ``length`` numbers >= 0."""
        if not isinstance(values, list) or len(values) != length or not all(map(_is_amount, values)):
            raise CostFileError(f"{self.where}: '{key}' must hold numbers >= 0, {length} in each list")
        if max(values) > MOST_SECONDS:
            raise CostFileError(f"{self.where}: '{key}' must hold numbers of at most {MOST_SECONDS:g} seconds")
        return tuple(float(value) for value in values)


def _falls(xs: list[int]) -> bool:
    return any(b <= a for a, b in itertools.pairwise(xs))
