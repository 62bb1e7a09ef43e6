"""The gate of the MLP."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def silu_mul_kernel(
    gate_up_ptr: tl.tensor,  # T x 2 I
    y_ptr: tl.tensor,  # T x I
    I: tl.constexpr,  # noqa: E741  (the letter of the width everywhere here)
    BLOCK_I: tl.constexpr,
) -> None:
    """``y = silu(gate) * up``; program (token, part of the row)."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    inside = columns < I
    gates = gate_up_ptr + token * (2 * I)
    gate = tl.load(gates + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gates + I + columns, mask=inside, other=0.0).to(tl.float32)
    small = tl.exp(-tl.abs(gate))  # of the negative size: neither sign overflows
    y = gate * tl.where(gate >= 0, 1.0, small) / (1.0 + small) * up
    tl.store(y_ptr + token * I + columns, y.to(y_ptr.dtype.element_ty), mask=inside)
