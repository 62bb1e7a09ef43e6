"""Reads ``models.json`` and ``cards.json``; one name, one entry."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from policies.catalog.shapes import Card, ModelShape
from policies.core.errors import CatalogError, closest

_GIB = 1 << 30
_ROUTED = ("mixtral", "moe", "deepseek-v", "deepseek-r1", "dbrx", "grok", "gpt-oss", "-a3b", "-a22b", "llama-4")
"""Parts of the names of well-known mixtures of experts."""

_T = TypeVar("_T")


def model(name: str) -> ModelShape:
    """The shape of a model; CatalogError with the closest name if it is unknown, or by its kind if it is no dense
    decoder."""
    if name not in _models() and any(part in name.lower() for part in _ROUTED):
        raise CatalogError(f"model '{name}' is a mixture of experts; only dense decoders are modelled")
    return _entry(_models(), name, "model")


def card(name: str) -> Card:
    """The figures of a card; CatalogError with the closest name if it is unknown."""
    return _entry(_cards(), name, "card")


def models() -> tuple[ModelShape, ...]:
    """All models, in the order of the file."""
    return tuple(_models().values())


def cards() -> tuple[Card, ...]:
    """All cards, in the order of the file."""
    return tuple(_cards().values())


def _entry(table: dict[str, _T], name: str, what: str) -> _T:
    try:
        return table[name]
    except KeyError:
        hint = closest(name, table) or f"; known: {', '.join(table)}"
        raise CatalogError(f"unknown {what} '{name}'{hint}") from None


def _read(file: str) -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return table


@cache
def _models() -> dict[str, ModelShape]:
    return {name: ModelShape(name=name, **fields) for name, fields in _read("models.json").items()}


@cache
def _cards() -> dict[str, Card]:
    return {
        name: Card(
            name=name,
            title=fields["title"],
            flops_per_s=fields["tflops"] * 1e12,
            bytes_per_s=fields["gb_per_s"] * 1e9,
            memory_bytes=round(fields["memory_gib"] * _GIB),
            source=fields["source"],
            fp8=fields.get("fp8", False),
            link=fields["link"],
            host_bytes_per_s=fields["host_gb_per_s"] * 1e9,
        )
        for name, fields in _read("cards.json").items()
    }
