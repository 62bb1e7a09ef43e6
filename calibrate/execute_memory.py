"""KV blocks that a real device has memory for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from policies.catalog import ModelShape
from policies.core.errors import ConfigError
from policies.presets import Parameters
from sim.costs.pool import activation_bytes

if TYPE_CHECKING:
    from gpu_backend.model import LlamaModel

_CPU_SHARE: Final = 0.25
_CPU_MOST_BYTES: Final = 4 << 30
_MOST_BLOCKS: Final = 1 << 24


def device_blocks(model: LlamaModel, parameters: Parameters, utilization: object) -> int:
    """Blocks of the policy's size for what is free beside the weights. On CUDA as far as ``utilization`` (0.9) of the
    card goes and activations leave room; on a CPU a quarter of the free memory, at most 4 GiB, and nowhere more than
    every request of a full batch can use."""
    from gpu_backend.cache import blocks_in
    from gpu_backend.device import free_bytes

    block_size = parameters.pool_block_size
    free = free_bytes(model.device)
    if model.device.type == "cuda":
        import torch

        share = utilization if isinstance(utilization, float | int) else 0.9
        total = torch.cuda.get_device_properties(model.device).total_memory
        widest = activation_bytes(model.shape, parameters.max_num_batched_tokens, parameters.max_num_seqs)
        budget = int(free - (1.0 - share) * total - widest * model.dtype.itemsize / 2)
        return min(blocks_in(budget, model.shape, block_size, model.dtype), _MOST_BLOCKS)
    budget = min(int(free * _CPU_SHARE), _CPU_MOST_BYTES)
    useful = parameters.max_num_seqs * -(-parameters.max_model_len // block_size) + 1
    return min(blocks_in(budget, model.shape, block_size, model.dtype), useful, _MOST_BLOCKS)


def check_room(model: LlamaModel, parameters: Parameters, num_gpu_blocks: int) -> None:
    """ConfigError where a pool of that many blocks is larger than the memory that is free."""
    from gpu_backend.cache import block_bytes
    from gpu_backend.device import free_bytes

    size = parameters.pool_block_size
    needed, free = num_gpu_blocks * block_bytes(model.shape, size, model.dtype), free_bytes(model.device)
    if needed > free or num_gpu_blocks > _MOST_BLOCKS:
        raise ConfigError(
            f"engine.num_gpu_blocks = {num_gpu_blocks:,}: blocks of {size} tokens of {model.shape.name} take"
            f" {needed / 1e9:,.1f} GB, and {model.device} has {free / 1e9:,.1f} GB free; give at most"
            f" {min(free // (needed // num_gpu_blocks), _MOST_BLOCKS):,}"
        )


def swap_bytes(shape: ModelShape, parameters: Parameters, num_gpu_blocks: int) -> int:
    """``engine.swap_space_bytes`` for four times the pool, in the bytes that the catalog counts for a block."""
    return 4 * num_gpu_blocks * shape.block_bytes(parameters.pool_block_size)
