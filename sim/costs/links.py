"""All-reduce between the GPUs of one machine: measured tables by link and number of GPUs, and an assumed ring where
there are none."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from policies.catalog import Card
from policies.core.errors import ConfigError
from sim.costs.terms import AllReduceTerm

LINKS_FILE = Path(__file__).with_name("links.json")
RING_LATENCY_S = 20e-6
"""Assumed for a group on PCIe: what the smallest message takes."""


class Link(NamedTuple):
    """The all-reduce of a group, and where its figures come from."""

    all_reduce: AllReduceTerm
    source: str


NO_LINK = Link(AllReduceTerm(), "a single GPU")


def link_of(card: Card, tp: int, kind: str = "nccl") -> Link:
    """The all-reduce of ``tp`` such cards by ``kind``, ``nccl`` or ``custom`` (that of vLLM from 0.3 on, in a graph).

    ConfigError where a kind or a number of GPUs has no figures.
    """
    if tp == 1:
        return NO_LINK
    tables = _tables().get(card.link)
    if tables is None:
        if kind == "custom":
            raise ConfigError(f"hardware.all_reduce = \"custom\": not measured on {card.name}; use \"nccl\"")
        return _ring(card, tp)
    measured = tables[kind]["gpus"] if kind in tables else {}
    if str(tp) not in measured:
        known = ", ".join(name for name, table in tables.items() if str(tp) in table["gpus"])
        remedy = f"use {known}" if known else f"give 1, {', '.join(tables['nccl']['gpus'])}"
        key = f'hardware.all_reduce = "{kind}"' if known else f"hardware.tp = {tp}"
        raise ConfigError(f"{key}: not measured for {tp} x {card.name}; {remedy}")
    row = measured[str(tp)]
    return Link(AllReduceTerm(tuple(row["num_bytes"]), tuple(row["seconds"])), tables[kind]["source"])


def _ring(card: Card, tp: int) -> Link:
    """Each GPU sends and gets 2 (tp - 1) / tp of the message at the rate of its host link."""
    num_bytes = 1 << 30
    seconds = RING_LATENCY_S + num_bytes * 2 * (tp - 1) / tp / card.host_bytes_per_s
    term = AllReduceTerm((1, num_bytes), (RING_LATENCY_S, seconds))
    return Link(term, f"assumed: a ring over {card.link}, {card.host_bytes_per_s / 1e9:g} GB/s, 20 us latency")


@cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = json.loads(LINKS_FILE.read_text(encoding="utf-8"))["links"]
    return tables
