"""``batchscope hardware``: cards, and every term of one card's costs and KV pool."""

from __future__ import annotations

import click

from sim.cli.group import verb_group


@verb_group()
def hardware() -> None:
    """List cards and models; print every term of one card's costs and KV pool."""


@hardware.command("list", short_help="Cards and models, and which pairs have a cost file.")
def list_cards() -> None:
    """All cards of the catalog with the figures of their data sheets, all models, and which pairs have a cost file."""
    from sim.costs.describe import describe_cards, describe_models

    click.echo(f"{describe_cards()}\n\n{describe_models()}")


@hardware.command("show", short_help="KV pool, terms of a step, floor and swap of one card.")
@click.argument("name")
@click.option("--model", default="llama-2-7b", show_default=True, help="Model of the catalog, or a config.json FILE.")
@click.option("--tp", default=1, show_default=True, type=click.IntRange(1), help="GPUs that share the model.")
@click.option("--policy", help="Preset whose memory, host time and graphs to take.  [default: no host time]")
@click.option("--cost-model", help="'calibrated', 'roofline' or a cost FILE.  [default: as runs choose]")
@click.option("--weight-bits", default=16, show_default=True, type=int, help="Bits of a weight: 16, 8 or 4.")
@click.option("--kv-bits", default=16, show_default=True, type=int, help="Bits of an element of K and V: 16, 8 or 4.")
@click.option(
    "--max-num-batched-tokens",
    type=click.IntRange(1),
    help="Tokens of the widest step; sets activation memory.  [default: 2048, or the preset's]",
)
@click.option(
    "--max-num-seqs",
    type=click.IntRange(1),
    help="Most sequences of a step; sets activation memory.  [default: 256, or the preset's]",
)
@click.option(
    "--gpu-memory-utilization",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Part of the card's memory that the engine may use.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any key of [model] or [hardware].")
def show(
    name: str,
    model: str,
    tp: int,
    policy: str | None,
    cost_model: str | None,
    weight_bits: int,
    kv_bits: int,
    max_num_batched_tokens: int | None,
    max_num_seqs: int | None,
    gpu_memory_utilization: float,
    overrides: tuple[str, ...],
) -> None:
    """The KV pool of a model on card NAME, the terms of a step, the floor, and where swap beats recompute."""
    from sim.machine import describe

    if gpu_memory_utilization != gpu_memory_utilization:  # passes for any range
        raise click.BadParameter("nan is no number above 0 and of at most 1", param_hint="--gpu-memory-utilization")
    named = "config" if model.endswith(".json") else "name"
    tables = {
        "model": {named: model, "weight_bits": weight_bits, "kv_bits": kv_bits},
        "hardware": {"name": name, "tp": tp, **({} if cost_model is None else {"cost_model": cost_model})},
    }
    sizes = {"max_num_batched_tokens": max_num_batched_tokens, "max_num_seqs": max_num_seqs}
    given = {key: value for key, value in sizes.items() if value is not None}
    click.echo(describe(tables, overrides, policy, {**given, "utilization": gpu_memory_utilization}))
