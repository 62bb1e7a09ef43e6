"""A byte-level BPE tokenizer as GPT-2 has, trained on a few sentences in no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXT = ["The batch is full, the queue is long.", "Blocks 12 and 34 are free again; é, 漢, 🙂 are bytes."] * 4
CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def trained(*, digits: bool = False) -> Any:
    """The tokenizer; with ``digits`` each digit is a token, as SmolLM has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    splits: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if digits:
        splits.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def write(folder: Path, tokenizer: Any, **settings: Any) -> None:
    """``tokenizer.json`` and ``tokenizer_config.json``."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    written = {"eos_token": "<|im_end|>", "chat_template": CHAT} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
