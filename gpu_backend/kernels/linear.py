"""A matrix product in tiles of a fixed size: a row's result does not depend on how many rows there are."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_tokens"])
def linear_kernel(
    x_ptr: tl.tensor,  # T x I
    weight_ptr: tl.tensor,  # O x I
    y_ptr: tl.tensor,  # T x O
    num_tokens: tl.tensor,  # T
    I: tl.constexpr,  # noqa: E741
    O: tl.constexpr,  # noqa: E741
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """``y = x @ weight.T``; program (tile of outputs, tile of tokens), which sums up all inputs in order."""
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    inputs = tl.arange(0, BLOCK_K)
    x_rows = x_ptr + tokens.to(tl.int64)[:, None] * I
    weight_rows = weight_ptr + outputs.to(tl.int64)[:, None] * I
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, I, BLOCK_K):
        columns = (first + inputs)[None, :]
        x = tl.load(x_rows + columns, mask=(tokens < num_tokens)[:, None] & (columns < I), other=0.0)
        weight = tl.load(weight_rows + columns, mask=(outputs < O)[:, None] & (columns < I), other=0.0)
        if UPCAST:
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    y_rows = y_ptr + tokens.to(tl.int64)[:, None] * O + outputs[None, :]
    inside = (tokens < num_tokens)[:, None] & (outputs < O)[None, :]
    tl.store(y_rows, total.to(y_ptr.dtype.element_ty), mask=inside)
