"""What the catalog knows of a model and of a card, and the sizes that follow from it."""

from __future__ import annotations

from typing import NamedTuple

from policies.core.errors import ConfigError

WHOLE_BYTES = 2
"""Bytes of a weight or of an element of K and V that is not quantised."""


class ModelShape(NamedTuple):
    """Shape of a dense decoder, or of one GPU's part of it.

    ``intermediate`` is the width of the MLP, which has three matrices if ``gated_mlp`` (SwiGLU), else two. With
    ``tied_head`` the output head is the input embedding. ``weight_bits`` is the size of a weight of the layers'
    matrices (embedding, head and norms stay at 16 bits, as quantised checkpoints have them; their scales, under 4 %,
    are left out), ``kv_bits`` that of an element of K and V. ``extra_parameters`` are biases and learned positions.
    ``tp`` says of how many equal parts, one a GPU, this is one.
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
    extra_parameters: int = 0
    weight_bits: int = 16
    kv_bits: int = 16
    tp: int = 1

    def shard(self, tp: int) -> ModelShape:
        """The part of one of ``tp`` GPUs: heads, KV heads, MLP width and vocabulary divided, each KV head kept once
        where there are fewer heads than GPUs. ConfigError where the heads do not divide evenly."""
        if self.heads % tp or self.intermediate % tp or (self.kv_heads % tp and tp % self.kv_heads):
            raise ConfigError(
                f"hardware.tp = {tp}: the {self.heads} heads, {self.kv_heads} KV heads and MLP width"
                f" {self.intermediate} of {self.name} cannot be split evenly over {tp} GPUs; choose another tp"
            )
        return self._replace(
            intermediate=self.intermediate // tp,
            heads=self.heads // tp,
            kv_heads=max(1, self.kv_heads // tp),
            vocab=-(-self.vocab // tp),
            tp=self.tp * tp,
        )

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
        """All weights: embedding, layers with two norms each, final norm, head, and ``extra_parameters``."""
        embeddings = self.head_parameters * (1 if self.tied_head else 2)
        layers = self.layers * (self.layer_matrix_parameters + 2 * self.hidden)
        return embeddings + layers + self.hidden + self.extra_parameters

    @property
    def weight_bytes(self) -> int:
        """Bytes the weights take in GPU memory."""
        matrices = self.layers * self.layer_matrix_parameters
        return matrices * self.weight_bits // 8 + (self.num_parameters - matrices) * WHOLE_BYTES

    @property
    def head_bytes(self) -> int:
        """Bytes of the output head."""
        return self.head_parameters * WHOLE_BYTES

    @property
    def read_bytes(self) -> int:
        """Bytes of weights a step reads that yields tokens: all but the input embedding, of which it looks up
        rows."""
        return self.weight_bytes - (0 if self.tied_head else self.head_bytes)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_bits // 8

    def block_bytes(self, block_size: int) -> int:
        """Bytes of a KV block of ``block_size`` tokens over all layers."""
        return self.kv_bytes_per_token * block_size

    def swap_pieces_per_block(self) -> int:
        """Copies it takes to move a block whose layers lie apart: one K and one V piece a layer (vLLM V0)."""
        return 2 * self.layers


class Card(NamedTuple):
    """Nominal figures of one card: 16-bit dense matrix rate with fp32 accumulation, memory rate and size.

    ``memory_bytes`` is the nominal size; what a driver shows may be less, and is a parameter of the pool. ``fp8`` cards
    multiply 8-bit numbers at twice the 16-bit rate. ``link`` is how cards of one machine reach each other, and
    ``host_bytes_per_s`` the rate of a bulk copy between the card and pinned host memory, one way.
    """

    name: str
    title: str
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: int
    source: str
    fp8: bool = False
    link: str = ""
    host_bytes_per_s: float = 24.8e9
