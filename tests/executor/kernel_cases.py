"""What the tests of kernels share: where they run, random numbers whose seed is told, tolerances."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import SystemRandom

import torch
from torch import Tensor

from gpu_backend.kernel_reference import TOLERANCE, Heads, Paged, relative_error
from gpu_backend.kernel_reference import paged as paged_on

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = tuple(TOLERANCE)
HEADS = (Heads(4, 4, 16), Heads(6, 2, 32), Heads(4, 1, 48))
"""One key/value head a query head, groups of three, and groups of four with a width that is no power of two."""


def fresh_generator() -> torch.Generator:
    """Seeded anew; pytest shows the seed of a test that fails, and BATCHSCOPE_SEED=N gives it again."""
    seed = int(os.environ.get("BATCHSCOPE_SEED") or SystemRandom().getrandbits(32))
    print(f"BATCHSCOPE_SEED={seed}")
    return torch.Generator().manual_seed(seed)


def check_close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Within the tolerance of the dtype; a NaN anywhere is an error."""
    assert got.dtype == dtype
    assert got.shape == expected.shape
    error = relative_error(got, expected)
    assert error <= TOLERANCE[dtype], f"relative error {error:.2e}"


def normal(generator: torch.Generator, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers of the dtype, on the device."""
    return torch.randn(*size, generator=generator).to(dtype).to(DEVICE)


def paged(
    generator: torch.Generator, lengths: Sequence[int], heads: Heads, block_size: int, dtype: torch.dtype
) -> Paged:
    """Requests of these lengths in a cache on the device that is NaN everywhere else."""
    return paged_on(generator, lengths, heads, block_size, dtype, DEVICE)
