"""A GGUF file of a Llama becomes a folder that says the same: weights, config, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")

from gpu_backend.device import placement  # noqa: E402
from gpu_backend.gguf import convert, main  # noqa: E402
from gpu_backend.model import open_model  # noqa: E402
from gpu_backend.tokenizer import Tokenizer  # noqa: E402
from policies.core.errors import WeightsError  # noqa: E402
from tests.executor import small_tokenizer  # noqa: E402
from tests.executor.reference import greedy, save_random  # noqa: E402
from tests.executor.sequences import Sequences  # noqa: E402

SETTINGS = {"vocab_size": 400, "num_key_value_heads": 3, "hidden_size": 96, "head_dim": 16, "intermediate_size": 96}
NAMES = {
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
TOKENIZER = small_tokenizer.trained(digits=True)


def for_neighbours(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of Q or K for a rotary kernel that turns rows 2 i and 2 i + 1 of a head where ours turns i and i + D/2."""
    half = weight.shape[0] // heads // 2
    order = [head * 2 * half + i + part * half for head in range(heads) for i in range(half) for part in (0, 1)]
    return weight[order]


def write_gguf(
    path: Path, oracle: Any, *, quantise: bool = False, change: Callable[[Any], object] | None = None
) -> None:
    writer, config = gguf.GGUFWriter(path, "llama"), oracle.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    vocab = sorted(TOKENIZER.get_vocab(), key=TOKENIZER.token_to_id)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocab)
    writer.add_token_types([3 if token in small_tokenizer.SPECIALS else 1 for token in vocab])
    merges = json.loads(TOKENIZER.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(small_tokenizer.CHAT)
    if change:
        change(writer)
    tied = config.tie_word_embeddings
    for name, weight in oracle.state_dict().items():
        parts = name.split(".")
        if tied and "lm_head" in parts:
            continue
        values = weight.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(parts[-2])
        values = for_neighbours(values, heads) if heads else values
        place = (f"blk.{parts[2]}." if "layers" in parts else "") + f"{NAMES[parts[-2]]}.weight"
        if quantise and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(place, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(place, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def answer(folder: Path, prompt: list[int]) -> list[int]:
    run = Sequences(open_model(str(folder), placement("cpu")))
    run.add("x", prompt)
    run.step(chunks={"x": len(prompt)})
    for _ in range(9):
        run.step(["x"])
    return run.known["x"][len(prompt) :]


@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_model_says_what_the_original_says(tmp_path: Path, tied: bool) -> None:
    oracle = save_random(tmp_path / "original", **SETTINGS, tie_word_embeddings=tied)
    write_gguf(tmp_path / "model.gguf", oracle)
    convert(tmp_path / "model.gguf", tmp_path / "converted")
    shape = open_model(str(tmp_path / "converted"), placement("cpu")).shape
    original = open_model(str(tmp_path / "original"), placement("cpu")).shape
    assert shape._replace(name="") == original._replace(name="")
    prompt = [5, 300, 77, 8, 9, 10, 11]
    assert answer(tmp_path / "converted", prompt) == greedy(oracle, prompt, 10)


def test_quantised_weights_are_near(tmp_path: Path) -> None:
    oracle = save_random(tmp_path / "original", **SETTINGS, tie_word_embeddings=True)
    write_gguf(tmp_path / "model.gguf", oracle, quantise=True)
    convert(tmp_path / "model.gguf", tmp_path / "converted")
    exact, near = (open_model(str(tmp_path / name), placement("cpu")).weights for name in ("original", "converted"))
    for left, right in zip(exact.layers[1], near.layers[1], strict=True):
        assert float((left - right).norm() / left.norm()) < 0.01


def test_the_tokenizer_is_the_same(tmp_path: Path) -> None:
    oracle = save_random(tmp_path / "original", **SETTINGS, tie_word_embeddings=True)
    write_gguf(tmp_path / "model.gguf", oracle)
    convert(tmp_path / "model.gguf", tmp_path / "converted")
    tokenizer = Tokenizer.open(tmp_path / "converted")
    for text in (*small_tokenizer.TEXT, "queue 2026<|im_end|>", "  two  spaces\n"):
        assert tokenizer.encode(text) == TOKENIZER.encode(text).ids
        assert tokenizer.decode(TOKENIZER.encode(text).ids) == TOKENIZER.decode(TOKENIZER.encode(text).ids)
    assert tokenizer.stop_ids == {2}
    assert tokenizer.has_chat_template


def test_a_text_begins_as_the_file_says(tmp_path: Path) -> None:
    oracle = save_random(tmp_path / "original", **SETTINGS, tie_word_embeddings=True)
    write_gguf(tmp_path / "model.gguf", oracle, change=lambda writer: writer.add_add_bos_token(True))
    convert(tmp_path / "model.gguf", tmp_path / "converted")
    assert Tokenizer.open(tmp_path / "converted").encode("full")[0] == 1


def rename(key: str, old: bytes, new: bytes) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        content = path.read_bytes()
        assert old in content, key
        path.write_bytes(content.replace(old, new))

    return change


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "text": (lambda path: path.write_text("hello"), "no whole GGUF file"),
    "empty": (lambda path: path.write_bytes(b""), "no whole GGUF file"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-4_000]), "no whole GGUF file"),
    "header alone": (lambda path: path.write_bytes(path.read_bytes()[:200]), "no whole GGUF file"),
    "missing": (lambda path: path.unlink(), "no such file"),
    "family": (rename("family", b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00qwen2"),
               "architecture 'qwen2'"),
    "layers": (rename("layers", b"llama.block_count", b"llama.block_c0unt"), "llama.block_count is missing"),
    "tensor": (rename("tensor", b"blk.1.ffn_up.weight", b"blk.1.ffn_xp.weight"), "blk.1.ffn_xp.weight is none of"),
    "tokenizer": (rename("tokenizer", b"smollm", b"smallm"), "splits 'smallm' is not converted"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "line"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_cannot_be_converted_leaves_nothing(
    tmp_path: Path, damage: Callable[[Path], object], line: str
) -> None:
    write_gguf(tmp_path / "model.gguf", save_random(tmp_path / "original", **SETTINGS, tie_word_embeddings=True))
    damage(tmp_path / "model.gguf")
    with pytest.raises(WeightsError, match=line) as told:
        convert(tmp_path / "model.gguf", tmp_path / "converted")
    assert "\n" not in str(told.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"model.gguf", "original"}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "model.gguf", save_random(tmp_path / "original", **SETTINGS, tie_word_embeddings=True))
    arguments = [str(tmp_path / "model.gguf"), str(tmp_path / "converted")]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "is there already; name a new folder" in capsys.readouterr().err
    assert main([]) == 2
