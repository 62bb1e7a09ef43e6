"""vLLM's command line: what it sets, what has no effect, what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import ConfigError
from policies.presets import presets
from sim.config import RunConfig, load_config
from sim.engine_args import parse_command
from sim.engine_flags import (
    HARMLESS,
    NOT_MODELLED,
    ONLY,
    PER_PRESET,
    SWITCHES,
    UNTIMED,
    VALUES,
    known_names,
    meaning_of,
)
from tests.command import batchscope, chat, message_of

WORKLOAD = {"trace": "own.csv"}


def loaded(arguments: str, *overrides: str, **flags: object) -> tuple[RunConfig, list[str], list[str]]:
    """The configuration, the remarks, and the settings that were taken."""
    remarks: list[str] = []
    taken: list[str] = []
    config = load_config({"workload": WORKLOAD}, overrides, remarks, taken=taken, vllm_args=arguments, **flags)
    return config, remarks, taken


def said(arguments: str, *overrides: str, **flags: object) -> str:
    with pytest.raises(ConfigError) as error:
        loaded(arguments, *overrides, **flags)
    return str(error.value)


@pytest.mark.parametrize(
    ("arguments", "preset", "keys"),
    [
        ("--max-num-seqs 128 --enable-chunked-prefill", "vllm-0.11",
         {"max_num_seqs": 128, "enable_chunked_prefill": True}),
        ("--max_num_seqs=128 --no-enable-prefix-caching", "vllm-0.11",
         {"max_num_seqs": 128, "enable_prefix_caching": False}),
        ("--max-num-seqs 1 --max-num-seqs 2", "vllm-0.11", {"max_num_seqs": 2}),
        ("--max-model-len 4k --max-num-batched-tokens 4K", "vllm-0.11",
         {"max_model_len": 4000, "max_num_batched_tokens": 4096}),
        ("--max-model-len auto", "vllm-0.11", {"max_model_len": None}),
        ("--num-gpu-blocks-override 777 --block-size 32", "vllm-0.11", {"num_gpu_blocks": 777, "block_size": 32}),
        ("--gpu-memory-utilization 0.85", "vllm-0.11", {"gpu_memory_utilization": 0.85}),
        ("--swap-space 1.5 --preemption-mode swap", "vllm-0.6",
         {"swap_space_bytes": 3 << 29, "preemption_mode": "swap"}),
        ("--enable-chunked-prefill false --max-num-seqs 7", "vllm-0.6",
         {"enable_chunked_prefill": False, "max_num_seqs": 7}),
        ("--max-paddings 99", "vllm-0.2.7", {"max_paddings": 99}),
        ("--no-scheduler-reserve-full-isl --watermark 0.02", "vllm-0.33",
         {"scheduler_reserve_full_isl": False, "watermark": 0.02}),
        ("--long-prefill-token-threshold 512", "vllm-0.33", {"long_prefill_token_threshold": 512}),
        ("--scheduling-policy priority", "vllm-0.11", {"preset": "vllm-0.11-priority"}),
        ("--scheduling-policy priority", "vllm-0.11-priority", {"preset": "vllm-0.11-priority"}),
        ("--scheduling-policy fcfs", "vllm-0.11", {"preset": "vllm-0.11"}),
        ("--num-scheduler-steps 8 --multi-step-stream-outputs False", "vllm-0.6",
         {"preset": "vllm-0.6-multi-step", "num_scheduler_steps": 8}),
        ("--num-scheduler-steps 8", "vllm-0.6-multi-step",
         {"preset": "vllm-0.6-multi-step", "num_scheduler_steps": 8}),
        ("--num-scheduler-steps 1 --multi-step-stream-outputs", "vllm-0.6",
         {"preset": "vllm-0.6", "num_scheduler_steps": None}),
        ("--swap-space 4 --preemption-mode swap", "vllm-0.11", {"swap_space_bytes": None, "preemption_mode": None}),
        ("--no-enable-prefix-caching", "vllm-0.6", {"enable_prefix_caching": None}),
        ("VLLM_X=1 /opt/vllm serve meta-llama/Llama-2-7b-hf --max-num-seqs \\\n 9", "vllm-0.11", {"max_num_seqs": 9}),
        ("python3 -m vllm.entrypoints.openai.api_server --max-num-seqs 9", "vllm-0.11", {"max_num_seqs": 9}),
    ],
)  # fmt: skip
def test_arguments_and_the_keys_they_set(arguments: str, preset: str, keys: dict[str, object]) -> None:
    config, _, _ = loaded(arguments, policy=preset)
    assert {name: getattr(config.engine, name) for name in keys} == keys


@pytest.mark.parametrize(
    ("arguments", "section", "key", "value"),
    [
        ("-tp 2", "hardware", "tp", 2),
        ("--tensor_parallel_size=4", "hardware", "tp", 4),
        ("--kv-cache-dtype fp8_e5m2", "model", "kv_bits", 8),
        ("--kv-cache-dtype auto", "model", "kv_bits", 16),
        ("--quantization awq_marlin", "model", "weight_bits", 4),
        ("-q fp8", "model", "weight_bits", 8),
        ("--model meta-llama/Llama-2-13b-chat-hf", "model", "name", "llama-2-13b"),
        ("--model /models/Meta-Llama-3-8B-Instruct/", "model", "name", "llama-3-8b"),
        ("--model Qwen/Qwen2.5-7B-Instruct", "model", "name", "qwen2.5-7b"),
        ("vllm serve mistralai/Mistral-7B-Instruct-v0.2 --port 80", "model", "name", "mistral-7b"),
    ],
)
def test_arguments_of_model_and_card(arguments: str, section: str, key: str, value: object) -> None:
    config, _, _ = loaded(arguments)
    assert getattr(getattr(config, section), key) == value


def test_everything_that_is_taken_or_not_is_said() -> None:
    config, remarks, taken = loaded(
        "--max-num-seqs 128 --host 0.0.0.0 --port 80 --served-model-name a b --enforce-eager -O3 --seed -1"
    )
    assert config.engine.max_num_seqs == 128
    assert taken == ["engine.max_num_seqs = 128 (--vllm-args --max-num-seqs 128)"]
    assert remarks == [
        "taken from your engine: engine.max_num_seqs = 128 (--vllm-args --max-num-seqs 128)",
        "--vllm-args: without effect here: --host, --port, --served-model-name, --seed",
        "steps are timed as without --enforce-eager, --optimization-level 3, whose effect is not modelled",
    ]


def test_explicit_keys_stay_and_the_contradiction_is_said() -> None:
    config, remarks, taken = loaded(
        "--max-num-seqs 128 --block-size 32", "engine.max_num_seqs=64", "engine.block_size=32"
    )
    assert config.engine.max_num_seqs == 64
    assert taken == []
    assert remarks == ["engine.max_num_seqs = 64 stays, although --vllm-args --max-num-seqs 128 says 128"]


def test_a_model_that_the_catalog_lacks_is_said() -> None:
    config, remarks, _ = loaded("--model big/Unknown-9B")
    assert config.model.name == "llama-2-7b"
    assert remarks == [
        "--vllm-args --model big/Unknown-9B: model big/Unknown-9B is none of the catalog by that name, llama-2-7b is "
        "simulated; give model.name or model.config"
    ]
    assert loaded("--model big/Unknown-9B", model="llama-2-13b")[1] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max-num-seq 3", "--max-num-seq: no argument of vLLM that is known here; did you mean '--max-num-seqs'?"),
        ("--foo 3", "--foo: no argument of vLLM that is known here"),
        ("--no-max-num-seqs 3", "--no-max-num-seqs 3: is a switch; leave the value out"),
        ("--max-num-seqs", "--max-num-seqs: needs a value"),
        ("--max-num-seqs many", "--max-num-seqs many: is no value that it takes here; give engine.max_num_seqs"),
        ("--block-size 1.5", "--block-size 1.5: is no value that it takes here; give engine.block_size"),
        ("--quantization squeeze", "--quantization squeeze: is no value that it takes here; give model.weight_bits"),
        ("-x 3", "-x: no argument of vLLM that is known here; write it out with two dashes"),
        ("--host a b --max-num-seqs 3 c",
         "--max-num-seqs 3 c: is no value that it takes here; give engine.max_num_seqs"),
        ("--enable-prefix-caching yes", "vllm_args: 'yes' follows no argument that takes it; quote values with spaces"),
        ("--max-num-seqs '3", "vllm_args: no closing quotation; close the quotes"),
        ("--speculative-config '{\"method\": \"mtp\"}'",
         '--speculative-config {"method": "mtp"}: speculative decoding is not modelled'),
        ("--enable-lora", "--enable-lora: LoRA is not modelled"),
        ("--async-scheduling", "--async-scheduling: asynchronous scheduling is not modelled: each step sees the tokens"
         " of the one before"),
        ("-pp 2", "--pipeline-parallel-size 2: pipeline stages are not modelled"),
        ("--dtype float32", "--dtype float32: numbers of the model have 16 bits here; for fewer see --quantization"),
        ("--scheduling-policy prio", "--scheduling-policy prio: is none of fcfs, priority; did you mean 'priority'?"),
        ("--max-paddings 9", "--max-paddings 9: preset vllm-0.11 does not model it; presets that have it: vllm-0.2.7,"
         " vllm-0.2.7-swap"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments: str, message: str) -> None:
    assert said(arguments) == message


@pytest.mark.parametrize(
    ("arguments", "preset", "message"),
    [
        ("--enable-prefix-caching", "vllm-0.6",
         "--enable-prefix-caching: preset vllm-0.6 does not model it; presets that have it: vllm-0.11, "
         "vllm-0.11-priority, vllm-0.33, vllm-0.33-priority, vllm-0.33-async"),
        ("--scheduling-policy fcfs", "vllm-0.11-priority",
         "--scheduling-policy fcfs: preset vllm-0.11-priority serves by priority"),
        ("--scheduling-policy priority", "vllm-0.2.7",
         "--scheduling-policy priority: preset vllm-0.2.7 has no variant by priority"),
        ("--num-scheduler-steps 8", "vllm-0.11",
         "--num-scheduler-steps 8: preset vllm-0.11 does not model it; presets that have it: vllm-0.6-multi-step"),
        ("--num-scheduler-steps many", "vllm-0.6",
         "--num-scheduler-steps many: is no value that it takes here; give a count"),
        ("--multi-step-stream-outputs true --num-scheduler-steps 8", "vllm-0.6",
         "--multi-step-stream-outputs: the tokens of the steps of a plan come together here"),
        ("--num-scheduler-steps 8 --enable-chunked-prefill", "vllm-0.6",
         "--enable-chunked-prefill: preset vllm-0.6-multi-step does not model it; presets that have it: "
         "vllm-0.11, vllm-0.11-priority, vllm-0.33, vllm-0.33-priority, vllm-0.33-async, vllm-0.6, vllm-0.6-chunked, "
         "vllm-0.6-swap, vllm-0.6-priority"),
        ("--max-num-seqs 3", "sglang-0.4.9",
         "engine.preset = 'sglang-0.4.9': is SGLang's; arguments, logs and pages of vLLM are for presets of vLLM, such "
         "as vllm-0.11"),
    ],
)  # fmt: skip
def test_what_a_preset_lacks(arguments: str, preset: str, message: str) -> None:
    assert said(arguments, policy=preset) == message


def test_an_explicit_key_takes_the_place_of_a_value_that_says_too_little() -> None:
    config, _, _ = loaded("--quantization compressed-tensors --max-num-seqs 3", "model.weight_bits=8")
    assert (config.model.weight_bits, config.engine.max_num_seqs) == (8, 3)


def test_values_out_of_range_name_the_key() -> None:
    assert said("--max-num-seqs 0").startswith("engine.max_num_seqs = 0: ")
    assert said("--gpu-memory-utilization 1.5").startswith("engine.gpu_memory_utilization = 1.5: ")


def test_an_unknown_preset_is_refused_as_ever() -> None:
    assert loaded("--max-num-seqs 3", preset="vlm-0.11")[0].engine.preset == "vlm-0.11"


def test_no_argument_has_two_meanings() -> None:
    groups: list[Any] = [VALUES, SWITCHES, ONLY, NOT_MODELLED, UNTIMED, HARMLESS, PER_PRESET]
    names = [name for group in groups for name in group]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "preset", [preset for preset in presets() if preset.system == "vLLM"], ids=lambda p: str(p.name)
)
def test_every_argument_means_something_to_every_preset(preset: Any) -> None:
    for name in [*VALUES, *SWITCHES, *ONLY, *NOT_MODELLED, *UNTIMED, *HARMLESS, *PER_PRESET]:
        assert meaning_of(name, None, preset) is not None


@given(text=st.text(max_size=40) | st.lists(st.sampled_from(["--max-num-seqs", "--host", "-tp", "3", "=", "true", "a b",
       "--no-enable-lora", "--x", "vllm", "serve", "'"]), max_size=6).map(" ".join))  # fmt: skip
def test_any_text_is_read_or_refused_in_a_line(text: str) -> None:
    try:
        names = [name for name, _ in parse_command(text)]
    except ConfigError:
        names = []
    assert set(names) <= set(known_names())


@pytest.mark.usefixtures("in_empty_folder")
def test_a_run_with_arguments_keeps_them_in_its_run_toml() -> None:
    workload = chat(8.0, 20)
    ended = batchscope("run", *workload, "--vllm-args", "--max-num-seqs 5 --no-enable-prefix-caching", "--out", "a")
    assert ended.exit_code == 0, ended
    assert ended.stderr.splitlines() == [
        "note: engine.max_num_seqs = 5 (--vllm-args --max-num-seqs 5)",
        "note: engine.enable_prefix_caching = false (--vllm-args --no-enable-prefix-caching)",
    ]
    again = batchscope("run", "a/run.toml", "--json")
    assert again.stderr == ""
    assert again.summary["config"]["engine"]["vllm_args"] == "--max-num-seqs 5 --no-enable-prefix-caching"
    assert again.summary["config"]["parameters"]["max_num_seqs"] == 5


@pytest.mark.usefixtures("in_empty_folder")
def test_mistakes_on_the_command_line_end_in_one_line() -> None:
    assert (
        message_of("run", "--trace", "own.csv", "--vllm-args", "--enable-lora") == "--enable-lora: LoRA is not modelled"
    )
    message = message_of("run", "--trace", "own.csv", "--set", "engine.vllm_args=3")
    assert message == "engine.vllm_args = 3: give a text"
    assert not Path("runs").exists()
