"""Every policy and mode under one name each, built from its preset for a pool of any size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from policies.core.protocols import Policy, Services
from policies.presets import build_policy, preset, presets, resolve

Blocks = Literal["chunks", "prompts", "slots"]


class Size(NamedTuple):
    """Limits of an engine, and its pool in blocks of ``block_size`` tokens."""

    num_gpu_blocks: int
    block_size: int = 16
    max_model_len: int = 4096
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    num_cpu_blocks: int = 512
    kv_bytes_per_token: int = 512 << 10
    pieces_per_block: int = 64


class Variant(NamedTuple):
    """One policy with its modes. ``blocks`` says which blocks a row of it holds: those of its tokens, prompts
    chunk by chunk (``chunks``) or at once (``prompts``), or a whole reservation (``slots``)."""

    name: str
    preset: str
    blocks: Blocks
    overrides: Mapping[str, object] = {}
    most_seqs: int = 256
    """Most requests at a time: as many as any pool of these tests holds, where slots share it and cannot wait."""
    numbered: bool = True

    @property
    def deliver_at_batch_end(self) -> bool:
        """True if answers wait until nothing runs."""
        return preset(self.preset).delivery == "batch_end"

    @property
    def caches_prefixes(self) -> bool:
        """True if blocks may be shared."""
        return bool(self.overrides.get("enable_prefix_caching", False))

    @property
    def batch_window_s(self) -> float:
        """For how long the engine may sleep while a request waits for more to come."""
        settings = {**preset(self.preset).defaults, **self.overrides}
        window_s = settings.get("batch_wait_timeout_s", 0.0)
        assert isinstance(window_s, int | float)
        return window_s

    def build(self, size: Size, services: Services) -> Policy:
        """The policy with memory of that size."""
        chosen = preset(self.preset)
        chunked = self.overrides.get(
            "enable_chunked_prefill", chosen.defaults.get("enable_chunked_prefill", False)
        ) or chosen.fixed.get("scheduler") in ("sarathi", "simple_chunking")
        limits = {
            "max_num_seqs": min(size.max_num_seqs, self.most_seqs),
            "max_num_batched_tokens": max(
                size.max_num_batched_tokens,
                size.max_num_seqs,
                0 if chunked else size.max_model_len,
                size.block_size if "context_chunking_policy" in chosen.defaults else 0,
            ),
            "max_batch_prefill_tokens": max(size.max_num_batched_tokens, 0 if chunked else size.max_model_len),
            "block_size": size.block_size,
            "swap_space_bytes": size.num_cpu_blocks * size.block_size * size.kv_bytes_per_token,
        }
        known = {key: value for key, value in limits.items() if key in chosen.defaults}
        parameters = resolve(chosen, {**known, **self.overrides}, max_model_len=size.max_model_len)
        tokens = size.num_gpu_blocks * size.block_size
        if chosen.blocks in ("slot", "reserved"):
            tokens = max(tokens, size.max_model_len)
        policy, _ = build_policy(
            parameters,
            num_gpu_blocks=-(-tokens // parameters.pool_block_size),
            kv_bytes_per_token=size.kv_bytes_per_token,
            pieces_per_block=size.pieces_per_block,
            services=services,
            numbered=self.numbered,
        )
        return policy


def _variants() -> list[Variant]:
    v1: dict[str, Mapping[str, object]] = {
        "v1": {},
        "v1-whole": {"enable_chunked_prefill": False},
        "v1-threshold": {"long_prefill_token_threshold": 7},
        "v1-prefix": {"enable_prefix_caching": True},
        "v1-prefix-whole": {"enable_prefix_caching": True, "enable_chunked_prefill": False},
    }
    found = [
        Variant(name, "vllm-0.11", "chunks", {"enable_prefix_caching": False, **options})
        for name, options in v1.items()
    ]
    v033: dict[str, Mapping[str, object]] = {
        "v1-033": {"watermark": 0.05},
        "v1-033-whole": {"enable_chunked_prefill": False},
        "v1-033-no-gate": {"scheduler_reserve_full_isl": False, "long_prefill_token_threshold": 7},
        "v1-033-prefix": {"enable_prefix_caching": True},
    }
    found += [
        Variant(name, "vllm-0.33", "chunks", {"enable_prefix_caching": False, **options})
        for name, options in v033.items()
    ]
    for name in ("vllm-0.11-priority", "vllm-0.33-priority"):
        found.append(Variant(name, name, "chunks", {"enable_prefix_caching": False}))
    found.append(Variant("vllm-0.6-priority", "vllm-0.6-priority", "prompts"))
    for steps, mode in ((10, "recompute"), (3, "swap"), (4, "auto")):
        options: Mapping[str, object] = {"num_scheduler_steps": steps, "preemption_mode": mode}
        found.append(Variant(f"v0-multi-step-{mode}", "vllm-0.6-multi-step", "prompts", options))
    found.append(Variant("vllm-0.2.7", "vllm-0.2.7", "prompts"))
    found.append(Variant("vllm-0.2.7-swap", "vllm-0.2.7-swap", "prompts"))
    for mode in ("recompute", "swap", "auto"):
        found.append(Variant(f"v0-{mode}", "vllm-0.6", "prompts", {"preemption_mode": mode}))
        found.append(Variant(f"v0-chunked-{mode}", "vllm-0.6-chunked", "prompts", {"preemption_mode": mode}))
    found += [Variant(name, name, "slots") for name in ("orca-max", "orca-pow2", "orca-oracle")]
    found += [Variant(name, name, "slots") for name in ("ft-static", "ft-static-early-return", "hf-static")]
    found.append(Variant("fastgen", "fastgen-8abdd98", "chunks"))
    found.append(Variant("ray-2.40", "ray-serve-batch-2.40", "slots"))
    found.append(Variant("ray-2.40-wait", "ray-serve-batch-2.40", "slots", {"batch_wait_timeout_s": 3}))
    found.append(Variant("ray-2.60", "ray-serve-batch-2.60", "slots", {"batch_wait_timeout_s": 2}))
    found.append(Variant("triton", "triton-dynamic", "slots"))
    found.append(Variant("triton-wait", "triton-dynamic", "slots", {"batch_wait_timeout_s": 4}))
    return found + _sarathi() + _reserving() + _literature()


def _reserving() -> list[Variant]:
    """Text Generation Inference, with room at its door for everybody, TensorRT-LLM, llama.cpp."""
    found = [Variant("tgi-1.4", "tgi-1.4", "slots", {"max_concurrent_requests": 1 << 20, "max_waiting_tokens": 6})]
    for name, chunked in (("tgi-3", True), ("tgi-3-whole", False)):
        changes = {"max_concurrent_requests": 1 << 20, "max_waiting_tokens": 6, "enable_chunked_prefill": chunked}
        found.append(Variant(name, "tgi-3", "slots", changes))
    chunks = {"chunked": "first_come_first_served", "equal": "equal_progress"}
    for name, labels in (("no-evict", ["chunked"]), ("max-utilization", ["chunked", "equal"]), ("static", ["equal"])):
        preset_name = f"trtllm-{name}"
        found.append(Variant(preset_name, preset_name, "prompts"))
        for label in labels:
            rule = {"enable_chunked_prefill": True, "context_chunking_policy": chunks[label]}
            found.append(Variant(f"{preset_name}-{label}", preset_name, "prompts", rule))
    found.append(Variant("llamacpp", "llamacpp", "slots"))
    found.append(Variant("llamacpp-unified", "llamacpp-unified", "chunks", most_seqs=6))
    found.append(Variant("ollama", "ollama", "slots", {"max_num_queued_reqs": 1 << 20, "cont_batching": False}))
    return found


def _sarathi() -> list[Variant]:
    """Sarathi-Serve and Vidur: prompts hold all their blocks at once, or the whole reservation."""
    schedule = {"chunk_schedule_max_tokens": 40, "chunk_schedule_stages": 3}
    dynamic = {"max_num_batched_tokens": 96, "low_chunk_size": 32, **schedule}
    found = [Variant("sarathi-dynamic", "sarathi-96f9911", "prompts", dynamic)]
    for entry in presets():
        if entry.system in ("Sarathi-Serve", "Vidur"):
            blocks: Blocks = "slots" if entry.blocks == "reserved" else "prompts"
            found.append(Variant(entry.name, entry.name, blocks))
    return found


def _literature() -> list[Variant]:
    """Schedulers from the literature, with what makes them differ most from vLLM."""
    plain: Mapping[str, object] = {"enable_prefix_caching": False}
    found = [Variant(name, name, "chunks", plain) for name in ("priority", "sjf", "least-laxity")]
    guess = {"length_predictor": "max_tokens", "predictor_sigma": 0.7, "ageing_per_s": 30.0}
    found.append(Variant("srtf-prefix", "srtf", "chunks", {"enable_prefix_caching": True, "preemption_cap": 0}))
    found.append(Variant("srtf-guessed-whole", "srtf", "chunks", {**plain, **guess, "enable_chunked_prefill": False}))
    evicts = {"evict_running": True, "preemption_cap": 2, "ttft_target_s": 0.3, "tpot_target_s": 0.02}
    found.append(Variant("edf-evicts", "edf", "chunks", {**plain, **evicts}))
    found.append(Variant("vtc", "vtc", "chunks", plain))
    levels = {"quantum_steps": 4, "num_levels": 4, "starvation_limit_steps": 60}
    found.append(Variant("fastserve", "fastserve", "chunks", {**levels, "watermark": 0.1}))
    found.append(Variant("fastserve-reactive", "fastserve", "chunks", {**levels, "proactive_swap": False}))
    hasty = {"ttft_target_s": 0.2, "tpot_target_s": 0.02, "replan_steps": 8, "preemption_cap": 2}
    found.append(Variant("andes", "andes", "chunks", {**plain, **hasty}))
    return found


def _ahead() -> list[Variant]:
    """Engines that plan a step before they know the tokens of the last one."""
    modes: dict[str, Mapping[str, object]] = {
        "async": {"enable_prefix_caching": False},
        "async-prefix": {"enable_prefix_caching": True},
        "async-whole": {"enable_prefix_caching": True, "enable_chunked_prefill": False, "watermark": 0.05},
        "async-no-gate": {
            "enable_prefix_caching": False,
            "scheduler_reserve_full_isl": False,
            "long_prefill_token_threshold": 7,
        },
    }
    found = [Variant(name, "vllm-0.33-async", "chunks", options) for name, options in modes.items()]
    return [*found, Variant("overlap", "sglang-0.4.9-overlap", "chunks")]


def _sglang() -> list[Variant]:
    """SGLang, whose pages are single tokens. Their mirror is that of tests/test_sglang_mirror.py."""
    return [
        Variant("sglang-fcfs", "sglang-0.4.9", "chunks", {"chunked_prefill_size": 64}),
        Variant("sglang-lpm", "sglang-0.4.9-lpm", "chunks", {"chunked_prefill_size": 0}),
        Variant("sglang-dfs-weight", "sglang-0.4.9-dfs-weight", "chunks", {"schedule_conservativeness": 0.1}),
        Variant("sglang-mixed", "sglang-0.4.9-mixed", "chunks", {"chunked_prefill_size": 64}),
        Variant("sglang-no-cache", "sglang-0.4.9-no-cache", "chunks", {"schedule_conservativeness": 0.1}),
        Variant("sglang-ignore-eos", "sglang-0.4.9-no-cache", "chunks", {"ignore_eos": True}),
    ]


VARIANTS: Mapping[str, Variant] = {variant.name: variant for variant in _variants()}
AHEAD: Mapping[str, Variant] = {variant.name: variant for variant in _ahead()}
SGLANG: Mapping[str, Variant] = {variant.name: variant for variant in _sglang()}
