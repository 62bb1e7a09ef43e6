"""The one seam between the model and the tensor code below it: plain torch, or Triton kernels.

Letters of the names: T tokens of a step, B decode rows, C chunks, H query heads, K key/value heads, D head_dim,
E hidden, I intermediate, O outputs, V vocabulary, N blocks, L layers, S block_size, M columns of a block table,
P max_model_len, X = (H + 2 K) D, n blocks of a copy. ``_TE`` is a tensor of T x E.

The cache is one tensor ``cache_NL2KSD``, keys at 0 of the dimension of two, values at 1: a block of all layers is one
contiguous run. A token lives in the slot ``block * S + offset``. No call reads a slot that was not written for the
tokens that it is asked about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gpu_backend.extras import require
from policies.core.errors import ConfigError, closest

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("torch", "triton")


class Ops(Protocol):
    """What a Llama needs of the device. Inputs are contiguous and of the model's dtype unless said otherwise; sums and
    softmax are taken in float32 whatever the dtype, and results come back in the dtype of the first tensor."""

    name: str
    """``torch`` or ``triton``."""
    batch_invariant: bool
    """Whether a token's result is the same, bit for bit, whatever else is in its batch."""

    def rms_norm(self, x_TE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        """``x / sqrt(mean(x^2) + eps) * weight`` of each row: T x E."""

    def add_rms_norm(
        self,
        x_TE: Tensor,
        residual_TE: Tensor,
        weight_E: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        """``(rms_norm(x + residual), x + residual)``, the sum rounded to the dtype before it is normed.

        Either argument may be overwritten: use the two results alone from then on.
        """

    def rope_and_write(
        self,
        qkv_TX: Tensor,
        cos_sin_PD: Tensor,
        positions_T: Tensor,
        slots_T: Tensor,
        cache_NL2KSD: Tensor,
        layer: int,
    ) -> Tensor:
        """Rotate queries and keys, write keys and values of ``layer`` to the cache; the rotated queries: T x H x D.

        ``qkv_TX`` holds the H query heads of each token, then K of keys, then K of values. ``cos_sin_PD``, float32, has
        for each position the D/2 cosines and then the D/2 sines; ``rotate_half`` pairs element i with i + D/2, as
        Hugging Face's Llama does. ``positions_T`` and ``slots_T`` are int64; a slot of -1 writes nothing.
        """

    def decode_attention(
        self,
        q_BHD: Tensor,
        cache_NL2KSD: Tensor,
        layer: int,
        tables_BM: Tensor,
        contexts_B: Tensor,
    ) -> Tensor:
        """Attention of one query a row over the first ``contexts_B`` tokens of its request: B x H x D.

        The query's own key and value are in the cache already and count in ``contexts_B`` (int32). ``tables_BM``
        (int32) holds valid block ids everywhere; what lies beyond the context is not looked up. A context of 0 gives
        zeros.
        The scale is ``1 / sqrt(D)``; query head h reads key/value head ``h // (H / K)``.
        """

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
        """Causal attention of chunks of prompts over all that is cached of their requests: T x H x D.

        T counts the tokens of chunks alone. Chunk c has the queries ``cu_C1[c]`` to ``cu_C1[c + 1]`` and follows
        ``starts_C[c]`` cached tokens (both int32); its own keys and values are in the cache already. A whole prompt
        starts at 0, a recomputed one is a prompt. ``max_chunk_tokens`` is at least the longest chunk.
        """

    def silu_mul(self, gate_up_T2I: Tensor) -> Tensor:
        """``silu(gate) * up`` where each row holds the I gates and then the I ups: T x I."""

    def linear(self, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
        """``x @ weight.T``: T x O."""

    def gather_blocks(self, cache_NL2KSD: Tensor, ids_n: Tensor) -> Tensor:
        """A copy of whole blocks (ids int64 on the cache's device): n x L x 2 x K x S x D."""

    def scatter_blocks(self, cache_NL2KSD: Tensor, ids_n: Tensor, blocks_nL2KSD: Tensor) -> None:
        """The inverse of ``gather_blocks``; no id may occur twice."""

    def copy_blocks(self, cache_NL2KSD: Tensor, src_n: Tensor, dst_n: Tensor) -> None:
        """Copy block ``src_n[i]`` over block ``dst_n[i]``; no destination may occur twice or be a source."""

    def sample(
        self,
        logits_BV: Tensor,
        temperature_B: Tensor,
        top_p_B: Tensor,
        seeds_B: Tensor,
    ) -> Tensor:
        """One token a row, int64: drawn from ``softmax(logits / temperature)``, or the first largest logit where the
        temperature is 0.

        ``logits_BV``, ``temperature_B`` and ``top_p_B`` are float32, ``seeds_B`` int64. ``top_p`` < 1 keeps the most
        likely tokens up to the first whose cumulative probability reaches it, and all that tie with that one. The draw
        takes the largest of logit plus Gumbel noise; the noise of token v is a function of the row's seed and v alone
        (Philox), so that a token depends neither on its batch nor on its place in it.
        """


def load_ops(kind: str, *, batch_invariant: bool = False) -> Ops:
    """The operations by name, ``torch`` or ``triton``; ConfigError where what they need is not installed.

    ``batch_invariant`` computes matrix products in fixed tiles, so that a token's result does not depend on its batch.
    """
    if kind not in KINDS:
        raise ConfigError(f"ops = {kind!r}: choose one of {', '.join(KINDS)}{closest(kind, KINDS)}")
    require("torch", *(("triton",) if kind == "triton" else ()), extra="gpu")
    if kind == "torch":
        from gpu_backend.torch_ops import TorchOps

        return TorchOps(batch_invariant=batch_invariant)
    from gpu_backend.triton_ops import TritonOps

    return TritonOps(batch_invariant=batch_invariant)
