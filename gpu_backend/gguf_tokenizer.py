"""The byte-level BPE tokenizer inside a GGUF file as ``tokenizer.json`` and ``tokenizer_config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.core.errors import WeightsError

_CONTROL, _USER_DEFINED = 3, 4
"""Token types of GGUF that are found in a text whole, before it is split."""

_SPLITS_DIGITS = {"smollm": True, "gpt-2": False, "default": False}
"""Ways of splitting a text (``tokenizer.ggml.pre``): GPT-2's, in which SmolLM takes each digit by itself."""


def write_tokenizer(fields: Mapping[str, Any], folder: Path, file: Path) -> None:
    """Write both files; WeightsError for a tokenizer of another kind."""
    kind, splits = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or splits not in _SPLITS_DIGITS:
        raise WeightsError(f"{file}: tokenizer {kind!r} with splits {splits!r} is not converted; known is 'gpt2' with"
                           f" {', '.join(_SPLITS_DIGITS)}")  # fmt: skip
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    tokenizer = _tokenizer(fields, tokens, digits=_SPLITS_DIGITS[splits])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        name: tokens[fields[f"tokenizer.ggml.{name}_id"]]
        for name in ("bos_token", "eos_token")
        if f"tokenizer.ggml.{name}_id" in fields
    }
    if "tokenizer.chat_template" in fields:
        settings["chat_template"] = fields["tokenizer.chat_template"]
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _tokenizer(fields: Mapping[str, Any], tokens: list[str], *, digits: bool) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    vocab = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    splits: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if digits:
        splits.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    whole = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(whole)
    if fields.get("tokenizer.ggml.add_bos_token"):
        first = fields["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[first]} $A", special_tokens=[(tokens[first], first)]
        )
    return tokenizer
