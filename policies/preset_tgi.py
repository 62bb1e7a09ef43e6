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

_TGI_3: Mapping[str, Value | Rule] = {
    "enable_chunked_prefill": True,
    "max_input_length": Rule("max_model_len - 1", lambda values, card: _length(values) - 1),
    "max_batch_prefill_tokens": Rule(
        "4096, without chunks at least max_input_length",
        lambda values, card: 4096 if values["enable_chunked_prefill"] else max(4096, int(values["max_input_length"])),
    ),
    "max_batch_total_tokens": Rule("0: all of the KV pool, as after warm-up", lambda values, card: 0),
    "waiting_served_ratio": 0.3,
    "max_waiting_tokens": 20,
    "max_concurrent_requests": 128,
    "max_num_seqs": Rule("max_concurrent_requests: no further limit", lambda values, card: _places(values)),
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
    Preset(
        name="tgi-3",
        system="Text Generation Inference",
        version="3 (db931fcf)",
        source="TGI HEAD db931fcf (January 2026), backends/v3/src/queue.rs and backend.rs, as read; no recordings",
        summary="prompts cut to a budget, with decodes in one pass; memory reserved to max_tokens",
        policy="policies.systems.tgi:Tgi",
        chunked_policy="policies.systems.tgi_chunked:TgiChunked",
        defaults=MappingProxyType(_TGI_3),
        fixed=MappingProxyType({"by_blocks": True}),
        blocks="whole",
        null_block=True,
        refuses_small_pool=True,
        modelled=(
            "each round asks the queue; new requests run in one pass with the running batch, and a pass of all that"
            " run follows before the next round",
            "new prompts have max_batch_prefill_tokens less what the running batch computes in that pass; the last is"
            " cut to what is left, and goes on with what the other requests of the pass leave of that budget",
            "enable_chunked_prefill = false: as TGI 1.4, prompts alone, by waiting_served_ratio and max_waiting_tokens",
            "the blocks of prompt + max_tokens - 1 tokens must be free; block 0 is unused",
            _NO_PREEMPTION,
            _DOOR,
        ),
        left_out=(
            "prefix caching: every prompt is computed whole",
            "how a cut prompt goes on, and that a pass follows each one with new requests, was read in other versions"
            " of 3 and a fork; the tokens of the running batch are taken as those that its next pass computes",
            "max_batch_prefill_tokens and block_size are assumed: the launcher derives them from card and attention",
            "max_num_seqs (max_batch_size), which TGI ignores where it chunks, is kept to if it is set",
            *_LEFT_OUT,
        ),
        guarded=_GUARDED,
    ),
)
"""TGI 1.4 and 3."""
