"""Builds the policy that a log's config line describes, as the real engine with all its faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from policies.conformance.log import DecisionLog
from policies.core.errors import ConfigError, LogError, closest
from policies.core.kv import KvManager
from policies.core.protocols import Policy
from policies.systems.paged import PREEMPTION_MODES, Paged
from policies.systems.paged_chunked import PagedChunked
from policies.systems.token_budget import TokenBudget

_LABELS = ("type", "schema", "scenario", "system", "engine", "version", "commit", "policy")
_SIZES = ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
_V1 = ("enable_chunked_prefill", "enable_prefix_caching", "long_prefill_token_threshold")
_V0 = ("enable_chunked_prefill", "watermark", "num_cpu_blocks", "preemption_mode")


def build_policy(log: DecisionLog) -> Policy:
    """The policy of a log; LogError names a system, version or setting that is not modelled."""
    key = " ".join(log.setting(part, str) for part in ("system", "engine", "version"))
    if key not in _ENGINES:
        raise LogError(f"{log.path}:1: '{key}' is not modelled; known are {', '.join(_ENGINES)}")
    settings, build = _ENGINES[key]
    known = (*_LABELS, *_SIZES, *settings)
    for name in log.config:
        if name not in known:
            raise LogError(f"{log.path}:1: setting '{name}' is not modelled for {key}{closest(name, known)}")
    for name in _SIZES:
        if log.setting(name, int) < 1:
            raise LogError(f"{log.path}:1: '{name}' must be at least 1")
    if log.setting("policy", str, "fcfs") != "fcfs":
        raise LogError(f"{log.path}:1: policy '{log.config['policy']}' is not modelled for {key}; fcfs is")
    try:
        return build(log)
    except ConfigError as error:
        raise LogError(f"{log.path}:1: {error}") from None


def _vllm_v1(log: DecisionLog) -> Policy:
    """vLLM 0.11.2; block 0 is the null block."""
    caching = log.setting("enable_prefix_caching", bool, False)
    kv = KvManager(
        log.setting("num_blocks", int),
        log.setting("block_size", int),
        enable_prefix_caching=caching,
        null_block=True,
    )
    return TokenBudget(
        kv,
        max_num_seqs=log.setting("max_num_seqs", int),
        max_num_batched_tokens=log.setting("max_num_batched_tokens", int),
        max_model_len=log.setting("max_model_len", int),
        enable_chunked_prefill=log.setting("enable_chunked_prefill", bool, True),
        long_prefill_token_threshold=log.setting("long_prefill_token_threshold", int, 0),
        faithful=True,
    )


def _vllm_v0(log: DecisionLog) -> Policy:
    """vLLM 0.6.3; its watermark is 1 % of the blocks unless the log says otherwise."""
    kv = KvManager(
        log.setting("num_blocks", int),
        log.setting("block_size", int),
        num_cpu_blocks=log.setting("num_cpu_blocks", int, 0),
    )
    policy = PagedChunked if log.setting("enable_chunked_prefill", bool, False) else Paged
    return policy(
        kv,
        max_num_seqs=log.setting("max_num_seqs", int),
        max_num_batched_tokens=log.setting("max_num_batched_tokens", int),
        max_model_len=log.setting("max_model_len", int),
        watermark=log.setting("watermark", float, 0.01),
        preemption_mode=_preemption_mode(log),
        faithful=True,
    )


def _preemption_mode(log: DecisionLog) -> Literal["recompute", "swap"]:
    mode = log.setting("preemption_mode", str, "recompute")
    if mode not in ("recompute", "swap"):
        raise LogError(
            f"{log.path}:1: preemption_mode '{mode}' is not vLLM's{closest(mode, PREEMPTION_MODES[:2])}"
        )
    return "swap" if mode == "swap" else "recompute"


_ENGINES: dict[str, tuple[tuple[str, ...], Callable[[DecisionLog], Policy]]] = {
    "vllm v1 0.11.2": (_V1, _vllm_v1),
    "vllm v0 0.6.3.post1": (_V0, _vllm_v0),
}
