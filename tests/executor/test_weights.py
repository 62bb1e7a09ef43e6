"""Weights from a folder: whole or in shards, in any dtype; what is wrong is one line, before a byte is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor, dtype

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from gpu_backend.device import placement  # noqa: E402
from gpu_backend.llama_config import read_llama_config  # noqa: E402
from gpu_backend.model import open_model  # noqa: E402
from gpu_backend.weights import Weights, load_weights, random_weights  # noqa: E402
from policies.catalog import model, models  # noqa: E402
from policies.core.errors import ConfigError, UserError, WeightsError  # noqa: E402
from tests.executor.reference import save_random  # noqa: E402
from tests.executor.sequences import Sequences  # noqa: E402

CPU = torch.device("cpu")


def load(folder: Path, dtype: dtype = torch.float32) -> Weights:
    return load_weights(folder, dtype=dtype, device=CPU)


def tensors(weights: Weights) -> list[Tensor]:
    return [weights.embedding_VE, weights.norm_E, weights.head_VE, *(one for layer in weights.layers for one in layer)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_random(tmp_path)
    return tmp_path


def edit_config(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    held = load_file(folder / "model.safetensors")
    change(held)
    save_file(held, folder / "model.safetensors")


def test_shards_are_the_same_model(tmp_path: Path, folder: Path) -> None:
    save_random(tmp_path / "shards", shard_bytes=40_000)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 3
    for whole, sharded in zip(tensors(load(folder)), tensors(load(tmp_path / "shards")), strict=True):
        assert torch.equal(whole, sharded)


def test_a_folder_in_half_precision_is_converted(tmp_path: Path, folder: Path) -> None:
    edit_tensors(folder, lambda held: held.update({name: one.to(torch.bfloat16) for name, one in held.items()}))
    rounded = tensors(load(folder, torch.float32))
    assert all(one.dtype is torch.float32 for one in rounded)
    save_random(tmp_path / "exact")
    exact = tensors(load(tmp_path / "exact", torch.bfloat16))
    assert all(torch.equal(one.to(torch.bfloat16), other) for one, other in zip(rounded, exact, strict=True))


def test_what_older_files_hold_beside_the_weights_is_left_out(tmp_path: Path) -> None:
    save_random(tmp_path, tie_word_embeddings=True)
    before = tensors(load(tmp_path))
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "lm_head.weight": torch.ones(256, 48)}
    edit_tensors(tmp_path, lambda held: held.update(table))
    assert all(torch.equal(one, other) for one, other in zip(before, tensors(load(tmp_path)), strict=True))


def test_a_tied_head_is_the_embedding_and_counted_once(tmp_path: Path) -> None:
    save_random(tmp_path / "tied", tie_word_embeddings=True)
    save_random(tmp_path / "untied")
    tied, untied = load(tmp_path / "tied"), load(tmp_path / "untied")
    assert tied.head_VE is tied.embedding_VE
    assert untied.num_bytes - tied.num_bytes == untied.head_VE.nbytes
    for weights in (tied, untied):
        assert weights.num_bytes == weights.config.shape.num_parameters * 4


@pytest.mark.parametrize("written", [
    {"rope_theta": 500_000.0, "rope_parameters": None},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
])  # fmt: skip
def test_old_and_new_ways_to_write_the_rotary_base(folder: Path, written: dict[str, Any]) -> None:
    edit_config(folder, **written)
    assert read_llama_config(folder).rope.theta == 500_000.0


def test_rotary_scaling_of_older_files(folder: Path) -> None:
    scaling = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    edit_config(folder, rope_parameters=None, rope_scaling=scaling | {"original_max_position_embeddings": 8192})
    rope = read_llama_config(folder).rope
    assert (rope.factor, rope.original_positions) == (8.0, 8192)
    # Llama 3.1's highest frequencies stay, its lowest are an eighth.
    plain, scaled = rope._replace(factor=1.0).cos_sin(128, 2), rope.cos_sin(128, 2)
    assert torch.equal(plain[1, 64:80], scaled[1, 64:80])
    assert torch.allclose(plain[1, 127] / 8, scaled[1, 127])


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "family": ({"model_type": "mistral"}, "model_type 'mistral'.*LlamaForCausalLM alone"),
    "unknown family": ({"model_type": "bloom"}, "model_type 'bloom' is not modelled"),
    "routed": ({"num_local_experts": 8}, "mixture of experts"),
    "task": ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification.*alone"),
    "biases": ({"attention_bias": True}, "'attention_bias' is set"),
    "mlp biases": ({"mlp_bias": True}, "'mlp_bias' is set"),
    "quantised": ({"quantization_config": {"quant_method": "awq"}}, "'quantization_config' is set"),
    "activation": ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
    "scaling": ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rotary scaling 'yarn' is not supported"),
    "no factor": ({"rope_parameters": {"rope_type": "llama3"}}, "'original_max_position_embeddings' is None"),
    "no object": ({"rope_parameters": "llama3"}, "must be an object"),
    "epsilon": ({"rms_norm_eps": -1}, "'rms_norm_eps' is -1"),
    "odd heads": ({"head_dim": 7}, "head_dim 7 is odd"),
    "fewer layers": ({"num_hidden_layers": 1}, r"tensor model.layers.1.\S+ has no place in the Llama"),
    "layers": ({"num_hidden_layers": 3}, r"tensor model.layers.2.input_layernorm.weight is missing"),
    "vocabulary": ({"vocab_size": 300}, r"model.embed_tokens.weight is \[256, 48\]; config.json asks for \[300, 48\]"),
    "KV heads": ({"num_key_value_heads": 3}, r"k_proj.weight is \[48, 48\]; config.json asks for \[24, 48\]"),
}


@pytest.mark.parametrize(("settings", "line"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_does_not_fit_is_one_line(folder: Path, settings: dict[str, Any], line: str) -> None:
    edit_config(folder, **settings)
    with pytest.raises(WeightsError, match=line) as told:
        load(folder)
    assert str(folder) in str(told.value)
    assert "\n" not in str(told.value)


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def cut_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def as_integers(folder: Path) -> None:
    edit_tensors(folder, lambda held: held.update({"model.norm.weight": torch.ones(48, dtype=torch.int8)}))


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json: no such file"),
    "config is text": (lambda folder: (folder / "config.json").write_text("hello"), "not JSON"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "only safetensors are loaded"),
    "pickle": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "but pytorch_model.bin; only safetensors are loaded",
    ),
    "truncated": (cut, "no whole safetensors file"),
    "truncated header": (cut_header, "no whole safetensors file"),
    "empty": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "no whole safetensors file"),
    "no head": (
        lambda folder: edit_tensors(folder, lambda held: held.pop("lm_head.weight")),
        "tensor lm_head.weight is missing",
    ),
    "a bias": (
        lambda folder: edit_tensors(folder, lambda held: held.update({"model.norm.bias": torch.ones(48)})),
        "model.norm.bias has no place in the Llama",
    ),
    "integers": (as_integers, "model.norm.weight is of type I8"),
}


@pytest.mark.parametrize(("damage", "line"), FILES.values(), ids=FILES)
def test_a_damaged_file_is_one_line(folder: Path, damage: Callable[[Path], object], line: str) -> None:
    damage(folder)
    with pytest.raises(WeightsError, match=line) as told:
        load(folder)
    assert "\n" not in str(told.value)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    save_random(tmp_path, shard_bytes=40_000)
    return tmp_path


def test_a_missing_shard_is_named(shards: Path) -> None:
    last = sorted(shards.glob("*.safetensors"))[-1]
    last.unlink()
    with pytest.raises(WeightsError, match=f"{last.name}: no such file, but .* names it"):
        load(shards)


def test_a_shard_without_its_tensor_is_named(shards: Path) -> None:
    first, second = sorted(shards.glob("*.safetensors"))[:2]
    first.write_bytes(second.read_bytes())
    with pytest.raises(WeightsError, match=rf"{first.name}: tensor \S+ is missing"):
        load(shards)


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense", '{"weight_map": [1]}'])
def test_a_damaged_index_is_one_line(shards: Path, text: str) -> None:
    (shards / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match="'weight_map' of files"):
        load(shards)


def test_sources_that_are_no_folder(tmp_path: Path) -> None:
    where = placement("cpu")
    (tmp_path / "file.safetensors").touch()
    for source, line in (
        (str(tmp_path / "nowhere"), "no such folder"),
        (str(tmp_path / "file.safetensors"), "name the folder"),
        ("model.gguf", "python -m gpu_backend.gguf model.gguf FOLDER"),
        ("tinny", "did you mean 'tiny'"),
        ("opt-13b", "no Llama"),
    ):
        with pytest.raises(UserError, match=line):
            open_model(source, where)


def test_a_model_larger_than_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(ConfigError, match=r"out of memory: the weights of gpt-like take .* GB free") as told:
        random_weights(model("llama-2-70b")._replace(name="gpt-like", layers=8_000), dtype=torch.float32, device=CPU)
    assert "\n" not in str(told.value)


def test_random_weights_follow_from_the_seed_alone() -> None:
    shape = model("tiny")
    first, again, other = (random_weights(shape, dtype=torch.float32, device=CPU, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(tensors(first), tensors(again), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(tensors(first), tensors(other), strict=True))
    assert first.num_bytes == shape.num_parameters * 4


def test_a_random_model_says_different_things() -> None:
    """Answers that repeat a token would hide a cache that is wrong."""
    run = Sequences(open_model("tiny", placement("cpu")))
    said = []
    for first in range(6):
        run.add("x", [first, 7, 11])
        run.step(chunks={"x": 3})
        for _ in range(15):
            run.step(["x"])
        said.append(tuple(run.known["x"][3:]))
        run.release("x")
    assert len(set(said)) == 6
    assert all(len(set(tokens)) > 3 for tokens in said)


def test_small_shapes_are_those_of_llama2_c() -> None:
    """Parameters of its model table: 15M and 110M, the head tied to the embedding."""
    assert model("15m").num_parameters == 15_191_712
    assert model("110m").num_parameters == 109_529_856
    assert {"tiny", "15m", "110m"} <= {shape.name for shape in models()}
