"""Counter-based random numbers in plain torch: the same integers as Triton's ``tl.randint``, on any device.

Philox 4x32 after J. Salmon, M. Moraes, R. Dror and D. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011);
seven rounds are the fewest that pass the tests of that paper.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 7
_MASK = 0xFFFFFFFF
_MULTIPLIER_A, _MULTIPLIER_B = 0xD2511F53, 0xCD9E8D57
_WEYL_A, _WEYL_B = 0x9E3779B9, 0xBB67AE85


def philox(seeds_B: Tensor, counters_V: Tensor) -> Tensor:
    """Word 0 of Philox for the key ``seeds_B`` (int64) and the counter ``(counters_V, 0, 0, 0)``: B x V, int64 that
    holds 32 bits without sign."""
    key_a, key_b = (seeds_B & _MASK)[:, None], ((seeds_B >> 32) & _MASK)[:, None]
    c0, c1, c2, c3 = (counters_V.to(torch.int64) & _MASK)[None], *(torch.zeros_like(seeds_B)[:, None],) * 3
    for _ in range(ROUNDS):
        # The products of 32-bit numbers wrap round in int64, but keep all their 64 bits.
        product_a, product_b = c0 * _MULTIPLIER_A, c2 * _MULTIPLIER_B
        c0 = ((product_b >> 32) & _MASK) ^ c1 ^ key_a
        c2 = ((product_a >> 32) & _MASK) ^ c3 ^ key_b
        c1, c3 = product_b & _MASK, product_a & _MASK
        key_a, key_b = (key_a + _WEYL_A) & _MASK, (key_b + _WEYL_B) & _MASK
    return c0


def gumbel(seeds_B: Tensor, counters_V: Tensor) -> Tensor:
    """Standard Gumbel noise, float32, B x V. Of the 32 bits the upper 23 are used, moved by half a step, so that the
    uniform number below it is never 0 or 1."""
    uniform = ((philox(seeds_B, counters_V) >> 9).to(torch.float32) + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))
