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
@click.option("--model", default="llama-2-7b", show_default=True, help="Model of the catalog.")
@click.option("--cost-model", default="calibrated", show_default=True, help="'calibrated' or a cost FILE.")
@click.option(
    "--max-num-batched-tokens",
    default=2048,
    show_default=True,
    type=click.IntRange(1),
    help="Tokens of the widest step; sets activation memory.",
)
@click.option(
    "--max-num-seqs",
    default=256,
    show_default=True,
    type=click.IntRange(1),
    help="Most sequences of a step; sets activation memory.",
)
@click.option(
    "--gpu-memory-utilization",
    default=0.9,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Part of the card's memory that the engine may use.",
)
def show(
    name: str,
    model: str,
    cost_model: str,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    gpu_memory_utilization: float,
) -> None:
    """The KV pool of a model on card NAME, the terms of a step, the floor, and where swap beats recompute."""
    from policies.catalog import card
    from policies.catalog import model as shape_of
    from sim.costs.describe import describe_hardware

    text = describe_hardware(
        card(name),
        shape_of(model),
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        utilization=gpu_memory_utilization,
        cost_model=cost_model,
    )
    click.echo(text)
