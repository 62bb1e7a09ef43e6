"""Weights of a Llama: from a Hugging Face folder of safetensors, or random ones of a shape, made on the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gpu_backend.checkpoint import Checkpoint
from gpu_backend.device import allocating
from gpu_backend.llama_config import LlamaConfig, read_llama_config
from policies.catalog import ModelShape
from policies.core.errors import ConfigError

EMBEDDING_STD = 0.02
"""Of random embeddings: small, so that what the layers add outweighs the token itself and the next token depends on
the whole context."""


class LayerWeights(NamedTuple):
    """One layer. X = (H + 2 K) D, rows of the query heads first, then keys, then values; gates before ups."""

    input_norm_E: Tensor
    qkv_XE: Tensor
    output_EX: Tensor
    """E x H D."""
    post_norm_E: Tensor
    gate_up_2IE: Tensor
    down_EI: Tensor


class Weights(NamedTuple):
    """All weights, fused where one matrix product does the work of several; a tied head is the embedding itself."""

    config: LlamaConfig
    embedding_VE: Tensor
    layers: tuple[LayerWeights, ...]
    norm_E: Tensor
    head_VE: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes they take, a tied head once."""
        tied = self.head_VE is self.embedding_VE
        tensors = [self.embedding_VE, self.norm_E, *(tensor for layer in self.layers for tensor in layer)]
        return sum(tensor.nbytes for tensor in tensors + ([] if tied else [self.head_VE]))


class _Part(NamedTuple):
    """Some rows of a fused weight: their name in a checkpoint and their number."""

    name: str
    rows: int


class _Slot(NamedTuple):
    """One weight of ours, made of one or several of a checkpoint; ``columns`` 0: a vector."""

    parts: tuple[_Part, ...]
    columns: int

    @property
    def size(self) -> tuple[int, ...]:
        rows = sum(part.rows for part in self.parts)
        return (rows, self.columns) if self.columns else (rows,)


def load_weights(folder: Path, *, dtype: torch.dtype, device: torch.device) -> Weights:
    """The weights of a folder with ``config.json`` and one or several safetensors files.

    Every file is opened and every name, shape and type compared with the config before the first byte is loaded:
    WeightsError, in one line, for what is missing, truncated or of another shape; ConfigError where memory is short.
    """
    config = read_llama_config(folder)
    checkpoint = Checkpoint.open(folder)
    slots = list(_slots(config.shape))
    for slot in slots:
        for part in slot.parts:
            checkpoint.check(part.name, (part.rows, slot.columns) if slot.columns else (part.rows,))
    checkpoint.check_all_used({part.name for slot in slots for part in slot.parts})

    def load(slot: _Slot) -> Tensor:
        whole = torch.empty(slot.size, dtype=dtype, device=device)
        first = 0
        for part in slot.parts:
            whole[first : first + part.rows].copy_(checkpoint.tensor(part.name))
            first += part.rows
        return whole

    with allocating(f"the weights of {folder}", _num_bytes(config.shape, dtype), device):
        return _assemble(config, [load(slot) for slot in slots])


def random_weights(shape: ModelShape, *, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Weights:
    """Weights drawn on the device: the same for the same seed, shape, dtype and kind of device.

    Matrices keep the variance of what passes through them (std 1 / sqrt(inputs)), norms lie around 1. ConfigError for a
    shape that is no Llama, and where memory is short.
    """
    if not shape.gated_mlp or shape.extra_parameters or shape.head_dim % 2 or shape.tp != 1:
        raise ConfigError(f"model '{shape.name}' is no Llama (biases, or another MLP); the executor runs Llamas alone")
    generator = torch.Generator(device).manual_seed(seed)

    def draw(slot: _Slot) -> Tensor:
        drawn = torch.randn(slot.size, dtype=dtype, device=device, generator=generator)
        if not slot.columns:
            return drawn.mul_(0.1).add_(1.0)
        return drawn.mul_(EMBEDDING_STD if slot.parts[0].name == _EMBEDDING else slot.columns**-0.5)

    with allocating(f"the weights of {shape.name}", _num_bytes(shape, dtype), device):
        return _assemble(LlamaConfig(shape), [draw(slot) for slot in _slots(shape)])


_EMBEDDING = "model.embed_tokens.weight"
_PER_LAYER = len(LayerWeights._fields)


def _slots(shape: ModelShape) -> Iterator[_Slot]:
    """Every weight in the order of ``_assemble``: embedding, layers, norm, and the head unless it is tied."""
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield _Slot((_Part(_EMBEDDING, shape.vocab),), hidden)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        q, k, v, o = (f"{at}self_attn.{letter}_proj.weight" for letter in "qkvo")
        gate, up, down = (f"{at}mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
        yield _Slot((_Part(f"{at}input_layernorm.weight", hidden),), 0)
        yield _Slot((_Part(q, queries), _Part(k, keys), _Part(v, keys)), hidden)
        yield _Slot((_Part(o, hidden),), queries)
        yield _Slot((_Part(f"{at}post_attention_layernorm.weight", hidden),), 0)
        yield _Slot((_Part(gate, shape.intermediate), _Part(up, shape.intermediate)), hidden)
        yield _Slot((_Part(down, hidden),), shape.intermediate)
    yield _Slot((_Part("model.norm.weight", hidden),), 0)
    if not shape.tied_head:
        yield _Slot((_Part("lm_head.weight", shape.vocab),), hidden)


def _assemble(config: LlamaConfig, tensors: list[Tensor]) -> Weights:
    end = 1 + config.shape.layers * _PER_LAYER
    layers = tuple(LayerWeights(*tensors[i : i + _PER_LAYER]) for i in range(1, end, _PER_LAYER))
    return Weights(config, tensors[0], layers, tensors[end], tensors[0] if config.shape.tied_head else tensors[end + 1])


def _num_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    return shape.num_parameters * int(dtype.itemsize)
