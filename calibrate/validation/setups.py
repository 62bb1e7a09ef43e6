"""From a measured case to the configuration that the simulator runs: whose policy, on which card, with which requests.

What cannot be run as it was measured is refused with the reason, and listed so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from calibrate.validation.cases import Case, Lengths
from policies.catalog import Card, ModelShape, card, model
from policies.core.errors import BatchscopeError, ConfigError

CARDS = {
    "A100-SXM4-40GB": "a100-40gb",
    "A100-SXM4-80GB": "a100-80gb",
    "A100-PCIE-80GB": "a100-pcie-80gb",
    "GH200-96GB": "gh200-96gb",
    "H100-SXM5-80GB": "h100-80gb",
    "H200-SXM5-141GB": "h200-141gb",
    "L40S-48GB": "l40s-48gb",
    "A10G-24GB": "a10g-24gb",
    "RTX4090-24GB": "rtx4090-24gb",
    "RTX-PRO-6000-Blackwell-96GB": "rtxpro6000-96gb",
}
"""Cards of the catalog by the names that sources use."""

MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-7b-chat-hf": "llama-2-7b",
    "meta-llama/Llama-2-13b-hf": "llama-2-13b",
    "meta-llama/Llama-2-13b-chat-hf": "llama-2-13b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "meta-llama/Llama-2-70b-chat-hf": "llama-2-70b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
    "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "nvidia/Llama-3.3-70B-Instruct-FP8": "llama-3.1-70b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "Qwen/Qwen2-7B": "qwen2.5-7b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "facebook/opt-13b": "opt-13b",
}
"""Models of the catalog by the names that sources use; Llama 3.3 has the sizes of 3.1, Qwen 2 those of 2.5."""

_TRTLLM_TOKENS = 8192
"""Tokens of a step that TensorRT-LLM is built for by default; engines for longer prompts take one beside decodes."""

_BITS = {"fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}


class NotSimulated(BatchscopeError):
    """Why a case is not run; the message is the reason."""


class Target(NamedTuple):
    """What a case ran on: one GPU's part of the model, the card, and the preset of its engine."""

    preset: str
    shape: ModelShape
    card: Card
    model: str


def target_of(case: Case) -> Target:
    """Card, model and preset of a case; NotSimulated where the catalog or the presets have none."""
    gpu, name = CARDS.get(case.gpu), MODELS.get(case.model)
    if gpu is None:
        raise NotSimulated(f"card {case.gpu} is not in the catalog")
    if name is None:
        raise NotSimulated(f"model {case.model} is not in the catalog")
    weight_bits = _BITS.get(case.weights.split(" ")[0])
    if weight_bits is None:
        raise NotSimulated(f"weights of {case.weights} are not modelled")
    kv_bits = _BITS.get(case.kv.split(" ")[0], 16)
    try:
        shape = model(name)._replace(weight_bits=weight_bits, kv_bits=kv_bits).shard(case.tp)
    except ConfigError as error:
        raise NotSimulated(str(error)) from None
    return Target(preset_of(case), shape, card(gpu), name)


def preset_of(case: Case) -> str:
    """The preset that stands for the engine of a case; NotSimulated where there is none."""
    engine = case.engine.lower()
    if engine == "vllm":
        return _vllm_preset(case)
    if engine == "tensorrt-llm":
        return "trtllm-static" if case.batching == "static" else "trtllm-no-evict"
    if engine == "lmdeploy-turbomind":
        return "trtllm-max-utilization"  # prompts join a persistent batch; who runs out of blocks is paused
    if engine == "sglang":
        return "sglang-0.4.9-no-cache"  # no two prompts of these cases begin alike
    if case.batching == "single" and case.concurrency == 1:
        return "trtllm-static"  # one request at a time leaves nothing to schedule
    if engine == "deepspeed-mii":
        return "fastgen-8abdd98"
    raise NotSimulated(f"no preset stands for {case.engine} {case.version}".rstrip())


def _vllm_preset(case: Case) -> str:
    version = case.version
    if case.settings.get("num_scheduler_steps", 1) > 1:
        return "vllm-0.6-multi-step"
    if version.startswith(("0.5", "0.6", "as All_results")):
        return "vllm-0.6"
    if version.startswith(("0.1.", "0.2", "2023")):
        return "vllm-0.2.7"
    return "vllm-0.11"


def tables_of(case: Case, target: Target) -> dict[str, dict[str, Any]]:
    """The tables of the RUN.toml of a case; NotSimulated where the workload is not known well enough."""
    shape = target.shape
    return {
        "workload": _workload(case),
        "engine": _engine(case, target),
        "model": {"name": target.model, "weight_bits": shape.weight_bits, "kv_bits": shape.kv_bits},
        "hardware": {"name": target.card.name, "tp": case.tp},
    }


def _engine(case: Case, target: Target) -> dict[str, Any]:
    engine: dict[str, Any] = {"preset": target.preset}
    settings = case.settings
    most = settings.get("max_num_seqs", settings.get("max_batch_size"))
    if isinstance(most, int):
        engine["max_num_seqs"] = most
    elif target.preset == "trtllm-static":
        engine["max_num_seqs"] = case.concurrency
    prompt = case.prompt.mean or 0
    if target.preset == "trtllm-static" and case.concurrency:
        # Such engines are built for the batch: all its prompts go in one step.
        engine["max_num_batched_tokens"] = max(2048, round(case.concurrency * prompt))
    elif target.preset == "trtllm-no-evict" and prompt > _TRTLLM_TOKENS // 2:
        engine["max_num_batched_tokens"] = round(prompt) + _TRTLLM_TOKENS
    for name in ("max_model_len", "num_scheduler_steps", "max_num_batched_tokens"):
        if isinstance(settings.get(name), int) and not (name == "num_scheduler_steps" and settings[name] == 1):
            engine[name] = settings[name]
    return engine


def _workload(case: Case) -> dict[str, Any]:
    lengths = _profile_or_lengths(case)
    if case.kind in ("offline_batch", "burst"):
        if case.num_requests is None:
            raise NotSimulated("the number of requests was not stated")
        return {"generator": "closed-loop", "concurrency": case.num_requests, **_counted(case.num_requests), **lengths}
    if case.kind == "closed_loop" and case.concurrency is not None:
        requests = case.num_requests or 5 * case.concurrency
        return {"generator": "closed-loop", "concurrency": case.concurrency, **_counted(requests), **lengths}
    if case.kind == "poisson" and case.rate_per_s is not None:
        return {"generator": "poisson", "rate_per_s": case.rate_per_s, **_counted(case.num_requests or 500), **lengths}
    raise NotSimulated(f"a workload of kind {case.kind} is not run from a table")


def _counted(requests: int) -> dict[str, Any]:
    return {"num_requests": requests}


def _profile_or_lengths(case: Case) -> dict[str, Any]:
    return {"prompt": _law(case.prompt, "prompts"), "output": _law(case.output, "answers")}


_SHAREGPT_PROMPT_TOKENS = 220.0
"""Mean of ShareGPT's prompts under the filter of the benchmark scripts (at most 1,024 tokens, 2,048 with the answer),
where a source states only the data set."""
_SPREAD = {"sonnet": 0.1, "ShareGPT": 1.2}
"""Coefficient of variation of lengths of which a source states the mean and the data set; assumed."""


def _law(lengths: Lengths, what: str) -> dict[str, Any]:
    """Fixed lengths as they are; those of a data set as lognormal ones of its mean."""
    mean = lengths.mean
    if mean is None and "ShareGPT" in lengths.name:
        mean = _SHAREGPT_PROMPT_TOKENS
    if mean is None:
        raise NotSimulated(f"lengths of {what} were not stated")
    if not lengths.spread:
        return {"dist": "fixed", "value": round(mean)}
    cv = next((value for name, value in _SPREAD.items() if name in lengths.name), 0.5)
    return {"dist": "lognormal", "mean": mean, "cv": cv, "cap": 2048}
