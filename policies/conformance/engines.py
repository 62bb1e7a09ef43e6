"""Builds the policy that a log's config line describes, as the real engine with all its faults."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, cast, get_args

from policies.conformance.log import DecisionLog
from policies.core.errors import ConfigError, LogError, closest
from policies.core.kv import KvManager
from policies.core.protocols import Policy
from policies.core.radix_kv import RadixKv
from policies.systems.multi_step import MultiStep
from policies.systems.paged import PREEMPTION_MODES, Paged
from policies.systems.paged_027 import Paged027
from policies.systems.paged_chunked import PagedChunked
from policies.systems.paged_priority import PagedPriority
from policies.systems.request_batcher import RayServeBatch
from policies.systems.sarathi import Sarathi, Scheduler
from policies.systems.sglang import SgLang
from policies.systems.sglang_queue import Scheduling
from policies.systems.splitfuse import SplitFuse
from policies.systems.token_budget import TokenBudget
from policies.systems.token_budget_033 import TokenBudget033
from policies.systems.token_budget_async import AsyncTokenBudget
from policies.systems.token_budget_priority import PriorityTokenBudget, SchedulingPolicy
from policies.systems.vidur import Vidur

_LABELS = ("type", "schema", "scenario", "system", "engine", "version", "commit", "policy")
_VLLM = ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
_V1 = ("enable_chunked_prefill", "enable_prefix_caching", "long_prefill_token_threshold")
_V1_033 = (*_V1, "reserve_full_isl", "watermark", "async_scheduling")
_V0 = ("enable_chunked_prefill", "watermark", "num_cpu_blocks", "preemption_mode")
_V0_063 = (*_V0, "num_scheduler_steps")
_SARATHI = ("block_size", "num_blocks", "max_num_seqs", "max_model_len")
_DYNAMIC = ("low_chunk_size", "high_chunk_size", "chunk_schedule_max_tokens", "chunk_schedule_stages")
_SARATHI_TOO = ("chunk_size", "max_batched_tokens", "enable_dynamic_chunking_schedule", *_DYNAMIC)
_VIDUR = ("block_size", "num_blocks", "batch_size_cap", "max_tokens")
_VIDUR_TOO = ("chunk_size", "max_tokens_in_batch", "watermark")
_SGLANG = ("max_total_num_tokens", "max_running_requests", "max_prefill_tokens", "context_len", "page_size")
_SGLANG_ORDER = ("schedule_policy", "schedule_conservativeness", "enable_mixed_chunk", "ignore_eos")
_SGLANG_TOO = ("chunked_prefill_size", "cache", "overlap", *_SGLANG_ORDER)
_MII = ("block_size", "num_blocks", "max_ragged_batch_size", "max_ragged_sequence_count", "max_length")
_POOLS = ("num_blocks", "num_cpu_blocks", "max_total_num_tokens", "max_batch_size")
_MOST_BLOCKS = 10_000_000
"""All blocks of a pool are looked at after each step of a replay."""

_RAY = ("batch_wait_timeout_s", "service_base_s", "service_per_item_s")


class _Engine(NamedTuple):
    """How an engine's logs are read: settings of at least 1, further ones, scheduling policies, the builder, and
    the setting that limits a request's length."""

    sizes: tuple[str, ...]
    settings: tuple[str, ...]
    policies: tuple[str, ...]
    build: Callable[[DecisionLog], Policy]
    longest: str = "max_model_len"


def build_policy(log: DecisionLog) -> Policy:
    """The policy of a log; LogError names a system, version or setting that is not modelled."""
    key = _key(log)
    if key not in _ENGINES:
        raise LogError(f"{log.path}:1: '{key}' is not modelled; known are {', '.join(_ENGINES)}")
    engine = _ENGINES[key]
    known = (*_LABELS, *engine.sizes, *engine.settings)
    for name in log.config:
        if name not in known:
            raise LogError(f"{log.path}:1: setting '{name}' is not modelled for {key}{closest(name, known)}")
    for name in engine.sizes:
        if log.setting(name, int) < 1:
            raise LogError(f"{log.path}:1: '{name}' must be at least 1")
    for name in _POOLS:
        if name in log.config and not 0 <= log.setting(name, int) <= _MOST_BLOCKS:
            raise LogError(f"{log.path}:1: '{name}' must be at least 0 and at most {_MOST_BLOCKS}")
    policy = log.setting("policy", str, engine.policies[0])
    if policy not in engine.policies:
        modelled = ", ".join(engine.policies)
        raise LogError(f"{log.path}:1: policy '{policy}' is not modelled for {key}; known: {modelled}")
    try:
        return engine.build(log)
    except ConfigError as error:
        raise LogError(f"{log.path}:1: {error}") from None


def max_model_len(log: DecisionLog) -> int:
    """Most tokens of one request in the engine of a log that ``build_policy`` took."""
    return log.setting(_ENGINES[_key(log)].longest, int)


def _key(log: DecisionLog) -> str:
    """System, engine if it has several, and version or the start of the commit."""
    system, engine = log.setting("system", str), log.setting("engine", str, "")
    version = log.setting("version", str, "") or log.setting("commit", str, "")[:7]
    return " ".join(filter(None, (system, engine, version)))


def _vllm_v1(log: DecisionLog) -> Policy:
    """vLLM 0.11.2; block 0 is the null block."""
    caching = log.setting("enable_prefix_caching", bool, False)
    kv = KvManager(
        log.setting("num_blocks", int),
        log.setting("block_size", int),
        enable_prefix_caching=caching,
        null_block=True,
    )
    by_priority = log.setting("policy", str, "fcfs") == "priority"
    policy = PriorityTokenBudget if by_priority else TokenBudget
    return policy(
        kv,
        max_num_seqs=log.setting("max_num_seqs", int),
        max_num_batched_tokens=log.setting("max_num_batched_tokens", int),
        max_model_len=log.setting("max_model_len", int),
        enable_chunked_prefill=log.setting("enable_chunked_prefill", bool, True),
        long_prefill_token_threshold=log.setting("long_prefill_token_threshold", int, 0),
        faithful=True,
    )


def _vllm_033(log: DecisionLog) -> Policy:
    """vLLM 0.33.0; what its log leaves out is off, except the whole-prompt gate."""
    kv = KvManager(
        log.setting("num_blocks", int),
        log.setting("block_size", int),
        enable_prefix_caching=log.setting("enable_prefix_caching", bool, False),
        null_block=True,
        unhashed_first=True,
    )
    is_async = log.setting("async_scheduling", bool, False)
    policy = AsyncTokenBudget if is_async else TokenBudget033
    return policy(
        kv,
        max_num_seqs=log.setting("max_num_seqs", int),
        max_num_batched_tokens=log.setting("max_num_batched_tokens", int),
        max_model_len=log.setting("max_model_len", int),
        scheduling_policy=cast(SchedulingPolicy, log.setting("policy", str, "fcfs")),
        enable_chunked_prefill=log.setting("enable_chunked_prefill", bool, True),
        long_prefill_token_threshold=log.setting("long_prefill_token_threshold", int, 0),
        scheduler_reserve_full_isl=log.setting("reserve_full_isl", bool, True),
        watermark=log.setting("watermark", float, 0.0),
        faithful=True,
    )


def _vllm_v0(log: DecisionLog) -> Policy:
    """vLLM 0.6.3; its watermark is 1 % of the blocks unless the log says otherwise."""
    kv = KvManager(
        log.setting("num_blocks", int),
        log.setting("block_size", int),
        num_cpu_blocks=log.setting("num_cpu_blocks", int, 0),
    )
    policy: Callable[..., Paged] = Paged
    steps = log.setting("num_scheduler_steps", int, 1)
    if steps > 1:
        for name, plain, given in (
            ("enable_chunked_prefill", False, log.setting("enable_chunked_prefill", bool, False)),
            ("policy", "fcfs", log.setting("policy", str, "fcfs")),
        ):
            if given != plain:
                raise ConfigError(f"'{name}' = {given!r} is not modelled together with 'num_scheduler_steps' = {steps}")
        policy = partial(MultiStep, num_scheduler_steps=steps)
    elif log.setting("enable_chunked_prefill", bool, False):
        policy = PagedChunked  # whatever the scheduling policy
    elif log.setting("policy", str, "fcfs") == "priority":
        policy = PagedPriority
    return policy(
        kv,
        max_num_seqs=log.setting("max_num_seqs", int),
        max_num_batched_tokens=log.setting("max_num_batched_tokens", int),
        max_model_len=log.setting("max_model_len", int),
        watermark=log.setting("watermark", float, 0.01),
        preemption_mode=_preemption_mode(log),
        faithful=True,
    )


def _vllm_027(log: DecisionLog) -> Policy:
    """vLLM 0.2.7; its watermark is 1 % of the blocks."""
    return Paged027(
        KvManager(
            log.setting("num_blocks", int),
            log.setting("block_size", int),
            num_cpu_blocks=log.setting("num_cpu_blocks", int, 0),
        ),
        max_num_seqs=log.setting("max_num_seqs", int),
        max_num_batched_tokens=log.setting("max_num_batched_tokens", int),
        max_model_len=log.setting("max_model_len", int),
        max_paddings=log.setting("max_paddings", int, 256),
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


def _sarathi(log: DecisionLog) -> Policy:
    """Sarathi-Serve; the watermark, 1 % of the blocks, is no setting of it."""
    scheduler = log.setting("policy", str, "sarathi")
    tokens = stages = low = max_tokens = 0
    if scheduler in ("sarathi", "simple_chunking"):
        dynamic = log.setting("enable_dynamic_chunking_schedule", bool, False)
        tokens = log.setting("high_chunk_size" if dynamic else "chunk_size", int)
        if dynamic:
            low = log.setting("low_chunk_size", int)
            max_tokens = log.setting("chunk_schedule_max_tokens", int)
            stages = log.setting("chunk_schedule_stages", int)
    elif scheduler == "vllm":
        longest = log.setting("max_model_len", int)
        tokens = min(log.setting("max_batched_tokens", int, longest), longest)
    return Sarathi(
        KvManager(log.setting("num_blocks", int), log.setting("block_size", int)),
        max_num_seqs=log.setting("max_num_seqs", int),
        max_model_len=log.setting("max_model_len", int),
        scheduler=cast(Scheduler, scheduler),
        max_num_batched_tokens=tokens,
        low_chunk_size=low,
        chunk_schedule_max_tokens=max_tokens,
        chunk_schedule_stages=stages,
        faithful=True,
    )


def _vidur(log: DecisionLog) -> Policy:
    """Vidur, one pipeline stage."""
    scheduler = log.setting("policy", str, "sarathi")
    budget = {"sarathi": "chunk_size", "vllm": "max_tokens_in_batch"}.get(scheduler)
    return Vidur(
        KvManager(log.setting("num_blocks", int), log.setting("block_size", int)),
        max_num_seqs=log.setting("batch_size_cap", int),
        max_model_len=log.setting("max_tokens", int),
        scheduler=cast(Literal["sarathi", "vllm", "orca"], scheduler),
        max_num_batched_tokens=log.setting(budget, int) if budget else 0,
        watermark=log.setting("watermark", float, 0.01),
        faithful=True,
    )


def _sglang(log: DecisionLog) -> Policy:
    """SGLang with pages of one token; chunked_prefill_size null or -1 is no chunks."""
    if log.setting("page_size", int) != 1:
        raise ConfigError("'page_size' must be 1; larger pages are not modelled")
    cache = log.setting("cache", str, "radix")
    if cache not in ("radix", "chunk"):
        raise ConfigError(f"cache '{cache}' is not modelled; known: radix, chunk")
    chunk = 0 if log.config.get("chunked_prefill_size") is None else log.setting("chunked_prefill_size", int)
    return SgLang(
        RadixKv(log.setting("max_total_num_tokens", int), enable_prefix_caching=cache == "radix"),
        max_num_seqs=log.setting("max_running_requests", int),
        max_num_batched_tokens=log.setting("max_prefill_tokens", int),
        max_model_len=log.setting("context_len", int),
        chunked_prefill_size=max(chunk, 0),
        scheduling=cast(Scheduling, log.setting("schedule_policy", str, "fcfs")),
        schedule_conservativeness=log.setting("schedule_conservativeness", float, 1.0),
        enable_mixed_chunk=log.setting("enable_mixed_chunk", bool, False),
        ignore_eos=log.setting("ignore_eos", bool, False),
        overlap=log.setting("overlap", bool, True),
        fits_requests=False,
        faithful=True,
    )


def _mii(log: DecisionLog) -> Policy:
    """DeepSpeed-MII; far fewer sequences run than max_tracked_sequences allows."""
    return SplitFuse(
        KvManager(log.setting("num_blocks", int), log.setting("block_size", int)),
        max_num_seqs=log.setting("max_ragged_sequence_count", int),
        max_num_batched_tokens=log.setting("max_ragged_batch_size", int),
        max_model_len=log.setting("max_length", int),
        faithful=True,
    )


def _ray(log: DecisionLog) -> Policy:
    """Ray Serve's batching; batches are closed ahead from 2.60 on, and one runs at a time."""
    if log.setting("max_concurrent_batches", int, 1) != 1:
        raise ConfigError("'max_concurrent_batches' must be 1; more batches at a time are not modelled")
    for name in ("service_base_s", "service_per_item_s"):
        if log.setting(name, float) < 0:
            raise ConfigError(f"'{name}' must be at least 0")
    size = log.setting("max_batch_size", int)
    return RayServeBatch(
        KvManager(size, 2),
        max_num_seqs=size,
        max_model_len=2,
        batch_wait_timeout_s=log.setting("batch_wait_timeout_s", float),
        forms_ahead=log.setting("version", str) != "2.40.0",
    )


_ENGINES: dict[str, _Engine] = {
    "vllm v1 0.11.2": _Engine(_VLLM, _V1, ("fcfs", "priority"), _vllm_v1),
    "vllm v1 0.33.0": _Engine(_VLLM, _V1_033, ("fcfs", "priority"), _vllm_033),
    "vllm v0 0.6.3.post1": _Engine(_VLLM, _V0_063, ("fcfs", "priority"), _vllm_v0),
    "vllm v0 0.2.7": _Engine(_VLLM, ("max_paddings", *_V0[1:]), ("fcfs",), _vllm_027),
    "sarathi-serve 96f9911": _Engine(_SARATHI, _SARATHI_TOO, get_args(Scheduler), _sarathi),
    "vidur 7d47513": _Engine(_VIDUR, _VIDUR_TOO, ("sarathi", "vllm", "orca"), _vidur, "max_tokens"),
    "sglang 0.4.9": _Engine(_SGLANG, _SGLANG_TOO, ("fcfs",), _sglang, "context_len"),
    "ray-serve-batch 2.40.0": _Engine(("max_batch_size",), _RAY, ("fifo",), _ray),
    "ray-serve-batch 2.60.0": _Engine(("max_batch_size",), (*_RAY, "max_concurrent_batches"), ("fifo",), _ray),
    "deepspeed-mii 8abdd98": _Engine(_MII, ("max_tracked_sequences",), ("splitfuse",), _mii, "max_length"),
}
