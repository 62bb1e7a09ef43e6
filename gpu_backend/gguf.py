"""A Llama in a GGUF file as a folder of Hugging Face's layout, weights in full precision:

    python -m gpu_backend.gguf MODEL.gguf FOLDER

llama.cpp's converter reorders the rows of Q and K for its own rotary kernel, which turns neighbours; that is undone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_backend.extras import require
from gpu_backend.gguf_tokenizer import write_tokenizer
from policies.core.errors import UserError, WeightsError

_SHARD_BYTES = 2 << 30

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(file: Path, folder: Path) -> None:
    """Write ``config.json``, the weights in float32 and the tokenizer of ``file`` to a new folder.

    WeightsError, in one line, for what is no GGUF, no plain Llama, damaged, or a folder that exists; the folder appears
    when it is complete.
    """
    require("gguf", "safetensors", "tokenizers", extra="gguf")
    if folder.exists():
        raise WeightsError(f"{folder}: is there already; name a new folder")
    fields, tensors = _read(file)
    config = _config(fields, tensors, file)
    unfinished = folder.with_name(folder.name + ".unfinished")
    rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        _write_json(unfinished / "config.json", config)
        write_tokenizer(fields, unfinished, file)
        _write_weights(_renamed(tensors, config, file), unfinished)
        unfinished.rename(folder)
    finally:
        rmtree(unfinished, ignore_errors=True)


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields and tensors by name."""
    from gguf import GGUFReader

    if not file.is_file():
        raise WeightsError(f"{file}: no such file")
    try:
        reader = GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OSError, TypeError) as error:
        why = " ".join(str(error).split())
        raise WeightsError(f"{file}: no whole GGUF file ({why}); get it again") from None
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def _config(fields: Mapping[str, Any], tensors: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """``config.json`` of what the file's ``llama.*`` fields say."""
    family = fields.get("general.architecture")
    if family != "llama" or fields.get("llama.expert_count"):
        raise WeightsError(f"{file}: architecture {family!r}; only dense Llamas are converted")
    if "llama.rope.scaling.type" in fields or "rope_freqs.weight" in tensors:
        raise WeightsError(f"{file}: scaled rotary frequencies are not converted; get the model's safetensors folder")
    if "token_embd.weight" not in tensors:
        raise WeightsError(f"{file}: tensor token_embd.weight is missing; get the file again")

    def field(key: str, default: Any = None) -> Any:
        value = fields.get(f"llama.{key}", default)
        if value is None:
            raise WeightsError(f"{file}: field llama.{key} is missing; get the file again")
        return value

    heads, hidden = field("attention.head_count"), field("embedding_length")
    known = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("attention.head_count_kv", heads),
        "head_dim": field("attention.key_length", hidden // heads),
        "vocab_size": int(tensors["token_embd.weight"].shape[-1]),
        "max_position_embeddings": field("context_length"),
        # Written as float32: 9.999999747e-06 was 1e-05.
        "rms_norm_eps": float(f"{field('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(field("rope.freq_base", 10_000.0)),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "float32",
    }
    names = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    ids = {ours: fields.get(f"tokenizer.ggml.{theirs}") for ours, theirs in names.items()}
    return known | {key: value for key, value in ids.items() if value is not None}


def _renamed(
    tensors: Mapping[str, Any], config: Mapping[str, Any], file: Path
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Tensors by Hugging Face's names, dequantised, one at a time."""
    from gguf.quants import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in tensors.items():
        place, kind = _OUTSIDE.get(name), ""
        if place is None:
            kind = name.split(".")[2] if name.startswith("blk.") and name.endswith(".weight") else ""
            if kind not in _INSIDE:
                raise WeightsError(f"{file}: tensor {name} is none of a plain Llama's; only those are converted")
            place = f"model.layers.{name.split('.')[1]}.{_INSIDE[kind]}.weight"
        try:
            values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except (NotImplementedError, ValueError) as error:
            raise WeightsError(f"{file}: tensor {name} cannot be dequantised ({error})") from None
        yield place, unpermute(values, heads[kind]) if kind in heads else values


def unpermute(weight_OI: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a Q or K matrix back in the order in which element i of a head turns with i + D/2, not with i + 1."""
    outputs, inputs = weight_OI.shape
    by_pair = weight_OI.reshape(heads, outputs // heads // 2, 2, inputs)
    return np.ascontiguousarray(by_pair.swapaxes(1, 2).reshape(outputs, inputs))


def _write_weights(tensors: Iterator[tuple[str, NDArray[np.float32]]], folder: Path) -> None:
    """In files of about 2 GiB, so that no more than that is in memory at once, and an index."""
    from safetensors.numpy import save_file

    shard: dict[str, NDArray[np.float32]] = {}
    places: dict[str, str] = {}
    count = 0

    def flush() -> None:
        nonlocal count
        count += 1
        name = f"model-{count:05}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, values in tensors:
        shard[name] = values
        if sum(held.nbytes for held in shard.values()) >= _SHARD_BYTES:
            flush()
    if shard:
        flush()
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Convert; returns the exit code."""
    if len(arguments) != 2:
        print("usage: python -m gpu_backend.gguf MODEL.gguf FOLDER", file=sys.stderr)
        return 2
    file, folder = map(Path, arguments)
    try:
        convert(file, folder)
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"Error: {folder}: cannot be written ({error.strerror or error})", file=sys.stderr)
        return 2
    print(f"{folder}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
