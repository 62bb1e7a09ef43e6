"""Shapes out of ``config.json``: the parameters of published models, families by name, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.catalog import model, model_from_config
from policies.core.errors import CatalogError
from sim import simulate

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
OPT = {
    "model_type": "opt",
    "hidden_size": 5120,
    "ffn_dim": 20480,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 5120,
}
GPT2 = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "vocab_size": 50257}
GPTJ = {
    "model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_positions": 2048, "vocab_size": 50400,
    "n_inner": None,
}  # fmt: skip
NEOX = {
    "model_type": "gpt_neox",
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "vocab_size": 50432,
    "max_position_embeddings": 2048,
}
QWEN2 = LLAMA | {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
}  # fmt: skip
QWEN3 = LLAMA | {
    "model_type": "qwen3", "intermediate_size": 12288, "num_hidden_layers": 36, "vocab_size": 151936,
    "max_position_embeddings": 40960, "head_dim": 128,
}  # fmt: skip
MISTRAL = LLAMA | {"model_type": "mistral", "vocab_size": 32000, "max_position_embeddings": 32768}


def written(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama-3-8b"),
        (MISTRAL, "mistral-7b"),
        (QWEN2, "qwen2.5-7b"),
        (QWEN3, "qwen3-8b"),
        (OPT, "opt-13b"),
        (GPT2, "gpt2-xl"),
        (GPTJ, "gpt-j-6b"),
        (NEOX, "gpt-neox-20b"),
    ],
)
def test_a_config_gives_the_shape_of_the_catalog(tmp_path: Path, config: dict[str, object], name: str) -> None:
    shape = model_from_config(written(tmp_path, config | {"_name_or_path": f"someone/{name}"}))
    assert shape == model(name)


def test_without_a_name_it_is_the_folders(tmp_path: Path) -> None:
    (tmp_path / "My-Model").mkdir()
    assert model_from_config(written(tmp_path / "My-Model", LLAMA)).name == "My-Model"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"model_type": "mixtral", "num_local_experts": 8}, "'mixtral' is a mixture of experts; only dense"),
        (LLAMA | {"model_type": "qwen3_moe", "num_experts": 128}, "'qwen3_moe' is a mixture of experts"),
        (LLAMA | {"model_type": "lama"}, "model_type 'lama' is not modelled; known are llama.*did you mean 'llama'"),
        (LLAMA | {"model_type": "mamba"}, "model_type 'mamba' is not modelled; known are llama, mistral, qwen2, qwen3"),
        ({"architectures": []}, "model_type 'None' is not modelled"),
        (LLAMA | {"hidden_size": 0}, "'hidden_size' is 0; it must be a whole number >= 1"),
        (LLAMA | {"hidden_size": None}, "'hidden_size' is None"),
        (LLAMA | {"num_attention_heads": 33, "num_key_value_heads": 33}, "4096 is no multiple of the 33 heads"),
        (OPT | {"word_embed_proj_dim": 512}, "projected embeddings"),
        ([1], "is no JSON object"),
        ("{", "not JSON"),
    ],
)
def test_what_is_no_dense_decoder_is_refused_by_name(tmp_path: Path, config: object, message: str) -> None:
    with pytest.raises(CatalogError, match=message) as caught:
        model_from_config(written(tmp_path, config))
    assert str(caught.value).startswith(f"model.config = {tmp_path}")
    assert "\n" not in str(caught.value)


def test_a_run_takes_a_config_and_says_how_it_times_it(tmp_path: Path) -> None:
    keys = (
        "workload.generator=closed-loop", "workload.concurrency=1", "workload.num_requests=1",
        'workload.prompt={dist="fixed", value=10}', 'workload.output={dist="fixed", value=2}',
        f"model.config={written(tmp_path, QWEN3)}", "hardware.name=rtx4090-24gb",
    )  # fmt: skip
    summary = simulate(overrides=keys).summary
    assert summary["model"] == tmp_path.name
    assert summary["cost_model"]["kind"] == "roofline"
