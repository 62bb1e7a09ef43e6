"""The operations in plain torch: the reference, on any device and in any dtype, and what runs on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody calls it)
from torch import Tensor

from gpu_backend.philox import gumbel
from gpu_backend.torch_decode import DecodeGroups, runs_of

TILE_T = 32
"""Rows of every matrix product where results must not depend on the batch."""

_FAST_ROWS = 16
_SLOW_ROWS = range(7, _FAST_ROWS)
_LARGE_WEIGHT = 1 << 19
"""On a CPU the product of that many rows in single precision with a weight of so many numbers takes up to 2.5 times as
long as that of ``_FAST_ROWS``, and never less: below 16 rows MKL walks over the weight once for every three. Measured
with torch 2.13 on a Xeon with AVX-512, one thread, 32,000 x 768 times 1, 3, 4, 6, 8, 10, 12, 15, 16 rows: 7.5, 9.0,
16.7, 17.7, 26.4, 34.6, 35.4, 45.5, 18.1 ms. A smaller weight stays in the core's cache, where rows are what counts."""


class TorchOps:
    """``Ops`` (ops.py) in plain torch. Attention and sampling wait for the device: no CUDA graph can capture them.

    ``batch_invariant``: products of matrices take ``TILE_T`` rows at a time, the last tile filled with zeros, and
    decode attention takes each row by itself.
    """

    name = "torch"

    def __init__(self, *, batch_invariant: bool = False) -> None:
        self.batch_invariant = batch_invariant
        self._groups = DecodeGroups()

    # -- rows of the model ------------------------------------------------------------------------------------

    def rms_norm(self, x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        """``Ops.rms_norm``."""
        x = x_TE.float()
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return (y * weight_E).to(x_TE.dtype)

    def add_rms_norm(self, x_TE: Tensor, residual_TE: Tensor, weight_E: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``Ops.add_rms_norm``."""
        total = x_TE + residual_TE
        return self.rms_norm(total, weight_E, eps), total

    def silu_mul(self, gate_up_T2I: Tensor) -> Tensor:
        """``Ops.silu_mul``."""
        gate, up = gate_up_T2I.float().chunk(2, dim=-1)
        return (F.silu(gate) * up).to(gate_up_T2I.dtype)

    def linear(self, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
        """``Ops.linear``."""
        num_tokens = x_TI.shape[0]
        if not self.batch_invariant:
            if num_tokens in _SLOW_ROWS and _is_slow(weight_OI):
                return F.linear(F.pad(x_TI, (0, 0, 0, _FAST_ROWS - num_tokens)), weight_OI)[:num_tokens]
            return F.linear(x_TI, weight_OI)
        padded = F.pad(x_TI, (0, 0, 0, -num_tokens % TILE_T))
        tiles = [F.linear(tile, weight_OI) for tile in padded.split(TILE_T)]
        return torch.cat(tiles)[:num_tokens] if tiles else F.linear(x_TI, weight_OI)

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
        _, _, _, kv_heads, block_size, head_dim = cache_NL2KSD.shape
        heads = qkv_TX.shape[1] // head_dim - 2 * kv_heads
        qkv = qkv_TX.view(qkv_TX.shape[0], heads + 2 * kv_heads, head_dim)
        rotated = _rotate(qkv[:, : heads + kv_heads], cos_sin_PD[positions_T])
        written = (slots_T >= 0).nonzero().squeeze(1)
        slots = slots_T[written]
        block, offset = slots // block_size, slots % block_size
        of_layer = cache_NL2KSD[:, layer]
        of_layer[block, 0, :, offset] = rotated[written, heads:]
        of_layer[block, 1, :, offset] = qkv[written, heads + kv_heads :]
        return rotated[:, :heads].contiguous()

    def gather_blocks(self, cache_NL2KSD: Tensor, ids_n: Tensor) -> Tensor:
        """``Ops.gather_blocks``."""
        return cache_NL2KSD.index_select(0, ids_n)

    def scatter_blocks(self, cache_NL2KSD: Tensor, ids_n: Tensor, blocks_nL2KSD: Tensor) -> None:
        """``Ops.scatter_blocks``."""
        cache_NL2KSD.index_copy_(0, ids_n, blocks_nL2KSD)

    def copy_blocks(self, cache_NL2KSD: Tensor, src_n: Tensor, dst_n: Tensor) -> None:
        """``Ops.copy_blocks``."""
        cache_NL2KSD.index_copy_(0, dst_n, cache_NL2KSD.index_select(0, src_n))

    # -- attention --------------------------------------------------------------------------------------------

    def decode_attention(
        self, q_BHD: Tensor, cache_NL2KSD: Tensor, layer: int, tables_BM: Tensor, contexts_B: Tensor
    ) -> Tensor:
        """``Ops.decode_attention``: rows of similar length at once."""
        if self.batch_invariant:
            lengths: list[int] = contexts_B.tolist()
            rows = [
                _attend_chunk(q_BHD[row : row + 1], _history(cache_NL2KSD, layer, tables_BM[row], length), length - 1)
                if length
                else torch.zeros_like(q_BHD[row : row + 1])
                for row, length in enumerate(lengths)
            ]
            return torch.cat(rows) if rows else torch.zeros_like(q_BHD)
        attended = torch.zeros_like(q_BHD)
        for group in self._groups.of(cache_NL2KSD, tables_BM, contexts_B):
            keys, values = self._groups.gather(cache_NL2KSD, layer, group)
            mask = None if group.valid_GP is None else group.valid_GP[:, None, None]
            attended[group.rows_G] = _sdpa(q_BHD[group.rows_G][:, :, None], keys, values, mask=mask)[:, :, 0]
        return attended

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
        """``Ops.prefill_attention``: one chunk after the other."""
        ends: list[int] = cu_C1.tolist()
        starts: list[int] = starts_C.tolist()
        attended = torch.zeros_like(q_THD)
        for chunk, start in enumerate(starts):
            begin, end = ends[chunk], ends[chunk + 1]
            if end > begin:
                kv = _history(cache_NL2KSD, layer, tables_CM[chunk], start + end - begin)
                attended[begin:end] = _attend_chunk(q_THD[begin:end], kv, start)
        return attended

    # -- sampling ---------------------------------------------------------------------------------------------

    def sample(self, logits_BV: Tensor, temperature_B: Tensor, top_p_B: Tensor, seeds_B: Tensor) -> Tensor:
        """``Ops.sample``."""
        tokens = _first_largest(logits_BV)
        drawn = temperature_B.nonzero().squeeze(1)
        if drawn.numel():
            scaled = logits_BV[drawn] / temperature_B[drawn, None]
            vocabulary = torch.arange(logits_BV.shape[1], device=logits_BV.device)
            noisy = scaled + gumbel(seeds_B[drawn], vocabulary)
            edge = _nucleus_edge(scaled, top_p_B[drawn])
            tokens[drawn] = _first_largest(noisy.masked_fill(scaled < edge, -torch.inf))
        return tokens


def _is_slow(weight_OI: Tensor) -> bool:
    """Whether ``_SLOW_ROWS`` are slow with this weight."""
    is_large = weight_OI.numel() >= _LARGE_WEIGHT
    return is_large and weight_OI.device.type == "cpu" and weight_OI.dtype is torch.float32


def _rows_of_layer(cache_NL2KSD: Tensor, layer: int, runs_2RKP: Tensor) -> Tensor:
    """Keys and values at these rows: 2 x R x K x P x D."""
    _, _, _, kv_heads, block_size, head_dim = cache_NL2KSD.shape
    rows = (runs_2RKP + layer * 2 * kv_heads * block_size).view(-1)
    return cache_NL2KSD.view(-1, head_dim).index_select(0, rows).view(*runs_2RKP.shape, head_dim)


def _history(cache_NL2KSD: Tensor, layer: int, table_M: Tensor, num_tokens: int) -> Tensor:
    """Keys and values of the first ``num_tokens`` tokens of one request: 2 x 1 x K x num_tokens x D."""
    positions = torch.arange(num_tokens, device=table_M.device)[None]
    return _rows_of_layer(cache_NL2KSD, layer, runs_of(cache_NL2KSD, table_M[None], positions))


def _attend_chunk(q_THD: Tensor, kv_21KPD: Tensor, start: int) -> Tensor:
    """Causal attention of the T tokens from position ``start`` on, the last of P."""
    num_tokens, num_keys = q_THD.shape[0], kv_21KPD.shape[3]
    mask = None
    if num_tokens > 1 and start:
        mask = torch.ones(num_tokens, num_keys, dtype=torch.bool, device=q_THD.device).tril(start)
    causal = num_tokens > 1 and not start
    q_1HTD = q_THD.transpose(0, 1)[None]
    return _sdpa(q_1HTD, kv_21KPD[0], kv_21KPD[1], mask=mask, causal=causal)[0].transpose(0, 1)


def _sdpa(q: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None, causal: bool = False) -> Tensor:
    """Softmax attention of R x H x T x D over R x K x P x D."""
    grouped = q.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=grouped)


def _rotate(x_TYD: Tensor, cos_sin_TD: Tensor) -> Tensor:
    """Rotary embedding of each head: element i and i + D/2 are turned by the angle of frequency i."""
    cos, sin = cos_sin_TD[:, None].chunk(2, dim=-1)
    first, second = x_TYD.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x_TYD.dtype)


def _first_largest(scores_BV: Tensor) -> Tensor:
    """The first index of the largest score of each row (``argmax`` leaves open which of equal ones it gives)."""
    largest = scores_BV == scores_BV.amax(-1, keepdim=True)
    return largest.to(torch.uint8).argmax(-1) if scores_BV.is_cuda else scores_BV.argmax(-1)


def _nucleus_edge(scaled_BV: Tensor, top_p_B: Tensor) -> Tensor:
    """The smallest scaled logit that top-p keeps, B x 1: the most likely tokens before it are short of ``top_p``."""
    ordered = scaled_BV.sort(-1, descending=True).values
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability
    kept = (before < top_p_B[:, None]) | (top_p_B[:, None] >= 1)
    kept[:, 0] = True
    return ordered.masked_fill(~kept, torch.inf).amin(-1, keepdim=True)
