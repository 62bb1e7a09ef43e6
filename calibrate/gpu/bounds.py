"""The least time of a step on a device, by what this check measured of it or, failing that, by its data sheet."""

from __future__ import annotations

from typing import Any

from policies.catalog import Card, ModelShape, card
from sim.costs.floor import Floor, floor_of


def measured_card(environment: dict[str, Any]) -> Card | None:
    """The card with the ceilings that the stage found in place of nominal figures; None for an unknown card without
    ceilings."""
    known, ceilings = environment.get("environment", {}), environment.get("ceilings", {})
    name = known.get("card")
    base = card(name) if name else Card(known.get("name", "device"), "", 0.0, 0.0, 0, "")
    flops, rate = (ceilings.get(key, 0.0) for key in ("matmul_flops_per_s", "copy_bytes_per_s"))
    base = base._replace(flops_per_s=flops or base.flops_per_s, bytes_per_s=rate or base.bytes_per_s)
    return base if base.flops_per_s and base.bytes_per_s else None


def bound(shape: ModelShape, environment: dict[str, Any], itemsize: int) -> Floor | None:
    """The floor of a model whose weights and KV have ``itemsize`` bytes an element; None without a rate."""
    device = measured_card(environment)
    if device is None:
        return None
    # The floor counts 16-bit elements: wider ones halve the rate at which they are read.
    return floor_of(shape, device._replace(bytes_per_s=device.bytes_per_s * 2 / itemsize))


def step_bound_s(floor: Floor, contexts: tuple[int, ...], chunk_tokens: int, chunk_context: int) -> float:
    """Least seconds of a step, ``contexts`` with the current token."""
    rows, cached = len(contexts), sum(contexts)
    pairs = cached + chunk_tokens * chunk_context + chunk_tokens * (chunk_tokens + 1) // 2
    read = cached + chunk_context + chunk_tokens
    return floor.step_s(rows + chunk_tokens, rows + (chunk_tokens > 0), read, pairs)
