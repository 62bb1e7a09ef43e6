"""Presets of TensorRT-LLM, one for each capacity scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policies.preset import Preset, Value

_DEFAULTS: Mapping[str, Value] = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 2048,
    "block_size": 32,
    "enable_chunked_prefill": False,
    "context_chunking_policy": "first_come_first_served",
}
_TOKENS = (
    "then tokens, in order of arrival: a generation costs one, a context its whole length; the first that exceeds"
    " max_num_batched_tokens (max_num_tokens) stops"
)
_CHUNKS = (
    "enable_chunked_prefill: generations come first; contexts that do not all fit into the rest of the tokens get what"
    " is left down to a multiple of block_size each (first_come_first_served), or block_size by turns (equal_progress);"
    " the blocks of a prompt are taken with its first chunk"
)
_BATCH = "batch order: contexts, those with a last chunk behind the others, then generations"
_LEFT_OUT = (
    "several micro-batches in flight (two steps of blocks looked ahead), priorities, beams, drafts, LoRA",
    "block reuse, which delays a context whose next block another one computes in this step",
    "the newer FORCE_CHUNK and PREFILL_FIRST",
    "max_num_seqs (max_batch_size), max_num_batched_tokens and block_size (tokens_per_block) are assumed from memory",
    "the sources were read, not run; no recordings, no host term",
)
_HOPELESS = (
    "a request that the whole pool cannot take ends with kv_capacity once nothing runs; the engine, and everybody"
    " behind it, waits for ever"
)


def _trtllm(
    name: str,
    rule: str,
    summary: str,
    *modelled: str,
    guarded: tuple[str, ...] = (),
) -> Preset:
    return Preset(
        name=f"trtllm-{name}",
        system="TensorRT-LLM",
        version="002f3cc (2026)",
        source="TensorRT-LLM, capacityScheduler.cpp and microBatchScheduler.cpp, and their Python twins at 002f3cc",
        summary=summary,
        policy="policies.systems.tensorrt:TensorRtLlm",
        defaults=MappingProxyType({**_DEFAULTS, "capacity_scheduler_policy": rule}),
        modelled=(*modelled, _TOKENS, _CHUNKS, _BATCH),
        left_out=_LEFT_OUT,
        guarded=(_HOPELESS, *guarded),
    )


TENSORRT_LLM = (
    _trtllm(
        "no-evict",
        "guaranteed_no_evict",
        "in-flight batching; starts a request when it is sure to run to its end, preempts nobody",
        "memory first: a request starts while the blocks of prompt + max_tokens fit beside those that the running ones"
        " may still need; the first misfit stops",
    ),
    _trtllm(
        "max-utilization",
        "max_utilization",
        "in-flight batching; starts a request when its next step fits, pauses the last started one when blocks run out",
        "memory first, down the line in order of arrival: each needs the blocks of its next step (a new context those"
        " of its prompt); at a misfit the last started request from there on is paused and the walk goes on up to it;"
        " without one it stops",
        "a paused request keeps its place, and is computed again, prompt and what it made",
        guarded=(
            "without chunks, a paused request that has outgrown the tokens of a step ends with kv_capacity once nothing"
            " runs; the engine could never take it back",
        ),
    ),
    _trtllm(
        "static",
        "static_batch",
        "the engine's static mode: a batch starts when nothing generates, within memory and tokens of a step",
        "memory first, when nothing generates: as no-evict; nobody joins a batch that generates, a prompt cut into"
        " chunks included, which then waits with its blocks",
        "a request that ends frees its memory at once and is answered at once",
    ),
)
"""No-evict, max-utilization and static."""
