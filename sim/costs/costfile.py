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

SCHEMA = "batchscope-costs/1"


class CostFile(NamedTuple):
    """A cost file that has been read and checked. ``held_out`` and ``provenance`` are kept as written."""

    name: str
    version: int
    model: str
    card: str
    linear: LinearTerm
    decode: DecodeTerm
    prefill: PrefillTerm
    head: HeadTerm
    swap: SwapTerm
    held_out: Mapping[str, Any]
    provenance: Mapping[str, Any]


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
    )


def _decode(reader: _Reader) -> DecodeTerm:
    num_seqs, base_s = reader.table("terms.decode", "num_seqs", "base_s")
    _, slope_s = reader.table("terms.decode", "num_seqs", "slope_s")
    uneven_s = reader.number("terms.decode.uneven_s")
    return DecodeTerm(num_seqs, base_s, slope_s, uneven_s, int(reader.number("terms.decode.max_context")))


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
        self._where = where

    def get(self, key: str) -> Any:
        value = self._data
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise CostFileError(f"{self._where}: key '{key}' is missing; fit the file again")
            value = value[part]
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        if not _is_amount(value):
            raise CostFileError(f"{self._where}: '{key}' is {value!r}; it must be a number >= 0")
        return float(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise CostFileError(f"{self._where}: '{key}' must be an object")
        return value

    def table(self, key: str, x_key: str, y_key: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Two lists of one length, the first of positive integers that rise."""
        xs, ys = self.get(f"{key}.{x_key}"), self.get(f"{key}.{y_key}")
        if not isinstance(xs, list) or not isinstance(ys, list) or not xs or len(xs) != len(ys):
            raise CostFileError(f"{self._where}: {x_key} and {y_key} of '{key}' must be lists of one length")
        if any(not isinstance(x, int) or x < 1 for x in xs) or any(b <= a for a, b in itertools.pairwise(xs)):
            raise CostFileError(f"{self._where}: '{key}.{x_key}' must hold positive integers in rising order")
        if not all(map(_is_amount, ys)):
            raise CostFileError(f"{self._where}: '{key}.{y_key}' must hold numbers >= 0")
        return tuple(xs), tuple(float(y) for y in ys)
