"""Presets of SGLang."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from policies.preset import Preset, Rule, Value

if TYPE_CHECKING:
    from policies.catalog import Card

_MIB = 1 << 20


def _chunk_tokens(values: Mapping[str, Value], card: Card | None) -> Value:
    """By the memory of the card in MiB; without a card the engine takes 4,096."""
    if card is None:
        return 4_096
    memory_mib = card.memory_bytes // _MIB
    return 2_048 if memory_mib < 35 * 1_024 else 8_192 if memory_mib < 160 * 1_024 else 16_384


_DEFAULTS: Mapping[str, Value | Rule] = MappingProxyType(
    {
        "max_num_batched_tokens": 16_384,
        "chunked_prefill_size": Rule(
            "2048 on cards below 35 GiB, 8192 below 160 GiB, else 16384; 0: prompts are not cut", _chunk_tokens
        ),
        "max_num_seqs": 4_096,
        "enable_prefix_caching": True,
        "scheduling": "fcfs",
        "schedule_conservativeness": 1.0,
        "enable_mixed_chunk": False,
        "ignore_eos": False,
    }
)
_MODELLED = (
    "prefill first; admission reserves prompt + max_tokens (at most 4096) of a new request and a part of what running"
    " ones may still make, a part that shrinks from 0.7 with each decode step (new_token_ratio)",
    "the latch: once memory or the request limit stops admission, nobody is tried before a running request has gone",
    "retraction: fewest output tokens first, until 20 slots a request are free; then reserves close to everything",
    "radix cache of single tokens, least recently used leaves evicted; the orders lpm, dfs-weight, lof; one prompt at a"
    " time in chunks; mixed chunks; exact admission of requests that all run to max_tokens (ignore_eos)",
    "a max_tokens that context or pool could not hold is lowered, longer prompts are refused at the door",
)
_NO_OVERLAP = (
    "overlap scheduling, on by default in the server: sglang-0.4.9-overlap; here each step sees the tokens of the one"
    " before (--disable-overlap-schedule)"
)
_OVERLAP = (
    "overlap scheduling: a step is planned before the tokens of the one before are known, so that every test sees"
    " output counts one behind and a request that ends is run once more for nothing"
)
_LEFT_OUT = (
    "pages of more than one token, hierarchical cache, speculative decoding, LoRA limits, random order, data parallel"
    " attention",
    "an abort of a running request is felt at once; the engine computes one more token for it",
    "max_num_seqs is the engine's for pools of at least 8 contexts; it takes 2048 to 4096 by the size of the pool, and"
    " never more than half the slots",
    "the pool by this project's rule, not by mem_fraction_static; tokenization, detokenization: no host term",
)
_GUARDED = (
    "a request alone in the pool that gets no slot ends with kv_capacity; the engine ends on an assertion",
    "mixed steps never retract: where slots lack, the decodes wait, or the prompt in chunks starts over from the end of"
    " the queue; the engine dies out of memory",
    "a head of the queue that the empty pool cannot take ends with kv_capacity; the engine never admits anybody again",
)


def _sglang(variant: str, summary: str, *, overlap: bool = False, **changes: Value) -> Preset:
    return Preset(
        name=f"sglang-0.4.9{variant}",
        system="SGLang",
        version="0.4.9",
        source="sglang 0.4.9, srt/managers/scheduler.py and schedule_policy.py; recorded decisions of that version",
        summary=summary,
        policy="policies.systems.sglang:SgLang",
        defaults=MappingProxyType({**_DEFAULTS, **changes}),
        blocks="radix",
        fixed=MappingProxyType({"overlap": True} if overlap else {}),
        modelled=(*_MODELLED, _OVERLAP) if overlap else _MODELLED,
        left_out=_LEFT_OUT if overlap else (_NO_OVERLAP, *_LEFT_OUT),
        guarded=_GUARDED,
    )


SGLANG = (
    _sglang("", "prefill first, optimistic admission with retraction, radix cache"),
    _sglang("-overlap", "the same, planned one step ahead", overlap=True),
    _sglang("-lpm", "the same, longest cached prefix first", scheduling="lpm"),
    _sglang("-dfs-weight", "the same, depth first over the radix tree", scheduling="dfs-weight"),
    _sglang("-mixed", "the same, decodes ride along with prompts in chunks", enable_mixed_chunk=True),
    _sglang("-no-cache", "the same, without prefix cache", enable_prefix_caching=False),
)
"""SGLang with its defaults, and with one setting changed each."""
