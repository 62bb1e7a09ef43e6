"""``batchscope hardware``: cards, and every term of one card's costs and KV pool."""

from __future__ import annotations

import click

from sim.cli.group import verb_group


@verb_group()
def hardware() -> None:
    """List cards; print every term of one card's costs and KV pool."""


@hardware.command("list")
def list_cards() -> None:
    """All cards of the catalog with the figures of their data sheets."""
    from sim.costs.describe import describe_cards

    click.echo(describe_cards())


@hardware.command("show")
@click.argument("name")
@click.option("--model", default="llama-2-7b", show_default=True, help="Model of the catalog.")
@click.option("--cost-model", default="calibrated", show_default=True, help="'calibrated' or a cost FILE.")
@click.option("--max-num-batched-tokens", default=2048, show_default=True, type=click.IntRange(1))
@click.option("--max-num-seqs", default=256, show_default=True, type=click.IntRange(1))
@click.option("--gpu-memory-utilization", default=0.9, show_default=True, type=click.FloatRange(0, 1, min_open=True))
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
