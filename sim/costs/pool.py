"""How many KV blocks fit on a card, with every term of the answer named."""

from __future__ import annotations

from typing import NamedTuple

from policies.catalog import Card, ModelShape
from policies.core.errors import ConfigError

DEFAULT_RESERVE_BYTES = 1_500_000_000
"""Assumed, not measured: context of the driver, communication buffers, graphs, fragmentation."""


class KvPool(NamedTuple):
    """Terms of the KV pool in bytes; the pool is what the usable memory leaves after the others."""

    memory_bytes: int
    utilization: float
    weight_bytes: int
    activation_bytes: int
    reserve_bytes: int
    block_bytes: int
    block_size: int
    num_gpu_blocks: int

    @property
    def tokens(self) -> int:
        """Tokens the pool holds."""
        return self.num_gpu_blocks * self.block_size


def activation_bytes(shape: ModelShape, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """Assumed peak of activations: 16-bit hidden and MLP buffers of the widest step, and 8 bytes a logit, of which
    each GPU of a group gets all."""
    buffers = max_num_batched_tokens * (4 * shape.hidden + 4 * shape.intermediate) * 2
    return buffers + max_num_seqs * shape.vocab * shape.tp * 8


def kv_pool(
    shape: ModelShape,
    card: Card,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    block_size: int = 16,
    utilization: float = 0.9,
    memory_bytes: int | None = None,
    reserve_bytes: int = DEFAULT_RESERVE_BYTES,
) -> KvPool:
    """The KV pool: floor((utilization x memory - weights - activations - reserve) / block bytes).

    ``memory_bytes`` replaces the nominal size of the card. ConfigError when not one block is left.
    """
    if not 0.0 < utilization <= 1.0:
        raise ConfigError(f"engine.gpu_memory_utilization = {utilization} must lie in (0, 1]")
    memory = card.memory_bytes if memory_bytes is None else memory_bytes
    block_bytes = shape.block_bytes(block_size)
    activation = activation_bytes(shape, max_num_batched_tokens, max_num_seqs)
    left = utilization * memory - shape.weight_bytes - activation - reserve_bytes
    blocks = int(left // block_bytes)
    if blocks < 1:
        raise ConfigError(
            f"{shape.name} on {card.name} leaves no room for KV blocks:"
            f" {utilization:g} x {memory / 1e9:.1f} GB memory"
            f" - {shape.weight_bytes / 1e9:.1f} GB weights - {activation / 1e9:.1f} GB activations"
            f" - {reserve_bytes / 1e9:.1f} GB reserve = {left / 1e9:.1f} GB, where a block takes"
            f" {block_bytes / 1e6:.1f} MB; choose a larger card or a smaller model, split it with"
            " hardware.tp, or raise engine.gpu_memory_utilization"
        )
    return KvPool(
        memory, utilization, shape.weight_bytes, activation, reserve_bytes, block_bytes, block_size, blocks
    )


def check_fits(shape: ModelShape, card: Card, num_gpu_blocks: int, block_size: int) -> None:
    """ConfigError when the weights and a pool of ``num_gpu_blocks`` exceed the whole memory of the card."""
    pool_bytes = num_gpu_blocks * shape.block_bytes(block_size)
    if shape.weight_bytes > card.memory_bytes:
        raise ConfigError(
            f"the weights of {shape.name}, {shape.weight_bytes / 1e9:.1f} GB, exceed the {card.memory_bytes / 1e9:.1f}"
            f" GB of {card.name}; choose a larger card or a smaller model, or split it with hardware.tp"
        )
    if shape.weight_bytes + pool_bytes > card.memory_bytes:
        most = (card.memory_bytes - shape.weight_bytes) // shape.block_bytes(block_size)
        raise ConfigError(
            f"engine.num_gpu_blocks = {num_gpu_blocks}: {shape.name} on {card.name} has memory for {most} blocks of"
            f" {block_size} tokens at most; give fewer, a larger card or a smaller model"
        )
