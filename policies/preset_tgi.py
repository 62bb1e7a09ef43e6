"""Presets of Hugging Face's Text Generation Inference."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policies.preset import Preset, Rule, Value

_NO_PREEMPTION = (
    "the blocks of prompt + max_tokens - 1 tokens are taken when a request starts and held to its end: nobody is ever"
    " preempted or swapped"
)
_DOOR = (
    "refused at once: a prompt over max_input_length (prompt_too_long), prompt + max_tokens over max_model_len, which"
    " is TGI's max_total_tokens (over_length), and who comes while max_concurrent_requests are inside (overloaded)"
)
_LEFT_OUT = (
    "a request whose client has gone leaves at once; TGI drops it when it is popped, or after the step",
    "speculation, sliding windows, models that need padding, the time between router and shards: no host term",
)
_GUARDED = (
    "a head of the queue that the empty engine cannot take ends with kv_capacity; the engine, and everybody behind it,"
    " waits for ever",
    "a pool smaller than max_model_len tokens is used as it is; the router refuses to start",
)


def _shorter(limit: int) -> Rule:
    """max_total_tokens of a version, for models that take as many."""
    return Rule(f"{limit} (max_total_tokens), or the model's if less", lambda values, card: min(limit, _length(values)))


def _length(values: Mapping[str, Value]) -> int:
    return int(values["max_model_len"])


def _places(values: Mapping[str, Value]) -> int:
    return int(values["max_concurrent_requests"])


_TGI_14: Mapping[str, Value | Rule] = {
    "max_model_len": _shorter(2048),
    "max_input_length": Rule("1024, or max_model_len - 1 if less", lambda values, card: min(1024, _length(values) - 1)),
    "max_batch_prefill_tokens": 4096,
    "max_batch_total_tokens": Rule("0: all of the KV pool, as after warm-up", lambda values, card: 0),
    "waiting_served_ratio": 1.2,
    "max_waiting_tokens": 20,
    "max_concurrent_requests": 128,
    "max_num_seqs": Rule(
        "max_concurrent_requests; TGI 1.4 has no such limit of its own", lambda values, card: _places(values)
    ),
    "block_size": 16,
}

TGI = (
    Preset(
        name="tgi-1.4",
        system="Text Generation Inference",
        version="1.4.0",
        source="TGI v1.4.0 (c2d4a3b5), router/src/queue.rs and infer.rs, as read; no recordings",
        summary="prompts alone in a step, memory reserved to max_tokens; joins wait for company or for 20 tokens",
        policy="policies.systems.tgi:Tgi",
        defaults=MappingProxyType(_TGI_14),
        fixed=MappingProxyType({"rounds_to_blocks": True}),
        blocks="whole",
        refuses_small_pool=True,
        modelled=(
            "a step prefills new requests alone, while the running ones wait, or decodes all",
            "beside a running batch a new one starts if it has at least waiting_served_ratio times as many requests, or"
            " any once max_waiting_tokens tokens were made since the last prefill, which is the first of them",
            "it is taken from the head of the queue: prompts up to max_batch_prefill_tokens; prompts + max_tokens, each"
            " in whole blocks, up to max_batch_total_tokens less what the running batch holds; the first misfit stops",
            _NO_PREEMPTION,
            _DOOR,
        ),
        left_out=_LEFT_OUT,
        guarded=_GUARDED,
    ),
)
"""TGI 1.4."""
