"""Presets of llama.cpp's server and of Ollama, which puts a queue in front of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policies.preset import Preset, Rule, Value

_DEFAULTS: Mapping[str, Value | Rule] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 2048,
    "cont_batching": True,
}
_STEP = (
    "a step computes one token for each slot that generates, then prompts in slot order until max_num_batched_tokens"
    " (n_batch) are used; one prompt may take all; cont_batching = false: prompts only when no slot generates"
)
_SLOTS = (
    "a request takes the free slot that was used least recently, the highest-numbered of those never used, or waits;"
    " requests called by slots that one step releases take them in reverse order of arrival"
)
_FULL = "a request ends when the context of its slot is full, and a prompt that fills it is refused"
_LEFT_OUT = (
    "the prompt cache of a slot: no slot is chosen for what it holds, and nothing of it is used again",
    "context shift, drafts, embeddings; a closed-loop client's next request missing one step; host time",
    "0c1e57098 was seen running; max_num_seqs is what an automatic -np takes, from memory",
)
_PASSES = "split KV: only neighbouring slots share a pass, so that scattered ones cost more"
_CONTEXT = (
    "max_model_len is the context of one slot (n_ctx / -np), as long as the model's if not set, and the pool holds as"
    " many slots as there is memory for, at most max_num_seqs; llama.cpp takes the context for all slots together"
)


def _llamacpp(suffix: str, summary: str, *, kv_unified: bool) -> Preset:
    memory = (
        "all slots take cells from one pool of tokens as they grow"
        if kv_unified
        else "each slot has max_model_len tokens to itself"
    )
    pool = (
        "the pool (n_ctx) is all that the card has room for; llama.cpp takes the model's context, so set num_gpu_blocks"
        " to n_ctx / 16",
        "unified KV: a pass pays for every cell in the pool, ended requests included",
    )
    shared = (
        "a prompt waits for cells, and while a token has none the request that got its slot last ends with kv_capacity;"
        " the server fails all requests that have a slot",
    )
    return Preset(
        name=f"llamacpp{suffix}",
        system="llama.cpp",
        version="0c1e57098",
        source="llama.cpp 0c1e57098, tools/server: excerpts read, and seen running; no recordings",
        summary=summary,
        policy="policies.systems.slots:SlotServer",
        defaults=MappingProxyType(_DEFAULTS),
        fixed=MappingProxyType({"kv_unified": kv_unified}),
        blocks="cell" if kv_unified else "slot",
        modelled=(_STEP, _SLOTS, memory, _FULL, "nobody is preempted"),
        left_out=(*(pool if kv_unified else (_CONTEXT, _PASSES)), *_LEFT_OUT),
        guarded=shared if kv_unified else (),
    )


def _context(values: Mapping[str, Value]) -> int:
    return min(4096, int(values["max_model_len"]))


LLAMACPP = (
    _llamacpp("", "slots with a context each, all in one batch; as with an explicit -np", kv_unified=False),
    _llamacpp("-unified", "slots that share one pool of KV cells, all in one batch", kv_unified=True),
    Preset(
        name="ollama",
        system="Ollama",
        version="fb3076099",
        source="Ollama HEAD fb3076099, server/sched.go, excerpts; batching is llama-server's (llama.cpp 0c1e57098)",
        summary="requests one after the other (OLLAMA_NUM_PARALLEL 1); at most 512 wait, the next is refused",
        policy="policies.systems.slots:SlotServer",
        defaults=MappingProxyType(
            {
                "max_model_len": Rule("4096 (num_ctx), or the model's if less", lambda values, card: _context(values)),
                "max_num_seqs": 1,
                "max_num_queued_reqs": 512,
                "max_num_batched_tokens": 512,
                "cont_batching": True,
            }
        ),
        fixed=MappingProxyType({"kv_unified": False, "keeps_order": True}),
        blocks="slot",
        modelled=(
            "max_num_seqs (OLLAMA_NUM_PARALLEL) requests are with llama-server, the others wait in order of arrival",
            "max_num_queued_reqs (OLLAMA_MAX_QUEUE) may wait; the next is refused at once (overloaded: 503, busy)",
            "each parallel request has max_model_len tokens (num_ctx) to itself, reserved when the model is loaded",
            _STEP,
            _FULL,
        ),
        left_out=(
            "loading, unloading and sharing memory between models; the channel is taken for the queue of all who wait",
            "num_ctx and num_batch (max_num_batched_tokens) are assumed from memory",
            "the prompt cache of a slot, context shift, and host time",
        ),
    ),
)
"""llama.cpp with split and unified KV, and Ollama."""
