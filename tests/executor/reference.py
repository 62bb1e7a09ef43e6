"""Random Llamas as `transformers` makes, saves and runs them: the oracle of the executor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 8,
    "max_position_embeddings": 256,
    # Wide enough for logits that differ: the two likeliest never come close to a tie in float32.
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS: dict[str, dict[str, Any]] = {
    "mha": {},
    "mha-tied": {"tie_word_embeddings": True},
    "gqa": {"num_key_value_heads": 2, "head_dim": 16},
    "gqa-tied": {"num_key_value_heads": 3, "tie_word_embeddings": True},
    "llama3-rope": {"num_key_value_heads": 1, "head_dim": 32, "rope_parameters": LLAMA3_ROPE},
}


def save_random(folder: Path, *, shard_bytes: int | None = None, seed: int = 0, **settings: Any) -> Any:
    """A random ``LlamaForCausalLM`` in float32, written to a folder as its users would."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(**(SMALL | settings), attn_implementation="eager")
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # all ones would hide a norm that is left out
                weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder, **({"max_shard_size": shard_bytes} if shard_bytes else {}))
    return model


def greedy(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What the oracle says after a prompt, with no cache of its own: every token from the whole text so far."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(num_tokens):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :]
