"""Presets of Sarathi-Serve and Vidur, each with the schedulers it emulates."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from policies.preset import Preset, Rule, Value

_CHUNK: Mapping[str, Value | Rule] = {"max_num_batched_tokens": 512}
_DYNAMIC: Mapping[str, Value | Rule] = {
    "low_chunk_size": 0,
    "chunk_schedule_max_tokens": 0,
    "chunk_schedule_stages": 0,
}
_LENGTH: Mapping[str, Value | Rule] = {
    "max_num_batched_tokens": Rule("max_model_len, and never more", lambda values, card: values["max_model_len"])
}
_ALL_BLOCKS = "a prompt gets the blocks of all its tokens at once, and leaves 1 % of the blocks free"
_VICTIMS = (
    "a decoding request asks for a free block in every step, even if it takes none; the last in order of arrival"
    " gives way and is computed again"
)
_NEVER = (
    "a request that the pool less its reserve can never hold ends with kv_capacity; the engine, and everybody behind"
    " it, waits for ever"
)
_FORGOTTEN = (
    "a request that gives way in a step in which nothing else runs is computed again; the engine never resets it,"
    " and it waits for ever"
)
_DROPPED = "a prompt that leaves no room for an output token is dropped when its turn comes"

# -- Sarathi-Serve -------------------------------------------------------------------------------------------


def _sarathi(
    scheduler: str,
    summary: str,
    defaults: Mapping[str, Value | Rule],
    modelled: tuple[str, ...],
    *,
    suffix: str = "",
    guarded: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
    blocks: Literal["paged", "reserved"] = "paged",
    evidence: str = "recorded decisions of that commit",
) -> Preset:
    paged = blocks == "paged"
    forgets = ("a preempted request making max_tokens more, since the engine forgets those made",) if paged else ()
    return Preset(
        name=f"sarathi-96f9911{suffix}",
        system="Sarathi-Serve",
        version="96f9911",
        source=f"Sarathi-Serve 96f9911, sarathi/core/scheduler/{scheduler}_scheduler.py; {evidence}",
        summary=summary,
        policy="policies.systems.sarathi:Sarathi",
        defaults=MappingProxyType({**defaults, "max_num_seqs": 128, "block_size": 16}),
        fixed=MappingProxyType({"scheduler": scheduler}),
        blocks=blocks,
        refuses_small_pool=True,
        modelled=(*modelled, *((_ALL_BLOCKS, _VICTIMS) if paged else ()), _DROPPED),
        left_out=(*left_out, *forgets, "pipeline stages", "sampling and tokenization: no host term"),
        guarded=((_NEVER,) if paged else ()) + guarded,
    )


SARATHI = (
    _sarathi(
        "sarathi",
        "512 tokens a step: decodes, then prompts in chunks; recompute",
        {**_CHUNK, **_DYNAMIC},
        (
            "decodes first, then half-prefilled prompts, then new ones, from one chunk size; prompts lead the batch",
            "in the step in which it gave way a request is judged by its old progress: a decoding one closes the"
            " queue, a half-prefilled one may come back with a smaller chunk",
            "dynamic chunks where chunk_schedule_stages is set: from max_num_batched_tokens down to low_chunk_size"
            " over chunk_schedule_max_tokens tokens of a prompt (read in that file, no recorded decisions)",
        ),
        guarded=(
            _FORGOTTEN,
            "a prompt beyond its chunk schedule goes on with the last size, and one whose size is more than used up"
            " waits; the engine ends on an assertion",
        ),
    ),
    _sarathi(
        "simple_chunking",
        "turns of 512 prompt tokens and of decodes; recompute",
        _CHUNK,
        (
            "a turn of prompts computes half-prefilled ones, or new ones if there are none; then the decodes have"
            " theirs, even if there are none: an empty step, which takes no time",
        ),
        suffix="-simple-chunking",
        guarded=(_FORGOTTEN,),
        evidence="read in that file, no recorded decisions",
    ),
    _sarathi(
        "vllm",
        "paged KV, prefill before decode steps, recompute",
        _LENGTH,
        ("whole new prompts alone, as long as their sum fits; else the decodes",),
        suffix="-vllm",
        left_out=(
            "a request that gives way in a step in which nothing else runs goes on decoding in the engine, with"
            " blocks that hold nothing; here it is computed again",
        ),
    ),
    _sarathi(
        "orca",
        "iteration-level batching, reserves max_model_len tokens",
        {},
        ("a request joins while max_model_len tokens of blocks are free; prompts lead the batch",),
        suffix="-orca",
        blocks="reserved",
    ),
    _sarathi(
        "faster_transformer",
        "static batches, reserves max_model_len tokens, ended requests return at once",
        {},
        ("a batch starts when nothing runs, and nobody joins it; a request that ends leaves and frees its blocks",),
        suffix="-ft",
        blocks="reserved",
    ),
)
"""Sarathi-Serve's own scheduler and those it is compared with."""

# -- Vidur ---------------------------------------------------------------------------------------------------


def _vidur(
    scheduler: str,
    summary: str,
    defaults: Mapping[str, Value | Rule],
    modelled: tuple[str, ...],
    *,
    guarded: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
    blocks: Literal["paged", "reserved"] = "paged",
    evidence: str = "recorded decisions of that commit",
) -> Preset:
    paged = blocks == "paged"
    watermark: Mapping[str, Value | Rule] = {"watermark": 0.01} if paged else {}
    return Preset(
        name=f"vidur-7d47513-{scheduler}",
        system="Vidur",
        version="7d47513",
        source=f"Vidur 7d47513, vidur/scheduler/replica_scheduler/{scheduler}_replica_scheduler.py; {evidence}",
        summary=summary,
        policy="policies.systems.vidur:Vidur",
        defaults=MappingProxyType({**defaults, "max_num_seqs": 128, "block_size": 16, **watermark}),
        fixed=MappingProxyType({"scheduler": scheduler}),
        blocks=blocks,
        modelled=(*modelled, *((_ALL_BLOCKS, _VICTIMS) if paged else ()), "batches in the order of the walk"),
        left_out=(
            *left_out,
            "pipeline stages, and Vidur's own planner of memory: num_gpu_blocks is that of the card or given",
            "a prompt that leaves no room for an output token is refused at the door; Vidur takes it",
        ),
        guarded=((_NEVER,) if paged else ()) + guarded,
    )


VIDUR = (
    _vidur(
        "sarathi",
        "512 tokens a step: decodes, then prompts in chunks; recompute",
        _CHUNK,
        ("as Sarathi-Serve's, but a request that gave way is a fresh one at once",),
        left_out=(
            "a half-prefilled request that gives way comes back in Vidur with the computed part as its prompt and"
            " makes the rest one token a step; here it keeps its prompt",
        ),
    ),
    _vidur(
        "vllm",
        "paged KV, prefill before decode steps, recompute; padded prompts",
        {"max_num_batched_tokens": 4_096},
        (
            "whole new prompts alone, as long as their number times the longest fits max_num_batched_tokens; else"
            " the decodes",
        ),
        guarded=(
            "a prompt longer than max_num_batched_tokens ends with prompt_too_long; Vidur, and everybody behind it,"
            " waits for ever",
        ),
    ),
    _vidur(
        "orca",
        "iteration-level batching, reserves max_model_len tokens",
        {},
        ("a request joins while max_model_len tokens of blocks are free",),
        left_out=("a max_model_len that is no multiple of block_size, for which Vidur reserves a block too few",),
        blocks="reserved",
        evidence="no recorded decisions",
    ),
)
"""Vidur's emulations of other schedulers; its faster_transformer, which loses blocks, is left out."""
