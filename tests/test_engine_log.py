"""Settings from a vLLM start-up log and from a saved /metrics page. The lines have the form of each version's own."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import ConfigError
from sim.config import RunConfig, load_config
from sim.engine_log import read_log
from tests.command import batchscope, chat

pytestmark = pytest.mark.usefixtures("in_empty_folder")

V1 = """\
(APIServer pid=1) INFO 11-30 09:00:00 [api_server.py:1839] vLLM API server version 0.11.0
(APIServer pid=1) INFO 11-30 09:00:00 [utils.py:233] non-default args: {'model_tag': 'meta-llama/Llama-2-7b-hf', \
'host': '0.0.0.0', 'port': 8004, 'model': 'meta-llama/Llama-2-7b-hf', 'served_model_name': ['llama', 'chat'], \
'max_num_seqs': 64}
(APIServer pid=1) INFO 11-30 09:00:05 [scheduler.py:222] Chunked prefill is enabled with max_num_batched_tokens=4096.
(EngineCore_DP0 pid=20) INFO 11-30 09:00:20 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: \
model='meta-llama/Llama-2-7b-hf', speculative_config=None, tokenizer='meta-llama/Llama-2-7b-hf', dtype=torch.float16, \
max_seq_len=2048, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, kv_cache_dtype=auto, seed=0, \
enable_prefix_caching=False, chunked_prefill_enabled=True, compilation_config={"level":3,"sizes":[1,2]}
(EngineCore_DP0 pid=20) INFO 11-30 09:00:50 [kv_cache_utils.py:1087] \x1b[32mGPU KV cache size: 118,288 tokens\x1b[0m
(EngineCore_DP0 pid=20) INFO 11-30 09:00:50 [utils.py:1] Maximum concurrency for 2,048 tokens per request: 9x
"""
V0 = """\
INFO 11-01 01:33:50 api_server.py:528] vLLM API server version 0.6.3.post1
INFO 11-01 01:33:50 api_server.py:529] args: Namespace(host=None, port=8000, allowed_origins=['*'], \
model='meta-llama/Llama-2-13b-hf', block_size=16, swap_space=2, gpu_memory_utilization=0.9, \
max_num_batched_tokens=None, max_num_seqs=128, preemption_mode='swap', enable_chunked_prefill=None, \
enable_prefix_caching=False, scheduling_policy='fcfs')
INFO 11-01 01:33:52 llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: \
model='meta-llama/Llama-2-13b-hf', max_seq_len=4096, tensor_parallel_size=2, quantization=None, \
enable_prefix_caching=False, chunked_prefill_enabled=False multi_step_stream_outputs=True
INFO 11-01 01:34:20 distributed_gpu_executor.py:57] # GPU blocks: 3393, # CPU blocks: 327
"""
METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",\
gpu_memory_utilization="0.9",num_cpu_blocks="None",num_gpu_blocks="4188",sliding_window="None",\
swap_space_bytes="42"} 1.0
vllm:num_requests_running{engine="0"} 3.0
"""


def loaded(
    log: str = "", metrics: str = "", *overrides: str, **flags: object
) -> tuple[RunConfig, list[str], list[str]]:
    """The configuration, the settings that were taken, and the remarks after the one that lists these."""
    for name, text in (("vllm.log", log), ("metrics", metrics)):
        if text:
            Path(name).write_text(text, encoding="utf-8")
            flags["engine_log" if name == "vllm.log" else "metrics_page"] = name
    remarks: list[str] = []
    taken: list[str] = []
    config = load_config({"workload": {"trace": "x.csv"}}, overrides, remarks, taken=taken, **flags)
    assert remarks[:1] == [f"taken from your engine: {', '.join(taken)}"] * bool(taken)
    return config, taken, remarks[bool(taken) :]


def test_a_log_of_v1() -> None:
    config, taken, remarks = loaded(V1)
    assert taken == [
        'engine.preset = "vllm-0.11" (vllm.log, line 4)',
        'model.name = "llama-2-7b" (vllm.log, line 4)',
        "engine.max_num_seqs = 64 (vllm.log, line 2)",
        "engine.max_num_batched_tokens = 4096 (vllm.log, line 3)",
        "engine.enable_chunked_prefill = true (vllm.log, line 4)",
        "engine.max_model_len = 2048 (vllm.log, line 6)",
        "hardware.tp = 1 (vllm.log, line 4)",
        "engine.enable_prefix_caching = false (vllm.log, line 4)",
        "engine.num_gpu_blocks = 7393 (vllm.log, line 5: 118288 tokens in blocks of 16)",
    ]
    assert remarks == []
    assert (config.engine.num_gpu_blocks, config.engine.max_num_seqs) == (7393, 64)


def test_a_log_of_v0() -> None:
    config, taken, remarks = loaded(V0)
    engine = config.engine
    assert engine.preset == "vllm-0.6"
    assert (engine.num_gpu_blocks, engine.max_num_seqs, engine.block_size) == (3393, 128, 16)
    assert (engine.preemption_mode, engine.swap_space_bytes) == ("swap", 2 << 30)
    assert (engine.enable_chunked_prefill, engine.max_model_len) == (False, 4096)
    assert (config.model.name, config.hardware.tp) == ("llama-2-13b", 2)
    # The blocks contain the share of memory.
    assert engine.gpu_memory_utilization is None
    assert not any("gpu_memory_utilization" in line for line in taken)
    assert remarks == []


def test_the_oldest_log() -> None:
    line = "INFO 01-02 llm_engine.py:70] Initializing an LLM engine with config: model='x', max_seq_len=2048, seed=0\n"
    config, _, remarks = loaded(f"{line}INFO # GPU blocks: 865, # CPU blocks: 327\n", policy="vllm-0.2.7")
    assert (config.engine.num_gpu_blocks, config.engine.max_model_len) == (865, 2048)
    assert remarks == [
        "vllm.log, line 1: model x is none of the catalog by that name, llama-2-7b is simulated; give model.name or "
        "model.config"
    ]


@pytest.mark.parametrize(
    ("version", "engine", "preset"),
    [
        ("0.2.7", "an LLM", "vllm-0.2.7"),
        ("0.3.0.post1", "an LLM", "vllm-0.2.7"),
        ("0.5.4", "an LLM", "vllm-0.6"),
        ("0.8.5", "an LLM", "vllm-0.6"),
        ("0.8.5", "a V0 LLM", "vllm-0.6"),
        ("0.8.5", "a V1 LLM", "vllm-0.11"),
        ("0.10.2.dev378+g4d7fe40fc.d20250829", "a V1 LLM", "vllm-0.11"),
        ("0.24.0", "a V1 LLM", "vllm-0.33"),
        ("1.2.0", "a V1 LLM", "vllm-0.33"),
    ],
)
def test_the_preset_is_that_of_the_closest_version(version: str, engine: str, preset: str) -> None:
    line = f"INFO core.py] Initializing {engine} engine (v{version}) with config: max_seq_len=2048\n"
    config, _, remarks = loaded(line)
    assert config.engine.preset == preset
    says_so = f"vllm.log, line 1: vLLM {version} ({'V1' if 'V1' in engine else 'V0'}), but preset {preset} models "
    assert [remark.startswith(says_so) for remark in remarks] == ([] if preset.endswith(version) else [True])


def test_a_preset_of_another_version_is_said() -> None:
    config, _, remarks = loaded(V1, policy="vllm-0.33")
    assert config.engine.preset == "vllm-0.33"
    assert remarks == ["vllm.log, line 4: vLLM 0.11.0 (V1), but preset vllm-0.33 models 0.33.0 (V1 scheduler)"]


def test_the_exact_number_of_blocks_goes_before_the_tokens() -> None:
    line = "INFO [loggers.py:142] Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: {}\n"
    config, taken, remarks = loaded(V1 + line.format(7393))
    assert config.engine.num_gpu_blocks == 7393
    assert "engine.num_gpu_blocks = 7393 (vllm.log, line 7)" in taken
    assert remarks == []
    _, _, remarks = loaded(V1 + line.format(5000))
    assert remarks == [
        "vllm.log, line 5: 118288 tokens are not 5000 blocks of 16, which count; models with several kinds of cache "
        "are not modelled"
    ]


@pytest.mark.parametrize(
    "line", ["# CUDA blocks: 36,332, # CPU blocks: 9", "# cuda blocks: 36332", "# GPU blocks: 36332"]
)
def test_ways_to_write_the_blocks(line: str) -> None:
    assert loaded(f"INFO executor_base.py:110] {line}\n")[0].engine.num_gpu_blocks == 36332


def test_blocks_of_another_size() -> None:
    log = V1.replace("'max_num_seqs': 64", "'block_size': 32")
    assert loaded(log)[0].engine.num_gpu_blocks == 118288 // 32
    assert loaded(V1, "", "engine.block_size=8")[0].engine.num_gpu_blocks == 118288 // 8


def test_of_several_starts_the_last_counts() -> None:
    log = V1 + V1.replace("118,288", "99,200").replace("'max_num_seqs': 64", "'max_num_seqs': 65")
    config, taken, remarks = loaded(log)
    assert (config.engine.num_gpu_blocks, config.engine.max_num_seqs) == (6200, 65)
    assert "engine.num_gpu_blocks = 6200 (vllm.log, line 11: 99200 tokens in blocks of 16)" in taken
    assert remarks == []


def test_what_is_not_modelled_is_said_and_not_refused() -> None:
    log = V1.replace(
        "'max_num_seqs': 64", "'enable_lora': True, 'enforce_eager': True, 'no_such_thing': 3, 'api_key': 'k'"
    )
    config, _, remarks = loaded(log + "INFO [vllm.py:834] Asynchronous scheduling is enabled.\n")
    assert config.engine.num_gpu_blocks == 7393
    assert remarks == [
        "vllm.log, line 2: --enable-lora: LoRA is not modelled",
        "vllm.log, line 7: --async-scheduling: asynchronous scheduling is not modelled: each step sees the tokens of "
        "the one before",
        "steps are timed as without --enforce-eager, whose effect is not modelled",
    ]


def test_what_stands_inside_of_a_value_is_no_argument_of_its_own() -> None:
    inner = "{'method': 'eagle', 'model': 'x/Llama-2-13b', 'more': {'max_num_seqs': 1, 'a': [1, ')']}, 'block_size': 8}"
    log = V1.replace("'max_num_seqs': 64", f"'hf_overrides': {inner}, 'max_num_seqs': 64")
    config, _, _ = loaded(log)
    assert (config.model.name, config.engine.max_num_seqs, config.engine.block_size) == ("llama-2-7b", 64, None)


def test_explicit_keys_stay() -> None:
    config, taken, remarks = loaded(V1, "", "engine.num_gpu_blocks=99", "engine.max_num_seqs=64", "hardware.tp=2")
    assert (config.engine.num_gpu_blocks, config.engine.max_num_seqs, config.hardware.tp) == (99, 64, 2)
    assert not any("max_num_seqs" in line or "blocks" in line for line in taken)
    assert remarks == [
        "hardware.tp = 2 stays, although vllm.log, line 4 says 1",
        "engine.num_gpu_blocks = 99 stays, although vllm.log, line 5: 118288 tokens in blocks of 16 says 7393",
    ]


def test_an_explicit_share_of_memory_sets_the_blocks() -> None:
    config, _, remarks = loaded(V1, "", "engine.gpu_memory_utilization=0.5")
    assert config.engine.num_gpu_blocks is None
    assert remarks == [
        "engine.gpu_memory_utilization = 0.5 stays, and sets the blocks, although vllm.log, line 5: 118288 tokens in "
        "blocks of 16 says 7393"
    ]


def test_a_metrics_page() -> None:
    config, taken, remarks = loaded("", METRICS)
    assert taken == [
        "engine.block_size = 16 (metrics, line 3)",
        "engine.enable_prefix_caching = true (metrics, line 3)",
        "engine.num_gpu_blocks = 4188 (metrics, line 3)",
    ]
    assert remarks == []
    assert config.engine.num_gpu_blocks == 4188
    assert loaded("", METRICS, policy="vllm-0.6")[2] == [
        "metrics, line 3: --enable-prefix-caching: preset vllm-0.6 does not model it; presets that have it: vllm-0.11, "
        "vllm-0.11-priority, vllm-0.33, vllm-0.33-priority, vllm-0.33-async"
    ]
    assert loaded("", METRICS, policy="vllm-0.6")[0].engine.swap_space_bytes == 42


def test_a_page_whose_tokens_and_blocks_disagree() -> None:
    page = METRICS.replace('num_gpu_blocks="4188"', 'num_gpu_blocks="9120",kv_cache_size_tokens="862437"')
    config, _, remarks = loaded("", page)
    assert config.engine.num_gpu_blocks == 9120
    assert remarks[0].startswith("metrics, line 3: 862437 tokens are not 9120 blocks of 16, which count")


def test_arguments_count_before_the_page_and_the_page_before_the_log() -> None:
    config, _, remarks = loaded(V1, METRICS, vllm_args="--max-num-seqs 32 --scheduling-policy priority")
    assert (config.engine.max_num_seqs, config.engine.num_gpu_blocks) == (32, 4188)
    assert config.engine.preset == "vllm-0.11-priority"
    assert remarks[:2] == [
        "engine.max_num_seqs = 32 (--vllm-args --max-num-seqs 32) counts, although vllm.log, line 2 says 64",
        "engine.enable_prefix_caching = true (metrics, line 3) counts, although vllm.log, line 4 says false",
    ]
    assert remarks[2].startswith("vllm.log, line 5: 118288 tokens are not 4188 blocks of 16")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("engine_log", b"", "f: no line of a vLLM start-up log, such as 'GPU KV cache size: 118,288 tokens'; give the "
         "engine's log from its start"),
        ("engine_log", b"\xff\x00 what is this", "f: no line of a vLLM start-up log, such as 'GPU KV cache size: "
         "118,288 tokens'; give the engine's log from its start"),
        ("engine_log", b"\x1f\x8bno gzip", "f: the gzip file is cut off or damaged; fetch it again"),
        ("metrics_page", b"sglang:num_running_reqs 3", "f: no vllm:cache_config_info; save the page "
         "http://HOST:PORT/metrics of a vLLM server"),
        ("metrics_page", None, "f: cannot be read (No such file or directory); give the path of a file"),
    ],
)  # fmt: skip
def test_files_that_say_nothing(name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        Path("f").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_config({"workload": {"trace": "x.csv"}}, (), **{name: "f"})  # type: ignore[arg-type]
    assert str(error.value) == message


@given(text=st.text(max_size=200) | st.lists(st.sampled_from([*V1.splitlines(), *V0.splitlines()])).map("\n".join))
def test_any_file_is_read_or_refused_in_a_line(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "log"
    path.write_bytes(gzip.compress(text.encode("utf-8", "replace")))
    try:
        found = read_log(str(path))
    except ConfigError:
        found = []
    assert all(part.where.startswith(f"{path}, line ") for part in found)
    assert bool(found) >= any(line in text for line in V0.splitlines())


def test_a_run_says_what_it_took_and_keeps_it() -> None:
    Path("vllm.log").write_text(V1)
    ended = batchscope("run", *chat(8.0, 20), "--engine-log", "vllm.log", "--out", "a")
    assert ended.exit_code == 0, ended
    assert ended.stderr.count("\n") == 9
    assert "note: engine.max_num_seqs = 64 (vllm.log, line 2)\n" in ended.stderr
    assert "note: taken from your engine: " in ended.stdout
    again = batchscope("run", "a/run.toml", "--json")
    assert again.stderr == ""
    assert again.summary["kv"]["num_gpu_blocks"] == 7393
    assert again.summary["config"]["parameters"]["max_num_batched_tokens"] == 4096
