"""The operations as Triton kernels: compiled on a CUDA device, interpreted on the CPU where TRITON_INTERPRET is 1."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody calls it)
import triton
from torch import Tensor

from gpu_backend import tiles
from gpu_backend.kernels.copy import copy_blocks_kernel
from gpu_backend.kernels.decode import decode_kernel, merge_kernel
from gpu_backend.kernels.linear import linear_kernel
from gpu_backend.kernels.mlp import silu_mul_kernel
from gpu_backend.kernels.norm import rms_norm_kernel
from gpu_backend.kernels.prefill import prefill_kernel
from gpu_backend.kernels.rope_cache import rope_cache_kernel
from gpu_backend.kernels.sample import sample_kernel


class TritonOps:
    """``Ops`` (ops.py) as Triton kernels; nothing waits for the device, and CUDA graphs can capture every call.

    ``batch_invariant``: matrix products run in a kernel with fixed tiles, and decode attention splits contexts into
    runs of ``tiles.SPLIT_TOKENS`` tokens whatever the batch.
    """

    name = "triton"

    def __init__(self, *, batch_invariant: bool = False) -> None:
        self.batch_invariant = batch_invariant
        self._archs: dict[torch.device, str] = {}

    # -- rows of the model ------------------------------------------------------------------------------------

    def rms_norm(self, x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        """``Ops.rms_norm``."""
        y = torch.empty_like(x_TE)
        self._norm(x_TE, x_TE, weight_E, y, eps, add=False)
        return y

    def add_rms_norm(self, x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``Ops.add_rms_norm``; the residual is overwritten with the sum."""
        y = torch.empty_like(x_TE)
        self._norm(x_TE, residual_TE, weight_E, y, eps, add=True)
        return y, residual_TE

    def _norm(self, x: Tensor, residual: Tensor, weight: Tensor, y: Tensor, eps: float, *, add: bool) -> None:
        num_tokens, hidden = x.shape
        if num_tokens:
            launch = tiles.rms_norm(self._arch(x), hidden, add=add)
            rms_norm_kernel[(num_tokens,)](x, residual, weight, y, eps, **launch.options)

    def silu_mul(self, gate_up_T2I: Tensor) -> Tensor:
        """``Ops.silu_mul``."""
        num_tokens, width = gate_up_T2I.shape
        y = gate_up_T2I.new_empty((num_tokens, width // 2))
        if num_tokens:
            launch = tiles.silu_mul(self._arch(gate_up_T2I), width // 2)
            grid = (num_tokens, triton.cdiv(width // 2, launch.constants["BLOCK_I"]))
            silu_mul_kernel[grid](gate_up_T2I, y, **launch.options)
        return y

    def linear(self, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
        """``Ops.linear``: the vendor's library, or a kernel with fixed tiles."""
        if not self.batch_invariant:
            return F.linear(x_TI, weight_OI)
        num_tokens, (outputs, inputs) = x_TI.shape[0], weight_OI.shape
        y = x_TI.new_empty((num_tokens, outputs))
        if num_tokens:
            launch = tiles.linear(self._arch(x_TI), inputs, outputs, x_TI.element_size())
            sizes = launch.constants
            grid = (triton.cdiv(outputs, sizes["BLOCK_N"]), triton.cdiv(num_tokens, sizes["BLOCK_M"]))
            linear_kernel[grid](x_TI, weight_OI, y, num_tokens, **launch.options)
        return y

    # -- the cache --------------------------------------------------------------------------------------------

    def rope_and_write(
        self,
        qkv_TX: Tensor,
        cos_sin_PD: Tensor,
        positions_T: Tensor,
        slots_T: Tensor,
        cache_NL2KSD: Tensor,
        layer: int,
    ) -> Tensor:
        """``Ops.rope_and_write``."""
        _, layers, _, kv_heads, block_size, head_dim = cache_NL2KSD.shape
        num_tokens, width = qkv_TX.shape
        all_heads = width // head_dim
        heads = all_heads - 2 * kv_heads
        q = qkv_TX.new_empty((num_tokens, heads, head_dim))
        if num_tokens:
            launch = tiles.rope_cache(self._arch(qkv_TX), heads, layers, kv_heads, block_size, head_dim)
            grid = (num_tokens, triton.cdiv(all_heads, launch.constants["BLOCK_H"]))
            rope_cache_kernel[grid](qkv_TX, cos_sin_PD, positions_T, slots_T, cache_NL2KSD, q, layer, **launch.options)
        return q

    def gather_blocks(self, cache_NL2KSD: Tensor, ids_n: Tensor) -> Tensor:
        """``Ops.gather_blocks``."""
        blocks = cache_NL2KSD.new_empty((ids_n.shape[0], *cache_NL2KSD.shape[1:]))
        self._copy(cache_NL2KSD, blocks, ids_n, None)
        return blocks

    def scatter_blocks(self, cache_NL2KSD: Tensor, ids_n: Tensor, blocks_nL2KSD: Tensor) -> None:
        """``Ops.scatter_blocks``."""
        self._copy(blocks_nL2KSD, cache_NL2KSD, None, ids_n)

    def copy_blocks(self, cache_NL2KSD: Tensor, src_n: Tensor, dst_n: Tensor) -> None:
        """``Ops.copy_blocks``."""
        self._copy(cache_NL2KSD, cache_NL2KSD, src_n, dst_n)

    def _copy(self, source: Tensor, target: Tensor, source_ids: Tensor | None, target_ids: Tensor | None) -> None:
        ids = source_ids if source_ids is not None else target_ids
        assert ids is not None
        if ids.shape[0]:
            elements = math.prod(source.shape[1:])
            launch = tiles.copy_blocks(
                self._arch(source), elements, from_ids=source_ids is not None, to_ids=target_ids is not None
            )
            grid = (ids.shape[0], triton.cdiv(elements, launch.constants["CHUNK"]))
            from_ids, to_ids = (ids if given is None else given for given in (source_ids, target_ids))
            copy_blocks_kernel[grid](source, target, from_ids, to_ids, **launch.options)

    # -- attention --------------------------------------------------------------------------------------------

    def decode_attention(
        self, q_BHD: Tensor, cache_NL2KSD: Tensor, layer: int, tables_BM: Tensor, contexts_B: Tensor
    ) -> Tensor:
        """``Ops.decode_attention``: the context split over programs by the batch size, then merged."""
        num_rows, heads, head_dim = q_BHD.shape
        out = torch.empty_like(q_BHD)
        if not num_rows:
            return out
        _, layers, _, kv_heads, block_size, _ = cache_NL2KSD.shape
        arch, columns = self._arch(q_BHD), tables_BM.shape[1]
        splits, split_tokens = self._splits(arch, num_rows, kv_heads, columns * block_size)
        parts = num_rows * heads * splits if splits > 1 else 0  # one split touches neither of these
        scores = q_BHD.new_empty(2 * parts, dtype=torch.float32)
        partial = q_BHD.new_empty(parts * head_dim, dtype=torch.float32)
        launch = tiles.decode(
            arch, heads, layers, kv_heads, block_size, head_dim, q_BHD.element_size(), splits, split_tokens
        )
        decode_kernel[(num_rows, kv_heads, splits)](
            q_BHD,
            cache_NL2KSD,
            tables_BM,
            contexts_B,
            out,
            partial,
            scores,
            layer,
            columns,
            _scale(head_dim),
            **launch.options,
        )
        if splits > 1:
            launch = tiles.merge(heads, head_dim, splits)
            merge_kernel[(num_rows, heads)](partial, scores, out, **launch.options)
        return out

    def _splits(self, arch: str, num_rows: int, kv_heads: int, max_tokens: int) -> tuple[int, int]:
        """Splits of each context, and the tokens of each: 0 for an even share."""
        if self.batch_invariant:
            splits = triton.cdiv(max_tokens, tiles.SPLIT_TOKENS)
            return splits, tiles.SPLIT_TOKENS
        return tiles.decode_splits(arch, num_rows, kv_heads), 0

    def prefill_attention(
        self,
        q_THD: Tensor,
        cache_NL2KSD: Tensor,
        layer: int,
        tables_CM: Tensor,
        starts_C: Tensor,
        cu_C1: Tensor,
        max_chunk_tokens: int,
    ) -> Tensor:
        """``Ops.prefill_attention``."""
        out = torch.empty_like(q_THD)
        chunks, columns = tables_CM.shape
        if not chunks or not max_chunk_tokens:
            return out
        _, heads, head_dim = q_THD.shape
        _, layers, _, kv_heads, block_size, _ = cache_NL2KSD.shape
        launch = tiles.prefill(self._arch(q_THD), heads, layers, kv_heads, block_size, head_dim, q_THD.element_size())
        grid = (triton.cdiv(max_chunk_tokens, launch.constants["BLOCK_M"]), heads, chunks)
        prefill_kernel[grid](
            q_THD, cache_NL2KSD, tables_CM, starts_C, cu_C1, out, layer, columns, _scale(head_dim), **launch.options
        )
        return out

    # -- sampling ---------------------------------------------------------------------------------------------

    def sample(self, logits_BV: Tensor, temperature_B: Tensor, top_p_B: Tensor, seeds_B: Tensor) -> Tensor:
        """``Ops.sample``."""
        num_rows, vocabulary = logits_BV.shape
        tokens = torch.empty(num_rows, dtype=torch.int64, device=logits_BV.device)
        if num_rows:
            launch = tiles.sample(self._arch(logits_BV), vocabulary)
            sample_kernel[(num_rows,)](logits_BV, temperature_B, top_p_B, seeds_B, tokens, **launch.options)
        return tokens

    def _arch(self, tensor: Tensor) -> str:
        device = tensor.device
        arch = self._archs.get(device)
        if arch is None:
            on_card = device.type == "cuda"
            arch = tiles.arch_of(torch.cuda.get_device_capability(device) if on_card else None)
            self._archs[device] = arch
        return arch


def _scale(head_dim: int) -> float:
    """Of scores in powers of two: ``log2(e) / sqrt(D)``."""
    return math.log2(math.e) / math.sqrt(head_dim)
