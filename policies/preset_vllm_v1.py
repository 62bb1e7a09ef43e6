"""Presets of vLLM V1: 0.11.2 and 0.33.0, first come, first served and by priority."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from policies.preset import Graphs, HostTime, Preset, Rule, Value

if TYPE_CHECKING:
    from policies.catalog import Card


def _is_large(card: Card | None) -> bool:
    """vLLM's rule for its larger defaults: at least 70 GiB, and no A100."""
    return card is not None and card.memory_bytes >= 70 << 30 and "a100" not in card.name


def _tokens_011(card: Card | None) -> int:
    return 8_192 if _is_large(card) else 2_048


def _tokens_033(card: Card | None) -> int:
    return 16_384 if card is not None and card.memory_bytes >= 160 << 30 else _tokens_011(card)


def _token_rule(text: str, tokens_of: Callable[[Card | None], int]) -> Rule:
    def tokens(values: Mapping[str, Value], card: Card | None) -> Value:
        least = 0 if values["enable_chunked_prefill"] else int(values["max_model_len"])
        return max(tokens_of(card), least)

    return Rule(f"{text}; without chunked prefill at least max_model_len", tokens)


def _defaults(tokens: Rule) -> dict[str, Value | Rule]:
    return {
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": Rule(
            "256, or 1024 on cards of 70 GiB and more other than A100",
            lambda values, card: 1_024 if _is_large(card) else 256,
        ),
        "block_size": 16,
        "enable_prefix_caching": True,
        "long_prefill_token_threshold": 0,
    }


_DEFAULTS_011 = _defaults(
    _token_rule("2048, or 8192 on cards of 70 GiB and more other than A100", _tokens_011)
)
_DEFAULTS_033: Mapping[str, Value | Rule] = {
    **_defaults(
        _token_rule(
            "2048, or 8192 on cards of 70 GiB and more other than A100, or 16384 from 160 GiB on", _tokens_033
        )
    ),
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
}
_GRAPHS = Graphs((1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)), pads_chunks=True)
"""Sizes of servers with 256 sequences and more; any step of up to 512 tokens is padded."""

_HOST_011 = HostTime(
    0.66e-3,
    0.0,
    "what a recorded run of vLLM 0.19 takes beyond its operators (300 requests, Llama-3.1-8B on RTX PRO 6000, from"
    " LLMServingSim's repository): batchscope calibrate validate --set recorded",
)

_DEFAULTS_OF = "the API server"
"""vLLM V1 takes larger ones when its LLM class is used offline."""

_MODELLED = "running requests first, then waiting ones, from one budget; block 0 unused"
_MODELLED_011 = (f"{_MODELLED}; no watermark", "prefix cache by blocks, its eviction order included")
_MODELLED_033 = (
    _MODELLED,
    "a waiting request is admitted once the blocks of all it knows are free and leave the watermark, which holds"
    " while others run; without chunks a prompt too long for the step hides those behind it",
    "prefix cache by blocks; freed blocks without a hash are handed out first, hashed ones last",
    "long_prefill_token_threshold is off for a request that has the engine to itself",
)
_FCFS = "victims from the end of the running list"
_PRIORITY_011 = (
    "small priorities first, then by arrival; an arrival pushes nobody out; where a running request lacks a block,"
    " the worst gives way, even if this step has scheduled it",
    "a victim that is the request itself ends the walk over the running list",
)
_PRIORITY_033 = (_PRIORITY_011[0], "a victim that is the request itself does not end the walk")
_LEFT_OUT_011 = (
    "asynchronous scheduling, speculative decoding, KV connectors",
    "tokenization and the front end",
)
_ASYNC = (
    "asynchronous scheduling, on by default where the executor supports it: vllm-0.33-async; here each step sees the"
    " tokens of the one before (--no-async-scheduling)"
)
_PLANS_AHEAD = (
    "a step is planned while the one before runs, so that an arrival is computed one step later, what stops at an"
    " end-of-sequence token is computed once more for nothing, and memory comes back one plan later"
)
_LEFT_OUT_033 = (
    "speculative decoding, KV connectors, max_num_active_seqs, prefill_schedule_interval, adaptive threshold,"
    " max_num_queued_reqs and max_num_queued_tokens (all off by default)",
    "sampling and tokenization: no host term",
)
_OUTGROWN = "a request alone in the pool that cannot get its next block ends with kv_capacity"
_NEVER_FITS = "so does one that even the empty pool cannot take"
_BUDGET = "policies.systems.token_budget:TokenBudget"
_BUDGET_PRIORITY = "policies.systems.token_budget_priority:PriorityTokenBudget"
_BUDGET_033 = "policies.systems.token_budget_033:TokenBudget033"
_BUDGET_ASYNC = "policies.systems.token_budget_async:AsyncTokenBudget"


def _v011(name: str, summary: str, policy: str, *modelled: str, order: str = "fcfs") -> Preset:
    return Preset(
        name=name,
        system="vLLM",
        version="0.11.2 (V1 scheduler)",
        source="vllm 0.11.2, vllm/v1/core/sched/scheduler.py; recorded decisions of that version",
        summary=summary,
        policy=policy,
        defaults=MappingProxyType(_DEFAULTS_011),
        fixed=MappingProxyType({"scheduling_policy": order}),
        null_block=True,
        checks_like_vllm=True,
        modelled=(*_MODELLED_011, *modelled),
        left_out=_LEFT_OUT_011,
        guarded=(f"{_OUTGROWN}; the engine starts it over for ever", _NEVER_FITS),
        host=_HOST_011,
        graphs=_GRAPHS,
        recorded_as=("vllm", "v1", "0.11.2"),
        defaults_of=_DEFAULTS_OF,
    )


def _v033(
    name: str, summary: str, *modelled: str, order: str = "fcfs", policy: str = _BUDGET_033, left_out: str = _ASYNC
) -> Preset:
    return Preset(
        name=name,
        system="vLLM",
        version="0.33.0 (V1 scheduler)",
        source="vllm 0.33.0 (4ba787ec9), vllm/v1/core/sched/scheduler.py; recorded decisions of that version",
        summary=summary,
        policy=policy,
        defaults=MappingProxyType(_DEFAULTS_033),
        fixed=MappingProxyType({"scheduling_policy": order}),
        null_block=True,
        unhashed_first=True,
        checks_like_vllm=True,
        modelled=(*_MODELLED_033, *modelled),
        left_out=(left_out, *_LEFT_OUT_033) if left_out else _LEFT_OUT_033,
        guarded=(f"{_OUTGROWN}; the engine never admits it, or anybody behind it, again", _NEVER_FITS),
        graphs=_GRAPHS,
        recorded_as=("vllm", "v1", "0.33.0"),
        defaults_of=_DEFAULTS_OF,
    )


VLLM_V1 = (
    _v011(
        "vllm-0.11",
        "token budget a step, prompts in chunks beside decodes, prefix cache, recompute",
        _BUDGET,
        _FCFS,
    ),
    _v011(
        "vllm-0.11-priority", "the same, by priority", _BUDGET_PRIORITY, *_PRIORITY_011, order="priority"
    ),
    _v033("vllm-0.33", "token budget a step, admission by whole prompts, prefix cache, recompute", _FCFS),
    _v033("vllm-0.33-priority", "the same, by priority", *_PRIORITY_033, order="priority"),
    _v033(
        "vllm-0.33-async", "the same, planned one step ahead", _FCFS, _PLANS_AHEAD, policy=_BUDGET_ASYNC, left_out=""
    ),
)
"""vLLM V1 with that version's defaults."""
