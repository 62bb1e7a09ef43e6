"""A Llama: one forward pass over a mixed batch of decode rows and prompt chunks with a paged cache."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gpu_backend.device import Placement
from gpu_backend.model_folder import model_folder
from gpu_backend.ops import Ops
from gpu_backend.step_batch import StepBatch
from gpu_backend.weights import LayerWeights, Weights, load_weights, random_weights
from policies.catalog import ModelShape, model
from policies.core.errors import CatalogError, WeightsError


class LlamaModel:
    """The Llama of ``weights``, computed by ``ops``; it keeps no state between calls.

    Letters as in ``gpu_backend.ops``; in ``emit_E`` and ``logits_EV`` E counts the tokens that are sampled from.
    """

    def __init__(self, shape: ModelShape, weights: Weights, ops: Ops) -> None:
        self.shape = shape
        self.weights = weights
        self.ops = ops
        rope, eps = weights.config.rope, weights.config.rms_norm_eps
        self._cos_sin_PD = rope.cos_sin(shape.head_dim, shape.max_model_len).to(self.device)
        self._eps = eps
        # A layer ends with the norm of what comes next, which shares a pass over memory with the residual's sum.
        self._next_norms_E = [*(layer.input_norm_E for layer in weights.layers[1:]), weights.norm_E]

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.weights.embedding_VE.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache."""
        return self.weights.embedding_VE.dtype

    def forward(self, batch: StepBatch, tokens_RP: Tensor, cache_NL2KSD: Tensor) -> Tensor:
        """Compute the tokens of ``batch``, write their keys and values to the cache; the float32 logits of those that
        emit, ``emit_E`` x V, in that order."""
        ops, last = self.ops, self.shape.layers - 1
        residual_TE = self.weights.embedding_VE[tokens_RP[batch.rows_T, batch.positions_T]]
        x_TE = ops.rms_norm(residual_TE, self.weights.layers[0].input_norm_E, self._eps)
        for number, layer in enumerate(self.weights.layers):
            o_TX = self._attention(batch, x_TE, layer, number, cache_NL2KSD)
            if number == last:  # what follows is needed of the emitting tokens alone
                o_TX, residual_TE = o_TX[batch.emit_E], residual_TE[batch.emit_E]
            x_TE = ops.linear(o_TX, layer.output_EX)
            x_TE, residual_TE = ops.add_rms_norm(x_TE, residual_TE, layer.post_norm_E, self._eps)
            x_TE = ops.linear(ops.silu_mul(ops.linear(x_TE, layer.gate_up_2IE)), layer.down_EI)
            x_TE, residual_TE = ops.add_rms_norm(x_TE, residual_TE, self._next_norms_E[number], self._eps)
        return ops.linear(x_TE, self.weights.head_VE).float()

    def _attention(
        self, batch: StepBatch, x_TE: Tensor, layer: LayerWeights, number: int, cache_NL2KSD: Tensor
    ) -> Tensor:
        """Attention of all heads, T x (H D), before the output matrix."""
        ops, decodes = self.ops, batch.num_decodes
        qkv_TX = ops.linear(x_TE, layer.qkv_XE)
        q_THD = ops.rope_and_write(qkv_TX, self._cos_sin_PD, batch.positions_T, batch.slots_T, cache_NL2KSD, number)
        parts = []
        if decodes:
            q_BHD = q_THD[:decodes]
            parts.append(ops.decode_attention(q_BHD, cache_NL2KSD, number, batch.tables_BM, batch.contexts_B))
        if batch.num_chunks:
            chunks = batch.chunk_tables_CM, batch.starts_C, batch.cu_C1, batch.max_chunk_tokens
            parts.append(ops.prefill_attention(q_THD[decodes:], cache_NL2KSD, number, *chunks))
        o_THD = parts[0] if len(parts) == 1 else torch.cat(parts)
        return o_THD.flatten(1)


def open_model(source: str, where: Placement, *, seed: int = 0) -> LlamaModel:
    """The model of a folder of Hugging Face's layout, or random weights (by ``seed``) in a shape of the catalog.

    UserError, in one line, for an unknown name, a damaged folder, another architecture or too little memory.
    """
    folder = Path(source)
    if folder.exists() or folder.suffix == ".gguf":
        weights = load_weights(model_folder(folder), dtype=where.dtype, device=where.device)
    else:
        weights = random_weights(_shape(source), dtype=where.dtype, device=where.device, seed=seed)
    return LlamaModel(weights.config.shape, weights, where.ops)


def _shape(name: str) -> ModelShape:
    try:
        return model(name)
    except CatalogError as error:
        if "/" in name or "\\" in name:
            raise WeightsError(f"{name}: no such folder") from None
        raise WeightsError(f"{error} (and no folder of that name is here)") from None
