"""transformers' Llama with random float32 weights, and the executor's model with the same."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gpu_backend.device import Placement
from gpu_backend.extras import require
from gpu_backend.model import open_model
from gpu_backend.ops import Ops
from gpu_backend.prompts import prompt_ids
from policies.catalog import ModelShape
from policies.core.request import Request
from sim.config import load_config
from traces.workload.source import build_source

if TYPE_CHECKING:
    from transformers import LlamaConfig

TIE = 1e-4
"""Difference of logits, which are of the order of 1, below which float32 decides by the order of its sums."""

_SEED = 0


def transformers_config(shape: ModelShape, **more: Any) -> LlamaConfig:
    """The same shape in the words of ``transformers``, without special tokens; ``more`` of its settings."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_model_len,
        tie_word_embeddings=shape.tied_head,
        **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **more},
    )


class Oracle:
    """Both models on ``device``; transformers' weights go through a folder, as its users' do."""

    def __init__(self, shape: ModelShape, device: torch.device, ops: Ops) -> None:
        require("transformers", extra="gpu")
        from transformers import LlamaForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.manual_seed(_SEED)
        # Wide enough for logits that differ: in float32 the two likeliest tokens hardly ever tie.
        config = transformers_config(shape, initializer_range=shape.hidden**-0.5, attn_implementation="eager")
        with device:
            self._theirs = LlamaForCausalLM(config).eval().float()
        with torch.no_grad():
            for name, weight in self._theirs.named_parameters():
                if "norm" in name:  # all ones would hide a norm that is left out
                    weight.uniform_(0.5, 1.5)
        with tempfile.TemporaryDirectory() as folder:
            self._theirs.save_pretrained(folder)
            self.model = open_model(str(Path(folder)), Placement(device, torch.float32, ops))

    def texts(
        self, outputs: Mapping[int, Sequence[int]], tables: Mapping[str, Mapping[str, Any]]
    ) -> list[tuple[list[int], list[int]]]:
        """Prompt and answer of each request of a run of these tables."""
        rows = build_source(load_config(tables, ()).workload, self.model.shape.max_model_len).rows()
        found = []
        for number, row in enumerate(rows):
            limit = row.output_tokens if row.max_tokens is None else row.max_tokens
            request = Request(number, 0.0, row.prompt_tokens, limit, segments=row.segments)
            prompt = prompt_ids(request, outputs, self.model.shape.vocab, 0).tolist()
            found.append((prompt, list(outputs[number])))
        return found

    def compare(self, texts: Sequence[tuple[list[int], list[int]]]) -> tuple[float, int]:
        """The least gap between the two likeliest logits, and the tokens that are not the likeliest after all before
        them, or tied with it within ``TIE``. If none is, greedy decoding says the same from the first to the last."""
        least, wrong = float("inf"), 0
        for prompt, answer in texts:
            ids = torch.tensor([prompt + answer[:-1]], device=self._theirs.device)
            with torch.no_grad():
                logits = self._theirs(ids, use_cache=False).logits[0, len(prompt) - 1 :].float().cpu()
            best = logits.topk(2, dim=-1).values
            least = min(least, float((best[:, 0] - best[:, 1]).min()))
            taken = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
            wrong += int((~(taken >= best[:, 0] - TIE)).sum())
        return least, wrong
