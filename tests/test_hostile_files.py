"""Files of other people's making that are no such files: one clear line each, and no figure from a wrong one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from policies.catalog import model_from_config
from policies.core.errors import BatchscopeError, CatalogError, ConfigError, CostFileError, TraceError, UserError
from sim import simulate
from sim.config import load_config
from sim.costs.costfile import read_cost_file
from sim.costs.load import shipped_path
from traces.record.jsonl import read_jsonl
from traces.workload.profile import load_profile
from traces.workload.readers import open_trace

DEEP = "[" * 100_000
LONG_NUMBER = '{"a": ' + "9" * 5000 + "}"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
ONE = {
    "workload": {
        "generator": "constant",
        "rate_per_s": 1,
        "num_requests": 1,
        "prompt": {"dist": "fixed", "value": 10},
        "output": {"dist": "fixed", "value": 2},
    }
}
"""A workload of one request."""


@pytest.mark.parametrize("text", [DEEP, LONG_NUMBER], ids=["deep", "long number"])
@pytest.mark.parametrize(
    ("read", "error"),
    [
        (model_from_config, CatalogError),
        (read_cost_file, CostFileError),
        (lambda path: load_profile(str(path)), TraceError),
        (lambda path: open_trace(str(path)), TraceError),
        (lambda path: list(read_jsonl(path)), UserError),
    ],
    ids=["config.json", "cost file", "profile", "trace", "record"],
)
def test_json_that_python_cannot_read_is_refused_in_one_line(
    tmp_path: Path, text: str, read: Callable[[Path], object], error: type[UserError]
) -> None:
    path = tmp_path / "input.json"
    path.write_text(text + "\n")  # a last line of a record without an end was cut off by a kill, and is left out
    with pytest.raises(error, match=r"input\.json") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert "sys.set_int_max_str_digits" not in str(caught.value)


def config(folder: Path, **changes: object) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA | changes))
    return str(path)


def test_a_config_that_bears_the_name_of_a_measured_model_is_not_timed_as_that_model(tmp_path: Path) -> None:
    same = simulate(ONE, overrides=[f"model.config={config(tmp_path / 'llama-2-7b')}"])
    assert same.summary["cost_model"]["name"] == "a100-80gb_llama-2-7b"
    wider = config(tmp_path / "llama-2-7b", hidden_size=8192, num_attention_heads=64)
    other = simulate(ONE, overrides=[f"model.config={wider}"])
    assert other.summary["cost_model"]["kind"] == "roofline"
    with pytest.raises(CostFileError, match="whose sizes are not those of the catalog"):
        simulate(ONE, overrides=[f"model.config={wider}", "hardware.cost_model=calibrated"])


def test_what_a_config_says_and_the_shape_leaves_out_is_told(tmp_path: Path) -> None:
    path = config(
        tmp_path,
        model_type="mistral",
        quantization_config={"quant_method": "gptq", "bits": 4},
        sliding_window=1024,
    )
    notes = "\n".join(simulate(ONE, overrides=[f"model.config={path}"]).summary["notes"])
    assert "its weights are quantised by gptq, but have 16 bits here; set model.weight_bits" in notes
    assert "attention over the last 1,024 tokens (sliding_window) is not modelled" in notes
    said = "\n".join(simulate(ONE, overrides=[f"model.config={path}", "model.weight_bits=4"]).summary["notes"])
    assert "quantised by" not in said
    unused = config(tmp_path, model_type="qwen2", sliding_window=1024, use_sliding_window=False)
    assert "sliding_window" not in "\n".join(simulate(ONE, overrides=[f"model.config={unused}"]).summary["notes"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 5}, "32 heads cannot share 5 KV heads evenly"),
        ({"num_key_value_heads": 64}, "32 heads cannot share 64 KV heads evenly"),
        ({"tie_word_embeddings": "false"}, "'tie_word_embeddings' is 'false'; it must be true or false"),
    ],
)
def test_sizes_that_no_model_has_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        model_from_config(Path(config(tmp_path, **changes)))


def test_names_out_of_files_fit_in_a_line(tmp_path: Path) -> None:
    shape = model_from_config(Path(config(tmp_path, _name_or_path="a\nb\x1b[31m\u202e" + "x" * 5000)))
    assert shape.name.startswith("ab[31mx")
    assert len(shape.name) == 80
    result = simulate(ONE, overrides=[f"model.config={config(tmp_path, _name_or_path='x' * 5000)}"])
    assert result.summary["model"] == "x" * 80


def test_a_pool_that_no_machine_can_list_is_refused(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 64, "intermediate_size": 1, "num_hidden_layers": 1, "num_attention_heads": 64,
        "num_key_value_heads": 1, "vocab_size": 1,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"KV blocks, more than are simulated; set engine\.num_gpu_blocks"):
        simulate(ONE, overrides=[f"model.config={config(tmp_path, **sizes)}"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("held_out", {"step": "good"}, "'held_out.step.median' is missing"),
        ("held_out", {"step": [0.1]}, "'held_out.step.median' is missing"),
        ("held_out", {"step": {"median": "x", "p95": 1}}, "'held_out.step.median' is 'x'; it must be a number"),
        ("tp", 1.5, "'tp' is 1.5; it must be a whole number"),
        ("terms.swap.bytes_per_s", 0, "it must be a number above 0"),
        ("terms.prefill.token_s", 1e300, "it must be at most 1e\\+06 seconds"),
        ("terms.head", {"num_rows": [1], "seconds": [1e308]}, "must hold numbers of at most 1e\\+06 seconds"),
        ("terms.head", {"num_rows": [10**400], "seconds": [1]}, "must hold positive integers in rising order"),
    ],
)
def test_figures_that_no_cost_file_holds_are_refused(tmp_path: Path, key: str, value: object, message: str) -> None:
    data = json.loads(shipped_path("llama-2-7b", "a100-80gb").read_text())
    place = data
    *parents, last = key.split(".")
    for parent in parents:
        place = place[parent]
    place[last] = value
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CostFileError, match=message):
        read_cost_file(path)


@pytest.mark.parametrize("number", ["9" * 5000, "1e999", "²", "abc"])
def test_numbers_of_a_metrics_page_that_are_none_are_told_and_left_out(tmp_path: Path, number: str) -> None:
    page = tmp_path / "metrics"
    page.write_text(f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{number}"}} 1.0\n')
    remarks: list[str] = []
    loaded = load_config(ONE, (), remarks, metrics_page=str(page))
    assert loaded.engine.num_gpu_blocks is None
    assert "num-gpu-blocks is '" in "\n".join(remarks)
    assert "which is no number here; left out" in "\n".join(remarks)


def test_a_wrong_block_size_beside_a_log_is_refused_as_without_one(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("INFO GPU KV cache size: 118,288 tokens\n")
    with pytest.raises(BatchscopeError, match=r'engine\.block_size = "x": give a whole number'):
        load_config(ONE, ["engine.block_size=x"], engine_log=str(log))


@pytest.mark.parametrize("priority", ["1e99", str(1 << 63), f"-{1 << 63}"])
def test_priorities_beyond_the_record_are_refused_by_row(tmp_path: Path, priority: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"arrival_s,prompt_tokens,output_tokens,priority\n0,10,5,0\n1,10,5,{priority}\n")
    with pytest.raises(TraceError, match=r"line 3, column priority: .* is not within -2147483648 and 2147483648"):
        simulate(trace=str(trace))
