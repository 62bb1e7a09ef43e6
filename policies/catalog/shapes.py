"""What the catalog knows of a model and of a card, and the sizes that follow from it."""

from __future__ import annotations

from typing import NamedTuple


class ModelShape(NamedTuple):
    """Shape of a Llama-type decoder: grouped-query attention, RMS norms, no biases, rotary positions.

    ``intermediate`` is the width of the MLP, which has three matrices if ``gated_mlp`` (SwiGLU), else two.
    With ``tied_head`` the output head is the input embedding. ``dtype_bytes`` is the size of a weight and of
    a KV element.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_model_len: int
    gated_mlp: bool = True
    tied_head: bool = False
    dtype_bytes: int = 2

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of the matrices of one layer: Q, K, V, O and the MLP; each costs 2 FLOPs a token."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + (3 if self.gated_mlp else 2) * self.hidden * self.intermediate

    @property
    def head_parameters(self) -> int:
        """Weights of the output head, ``hidden x vocab``."""
        return self.hidden * self.vocab

    @property
    def num_parameters(self) -> int:
        """All weights: embedding, layers with two norms each, final norm, head."""
        embeddings = self.head_parameters * (1 if self.tied_head else 2)
        return embeddings + self.layers * (self.layer_matrix_parameters + 2 * self.hidden) + self.hidden

    @property
    def weight_bytes(self) -> int:
        """Bytes the weights take in GPU memory."""
        return self.num_parameters * self.dtype_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes of weights a step reads that yields tokens: all but the input embedding, of which it looks up
        rows."""
        embedding = 0 if self.tied_head else self.head_parameters
        return (self.num_parameters - embedding) * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    def block_bytes(self, block_size: int) -> int:
        """Bytes of a KV block of ``block_size`` tokens over all layers."""
        return self.kv_bytes_per_token * block_size

    def swap_pieces_per_block(self) -> int:
        """Copies it takes to move a block whose layers lie apart: one K and one V piece a layer (vLLM V0)."""
        return 2 * self.layers


class Card(NamedTuple):
    """Nominal figures of one card: 16-bit dense matrix rate with fp32 accumulation, memory rate and size.

    ``memory_bytes`` is the nominal size; what a driver shows may be less, and is a parameter of the pool.
    """

    name: str
    title: str
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: int
    source: str
