"""RMSNorm, alone and after the addition of the residual: one program a token."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x_ptr: tl.tensor,  # T x E
    residual_ptr: tl.tensor,  # T x E, read and overwritten with the sum where ADD
    weight_ptr: tl.tensor,  # E
    y_ptr: tl.tensor,  # T x E
    eps: tl.tensor,
    E: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_E: tl.constexpr,
) -> None:
    """``y = x / sqrt(mean(x^2) + eps) * weight``, with ``x + residual`` for x where ``ADD``."""
    row = tl.program_id(0).to(tl.int64) * E
    columns = tl.arange(0, BLOCK_E)
    inside = columns < E
    x = tl.load(x_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row + columns, rounded, mask=inside)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / E + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row + columns, (x * scale * weight).to(y_ptr.dtype.element_ty), mask=inside)
