"""The KV memory: one tensor, in which a block over all layers is one contiguous run."""

from __future__ import annotations

import torch

from gpu_backend.device import allocating
from policies.catalog import ModelShape
from policies.core.errors import ConfigError, ContractError


class KvCache:
    """``num_blocks`` blocks of ``block_size`` tokens, N x L x 2 x K x S x D (keys at 0, values at 1).

    Nothing is written before it is computed; what a block held of earlier owners is never read. ConfigError, in one
    line, where memory is short or the pool is empty.
    """

    def __init__(
        self, num_blocks: int, shape: ModelShape, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.block_bytes = block_bytes(shape, block_size, dtype)
        if num_blocks < 1:
            raise ConfigError(f"engine.num_gpu_blocks = {num_blocks}: the pool must have a block at least")
        size = (num_blocks, shape.layers, 2, shape.kv_heads, block_size, shape.head_dim)
        with allocating(f"{num_blocks:,} KV blocks of {block_size} tokens", num_blocks * self.block_bytes, device):
            self.blocks_NL2KSD = torch.empty(size, dtype=dtype, device=device)
            if device.type == "cpu":
                # Else the kernel gives the pages out as they are first written: 3 % of a prompt's step.
                self.blocks_NL2KSD.zero_()
        taken = self.blocks_NL2KSD[0].nbytes
        if taken != self.block_bytes:
            raise ContractError(f"a block takes {taken} bytes, the catalog says {self.block_bytes}")

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""
        return self.blocks_NL2KSD.device


def block_bytes(shape: ModelShape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of a block in this dtype, by the catalog's own formula."""
    return shape._replace(kv_bits=8 * dtype.itemsize).block_bytes(block_size)


def blocks_in(budget_bytes: int, shape: ModelShape, block_size: int, dtype: torch.dtype) -> int:
    """Blocks that ``budget_bytes`` hold; ConfigError when not one fits."""
    each = block_bytes(shape, block_size, dtype)
    if budget_bytes < each:
        raise ConfigError(
            f"{budget_bytes / 1e6:,.1f} MB are left for KV memory, and a block of {shape.name} takes {each / 1e6:,.1f}"
            " MB; choose a smaller model, a smaller block_size or a narrower dtype"
        )
    return budget_bytes // each
