"""The cost file: versioned JSON with the terms, their provenance, valid range and held-out error."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from policies.core.errors import CostFileError
from sim.costs.terms import DecodeTerm, HeadTerm, LinearTerm, PrefillTerm, SwapTerm

SCHEMA = "batchscope-costs/2"


class CostFile(NamedTuple):
    """A cost file that has been read and checked. ``held_out`` and ``provenance`` are kept as written.

    The terms are those of one GPU of ``tp``, without communication. ``kind`` is how they came about: ``calibrated`` on
    measured operators, or ``roofline``; ``band`` then is the range of predicted over measured times of whole batches.
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


def read_cost_file(path: Path) -> CostFile:
    """Read and check a cost file; CostFileError names the file and the key."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
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
        version=int(reader.number("version")),
        model=str(reader.get("model")),
        card=str(reader.get("card")),
        tp=int(reader.number("tp")),
        kind="calibrated",
        linear=LinearTerm(
            *reader.table("terms.linear", "num_tokens", "seconds"),
            tile_tokens=int(reader.number("terms.linear.tile_tokens")),
            tile_s=reader.number("terms.linear.tile_s"),
        ),
        decode=_decode(reader),
        prefill=_prefill(reader),
        head=HeadTerm(*reader.table("terms.head", "num_rows", "seconds")),
        swap=SwapTerm(
            reader.number("terms.swap.bytes_per_s"),
            reader.number("terms.swap.copy_s"),
            reader.number("terms.swap.fixed_s"),
        ),
        held_out=reader.mapping("held_out"),
        provenance=reader.mapping("provenance"),
        date=str(reader.get("date")),
    )


def _decode(reader: _Reader) -> DecodeTerm:
    key = "terms.decode"
    num_seqs, contexts = reader.counts(f"{key}.num_seqs", 1), reader.counts(f"{key}.contexts", 0)
    rows = reader.get(f"{key}.seconds")
    if len(contexts) < 2 or contexts[0]:
        raise CostFileError(f"{reader.where}: '{key}.contexts' must begin with 0 and hold two numbers or more")
    if not isinstance(rows, list) or len(rows) != len(num_seqs):
        raise CostFileError(f"{reader.where}: '{key}.seconds' must hold a list for each of num_seqs")
    seconds = tuple(reader.amounts(row, len(contexts), f"{key}.seconds") for row in rows)
    uneven_s = reader.number(f"{key}.uneven_s")
    return DecodeTerm(num_seqs, contexts, seconds, uneven_s, int(reader.number(f"{key}.max_context")))


def _prefill(reader: _Reader) -> PrefillTerm:
    number = reader.number
    return PrefillTerm(
        step_s=number("terms.prefill.step_s"),
        chunk_s=number("terms.prefill.chunk_s"),
        token_s=number("terms.prefill.token_s"),
        context_s=number("terms.prefill.context_s"),
        context_token_s=number("terms.prefill.context_token_s"),
        token_token_s=number("terms.prefill.token_token_s"),
        max_tokens=int(number("terms.prefill.max_tokens")),
        max_context=int(number("terms.prefill.max_context")),
    )


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

    def number(self, key: str) -> float:
        value = self.get(key)
        if not _is_amount(value):
            raise CostFileError(f"{self.where}: '{key}' is {value!r}; it must be a number >= 0")
        return float(value)

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
        if not is_list or any(type(x) is not int or x < least for x in xs) or _falls(xs):
            kind = "positive integers" if least else "integers >= 0"
            raise CostFileError(f"{self.where}: '{key}' must hold {kind} in rising order")
        return tuple(xs)

    def amounts(self, values: Any, length: int, key: str) -> tuple[float, ...]:
        """A list of ``length`` numbers >= 0."""
        if not isinstance(values, list) or len(values) != length or not all(map(_is_amount, values)):
            raise CostFileError(f"{self.where}: '{key}' must hold numbers >= 0, {length} in each list")
        return tuple(float(value) for value in values)


def _falls(xs: list[int]) -> bool:
    return any(b <= a for a, b in itertools.pairwise(xs))
