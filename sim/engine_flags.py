"""What vLLM's arguments mean here: which key of RUN.toml one sets, which change nothing, which are not modelled.

Names are those of the command line (``--max-num-seqs``), of vLLM 0.2 to 0.33; in logs they have underscores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from policies.core.errors import ConfigError, closest
from policies.preset import Preset
from policies.preset_table import PRESETS
from sim.config_toml import toml_value

Value = str | bool | None
"""Of an argument: its text, True or False for a switch, None where a log says that none was given."""

_GIB = 1 << 30
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FLOATS = ("auto", "half", "float16", "bfloat16")


class Meaning(NamedTuple):
    """What an argument amounts to: ``sets`` keys, or is ``ignored`` (it changes nothing), ``untimed`` (it changes how
    long steps last, which is not modelled), or ``refused`` for a reason (its effect on decisions is not modelled)."""

    sets: Mapping[str, object] = {}
    ignored: bool = False
    untimed: bool = False
    refused: str = ""


IGNORED = Meaning(ignored=True)


def meaning_of(name: str, value: Value, preset: Preset) -> Meaning | None:
    """What argument ``name`` (dashes, without those in front) means to a preset; None: no such argument is known.

    Raises ConfigError for a value that is none.
    """
    if name in HARMLESS:
        return IGNORED
    if name in UNTIMED:
        return IGNORED if value in (None, False, "") else Meaning(untimed=True)
    if name in NOT_MODELLED:
        return IGNORED if value in (None, False, "", "0", "[]", "{}") else Meaning(refused=NOT_MODELLED[name])
    if name in ONLY:
        accepted, what = ONLY[name]
        return IGNORED if value is None or str(value) in accepted else Meaning(refused=what)
    if name == "scheduling-policy":
        return _order(value, preset)
    if name == "num-scheduler-steps":
        return _steps(value, preset)
    if name == "multi-step-stream-outputs":
        together = "num_scheduler_steps" in preset.defaults and value is not None and _switch(name, value)
        return Meaning(refused="the tokens of the steps of a plan come together here") if together else IGNORED
    if name in SWITCHES:
        return IGNORED if value is None else _for(preset, SWITCHES[name], _switch(name, value))
    if name not in VALUES:
        return None
    key, convert = VALUES[name]
    if value is None:
        return IGNORED
    try:
        converted = convert(str(value))
    except (ValueError, OverflowError):
        raise ConfigError(f"--{name} {value}: is no value that it takes here; give {key}") from None
    return IGNORED if converted is None else _for(preset, key, converted)


def known_names() -> list[str]:
    """Every argument that has a meaning here."""
    return [*VALUES, *SWITCHES, *ONLY, *NOT_MODELLED, *UNTIMED, *HARMLESS, *PER_PRESET]


def _for(preset: Preset, key: str, value: object) -> Meaning:
    """A key that the preset has; what it lacks is refused unless it is switched off."""
    section, _, name = key.partition(".")
    everywhere = ("max_model_len", "num_gpu_blocks", "gpu_memory_utilization")
    if section != "engine" or name in everywhere or name in preset.defaults:
        return Meaning({key: value})
    if value in (False, 0, 0.0) or name in _UNUSED_IN_V1:
        return IGNORED
    having = [other.name for other in PRESETS.values() if other.system == preset.system and name in other.defaults]
    instead = f"; presets that have it: {', '.join(having)}" if having else ""
    return Meaning(refused=f"preset {preset.name} does not model it{instead}")


def _order(value: Value, preset: Preset) -> Meaning:
    by_priority = preset.name.endswith("-priority")
    if value in (None, "fcfs"):
        return Meaning(refused=f"preset {preset.name} serves by priority") if value and by_priority else IGNORED
    if value != "priority":
        hint = closest(str(value), ("fcfs", "priority"))
        raise ConfigError(f"--scheduling-policy {value}: is none of fcfs, priority{hint}")
    if by_priority:
        return IGNORED
    name = f"{preset.name}-priority"
    if name in PRESETS:
        return Meaning({"engine.preset": name})
    return Meaning(refused=f"preset {preset.name} has no variant by priority")


def _steps(value: Value, preset: Preset) -> Meaning:
    """Steps on one plan; more than one make another variant of the preset."""
    if value is None:
        return IGNORED
    try:
        steps = int(str(value))
    except ValueError:
        raise ConfigError(f"--num-scheduler-steps {value}: is no value that it takes here; give a count") from None
    name = f"{preset.name}-multi-step"
    if "num_scheduler_steps" in preset.defaults:
        return Meaning({"engine.num_scheduler_steps": steps})
    if name not in PRESETS:
        return _for(preset, "engine.num_scheduler_steps", steps) if steps != 1 else IGNORED
    return Meaning({"engine.preset": name, "engine.num_scheduler_steps": steps}) if steps != 1 else IGNORED


def _switch(name: str, value: Value) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() not in ("true", "false"):
        raise ConfigError(f"--{name} {toml_value(value)}: is a switch; leave the value out, or give true or false")
    return str(value).lower() == "true"


def _whole(text: str) -> int:
    return int(text)


def _count(text: str) -> int | None:
    """A whole number, which may end in k, m, g (thousands) or K, M, G (1,024 each); vLLM's ``auto`` and -1 set none."""
    if text in ("auto", "-1"):
        return None
    if text[-1:] in _SUFFIXES:
        return int(float(text[:-1]) * _SUFFIXES[text[-1]])
    return int(text)


def _gib(text: str) -> int:
    return int(float(text) * _GIB)


def _kv_bits(text: str) -> int | None:
    if text in _FLOATS:
        return None
    if text.startswith("fp8") or text == "int8":
        return 8
    raise ValueError


def _weight_bits(text: str) -> int:
    method = text.lower()
    for part, bits in (("fp8", 8), ("int8", 8), ("fbgemm", 8), ("awq", 4), ("gptq", 4), ("marlin", 4), ("fp4", 4)):
        if part in method:
            return bits
    raise ValueError


VALUES: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "max-num-seqs": ("engine.max_num_seqs", _count),
    "max-num-batched-tokens": ("engine.max_num_batched_tokens", _count),
    "max-model-len": ("engine.max_model_len", _count),
    "block-size": ("engine.block_size", _whole),
    "num-gpu-blocks-override": ("engine.num_gpu_blocks", _whole),
    "gpu-memory-utilization": ("engine.gpu_memory_utilization", float),
    "swap-space": ("engine.swap_space_bytes", _gib),
    "preemption-mode": ("engine.preemption_mode", str),
    "max-paddings": ("engine.max_paddings", _whole),
    "long-prefill-token-threshold": ("engine.long_prefill_token_threshold", _whole),
    "watermark": ("engine.watermark", float),
    "tensor-parallel-size": ("hardware.tp", _whole),
    "kv-cache-dtype": ("model.kv_bits", _kv_bits),
    "quantization": ("model.weight_bits", _weight_bits),
    "model": ("model.name", str),
}
"""Arguments with a value, the key that each sets, and how the value is read."""

SWITCHES = {
    "enable-chunked-prefill": "engine.enable_chunked_prefill",
    "enable-prefix-caching": "engine.enable_prefix_caching",
    "scheduler-reserve-full-isl": "engine.scheduler_reserve_full_isl",
}
"""Arguments that are on or off (``--no-...``), and their keys."""

_UNUSED_IN_V1 = ("swap_space_bytes", "preemption_mode")
"""vLLM V1 accepts these and makes no use of them."""

ONLY: Mapping[str, tuple[tuple[str, ...], str]] = {
    "pipeline-parallel-size": (("1",), "pipeline stages are not modelled"),
    "data-parallel-size": (("1",), "one engine is simulated, not several"),
    "decode-context-parallel-size": (("1",), "context parallelism is not modelled"),
    "prefill-context-parallel-size": (("1",), "context parallelism is not modelled"),
    "stream-interval": (("1",), "tokens are delivered one by one here"),
    "max-num-partial-prefills": (("1",), "several partial prefills at a time are not modelled"),
    "max-long-partial-prefills": (("1",), "several partial prefills at a time are not modelled"),
    "num-lookahead-slots": (("0",), "lookahead slots (speculative decoding) are not modelled"),
    "scheduler-delay-factor": (("0", "0.0"), "delayed admission is not modelled"),
    "cpu-offload-gb": (("0", "0.0"), "offloading weights is not modelled"),
    "dtype": (_FLOATS, "numbers of the model have 16 bits here; for fewer see --quantization"),
    "task": (("auto", "generate"), "only generation is modelled"),
    "runner": (("auto", "generate"), "only generation is modelled"),
    "device": (("auto", "cuda"), "only GPUs are modelled"),
}
"""Arguments that are modelled with these values alone, and what another one would need."""

NOT_MODELLED: Mapping[str, str] = {
    "async-scheduling": "asynchronous scheduling is not modelled: each step sees the tokens of the one before",
    "speculative-config": "speculative decoding is not modelled",
    "speculative-model": "speculative decoding is not modelled",
    "num-speculative-tokens": "speculative decoding is not modelled",
    "enable-lora": "LoRA is not modelled",
    "enable-expert-parallel": "mixtures of experts are not modelled",
    "kv-transfer-config": "KV connectors are not modelled",
    "kv-offloading-size": "KV offloading is not modelled",
    "kv-cache-memory-bytes": "give the number of blocks as engine.num_gpu_blocks, or the engine's log",
    "scheduler-cls": "another scheduler needs a class of yours in engine.policy",
    "max-num-queued-reqs": "a limit of the queue is not modelled",
    "max-num-queued-tokens": "a limit of the queue is not modelled",
    "max-num-active-seqs": "a limit of active sequences is not modelled",
    "prefill-schedule-interval": "a prefill interval is not modelled",
    "enable-dbo": "dual batch overlap is not modelled",
    "hf-overrides": "give the shape of the model as model.config",
}
"""Arguments that change decisions in a way that no preset models, and why."""

_UNTIMED = """
    enforce-eager max-seq-len-to-capture max-context-len-to-capture cuda-graph-sizes cudagraph-capture-sizes
    max-cudagraph-capture-size compilation-config attention-backend attention-config disable-custom-all-reduce
    disable-cascade-attn disable-async-output-proc use-v2-block-manager enable-flashinfer-autotune
    enable-return-routed-experts performance-mode optimization-level kernel-config
"""
UNTIMED = frozenset(_UNTIMED.split())
"""Arguments that change the time of a step and no decision."""

_HARMLESS = """
    host port uds uvicorn-log-level allow-credentials allowed-origins allowed-methods allowed-headers api-key
    lora-modules prompt-adapters chat-template chat-template-content-format response-role ssl-keyfile ssl-certfile
    ssl-ca-certs enable-ssl-refresh ssl-cert-reqs root-path middleware return-tokens-as-token-ids
    disable-frontend-multiprocessing enable-request-id-headers enable-auto-tool-choice
    exclude-tools-when-tool-choice-none tool-call-parser tool-parser-plugin tool-server log-config-file max-log-len
    disable-fastapi-docs enable-prompt-tokens-details enable-server-load-tracking enable-force-include-usage
    enable-tokenizer-info-endpoint enable-log-outputs enable-log-requests enable-log-deltas
    disable-uvicorn-access-log disable-log-requests disable-log-stats aggregate-engine-logging headless
    api-server-count served-model-name model-tag tokenizer tokenizer-mode tokenizer-revision skip-tokenizer-init
    revision code-revision hf-config-path hf-token trust-remote-code allowed-local-media-path allowed-media-domains
    download-dir load-format config-format config model-loader-extra-config model-impl use-tqdm-on-load
    ignore-patterns seed max-logprobs logprobs-mode generation-config override-generation-config
    guided-decoding-backend guided-decoding-disable-fallback structured-outputs-config reasoning-parser
    enable-reasoning logits-processor-pattern logits-processors limit-mm-per-prompt mm-processor-kwargs
    mm-processor-cache-gb disable-mm-preprocessor-cache skip-mm-profiling language-model-only
    disable-chunked-mm-input interleave-mm-strings media-io-kwargs distributed-executor-backend worker-use-ray
    engine-use-ray worker-cls worker-extension-cls ray-workers-use-nsight max-parallel-loading-workers
    distributed-timeout-seconds numa-bind otlp-traces-endpoint collect-detailed-traces
    show-hidden-metrics-for-version kv-cache-metrics cudagraph-metrics enable-mfu-metrics
    enable-layerwise-nvtx-tracing enable-logging-iteration-details prefix-caching-hash-algo calculate-kv-scales
    quantization-param-path rope-scaling rope-theta additional-config enable-sleep-mode disable-sliding-window
    enable-prompt-embeds enable-prompt-adapter max-loras max-lora-rank lora-extra-vocab-size lora-dtype
    long-lora-scaling-factors fully-sharded-loras max-cpu-loras
    disable-hybrid-kv-cache-manager kv-events-config default-chat-template-kwargs safetensors-load-strategy
    node-rank nnodes master-addr master-port max-prompt-adapters max-prompt-adapter-token request-logger
    shutdown-timeout profiler-config data-parallel-backend
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Arguments that change neither decisions nor the time of a step."""

PER_PRESET = ("scheduling-policy", "num-scheduler-steps", "multi-step-stream-outputs")
"""Arguments that mean something else to each preset."""

ALIASES = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "q": "quantization",
    "O": "optimization-level",
    "sc": "speculative-config",
    "cc": "compilation-config",
}
"""Short forms, which have one dash in front."""
