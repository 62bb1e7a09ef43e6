"""Presets of vLLM V0: 0.2.7 and 0.6.3."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from policies.preset import Graphs, HostTime, Preset, Rule, Value

if TYPE_CHECKING:
    from policies.catalog import Card


def _whole_tokens(values: Mapping[str, Value], card: Card | None) -> Value:
    return max(int(values["max_model_len"]), 2_048)


_WHOLE_BUDGET = Rule("max(max_model_len, 2048)", _whole_tokens)


def _tokens(values: Mapping[str, Value], card: Card | None) -> Value:
    return 512 if values["enable_chunked_prefill"] else _whole_tokens(values, card)


_GRAPHS = Graphs((1, 2, 4, *range(8, 257, 8)))
"""Decode steps alone run as graphs; batches beyond 256 do not."""

_HOST_063 = HostTime(
    0.49e-3,
    0.074e-3,
    "what 282 runs of vLLM 0.5.3 on A100 40 GB and H100 take beyond their operators, LLM-Inference-Bench (Argonne);"
    " beyond 0.84 of the bandwidth it would be 2.9 ms + 0.06 ms a sequence",
    parallel_s=1.24e-3,
)
_HOST_027 = HostTime(
    0.9e-3,
    0.043e-3,
    "scheduling, input preparation, sampling and output processing of vLLM of 2023, Vidur CPU overheads, A100; with"
    " several GPUs its messages through Ray",
    parallel_s=7.3e-3,
)

_DEFAULTS: Mapping[str, Value | Rule] = {
    "max_num_seqs": 256,
    "block_size": 16,
    "preemption_mode": "recompute",
    "swap_space_bytes": 4 << 30,
    "watermark": 0.01,
}
_MODELLED = (
    "three queues (waiting, running, swapped), watermark, victims from the end of the running list",
    "a decoding request asks for a free block in every step, even if it takes none",
)
_PREFILL_FIRST = "pure prefill steps go first"
_CHUNKED = "decodes first, prompts in chunks beside them"
_PRIORITY = (
    "small priorities first, then by arrival: a pass that starts nobody computes the worst running requests again until"
    " the head of the queue fits, then sorts the queue; the head starts in the next step",
    "with chunked prefill priorities have no effect",
)
_MULTI_STEP = (
    "num_scheduler_steps decode steps a plan; arrivals, ends and aborts are seen when all of them have run, and the"
    " tokens of all come together then (as with --multi-step-stream-outputs False)",
    "a decode plan takes the blocks for all its steps at once (lookahead slots); a request asks for as many free blocks"
    " as it touches, those with its tokens of the last plan included, even if it has them",
    "a request that stops within a plan keeps its blocks and its share of the steps' time to the end",
    "the host's time is paid once a plan",
)
_PADDED = (
    "a prefill step is charged with its prompts times the longest; at most max_paddings tokens of it are padding",
    "a pass that only drops requests is a step in which decodes wait",
    "a swapped request returns when one block more than it held is free",
)
_LEFT_OUT = (
    "beam search and n > 1, delay_factor, the prefix cache",
    "asynchronous output processing (outputs lag one step on CUDA)",
)
_LEFT_OUT_MULTI_STEP = (
    *_LEFT_OUT,
    "token-by-token streaming within a plan (--multi-step-stream-outputs True, the default of 0.6.3)",
    "chunked prefill and priorities together with several steps a plan",
    "what the host does between the steps of a plan",
)
_LEFT_OUT_027 = (
    "beam search and n > 1, the prefix cache",
    "preemption_mode is no setting of this version: groups of one sequence are computed again, larger ones swapped",
    "the order in which the blocks of a request are freed, which is arbitrary",
)
_EXHAUSTED = "a victim for which swap space has no room is computed again (swap_exhausted); the engine dies"
_SWAPPED_FOR_EVER = (
    "a swapped request that the pool less the watermark cannot hold ends with kv_capacity; the engine keeps"
    " it swapped for ever"
)
_GUARDED = (
    _EXHAUSTED,
    "a half-prefilled victim with more left than a step takes is computed again; swapped out, it would never"
    " return",
    _SWAPPED_FOR_EVER,
)


def _v063(name: str, summary: str, *modelled: str, chunked: bool = False, policy: str = "paged:Paged") -> Preset:
    mode = "swap" if name.endswith("swap") else "recompute"
    by_priority = name.endswith("priority")
    known_by = "no recordings by priority" if by_priority else "recorded decisions of that version"
    return Preset(
        name=name,
        system="vLLM",
        version="0.6.3 (V0 scheduler)",
        source=f"vllm 0.6.3.post1, vllm/core/scheduler.py; {known_by}",
        summary=summary,
        policy=f"policies.systems.{policy}",
        chunked_policy="policies.systems.paged_chunked:PagedChunked",
        defaults=MappingProxyType(
            {
                "enable_chunked_prefill": chunked,
                "max_num_batched_tokens": Rule("max(max_model_len, 2048), or 512 with chunked prefill", _tokens),
                **_DEFAULTS,
                "preemption_mode": mode,
            }
        ),
        fixed=MappingProxyType({"scheduling_policy": "priority"} if by_priority else {}),
        checks_like_vllm=True,
        modelled=modelled,
        left_out=_LEFT_OUT,
        guarded=_GUARDED,
        host=_HOST_063,
        graphs=_GRAPHS,
        recorded_as=("vllm", "v0", "0.6.3.post1"),
    )


def _multi_step() -> Preset:
    base = _v063("vllm-0.6-multi-step", "paged KV, ten decode steps a plan, whose tokens come together")
    defaults = {key: value for key, value in base.defaults.items() if key != "enable_chunked_prefill"}
    return base._replace(
        source="vllm 0.6.3.post1, vllm/core/scheduler.py, vllm/core/block/block_table.py,"
        " vllm/worker/multi_step_model_runner.py; no recordings with several steps a plan",
        policy="policies.systems.multi_step:MultiStep",
        chunked_policy=None,
        delivery="every_k",
        defaults=MappingProxyType(
            {**defaults, "max_num_batched_tokens": _WHOLE_BUDGET, "num_scheduler_steps": 10}
        ),
        modelled=(_PREFILL_FIRST, _MODELLED[0], *_MULTI_STEP),
        left_out=_LEFT_OUT_MULTI_STEP,
        guarded=(_EXHAUSTED, _SWAPPED_FOR_EVER),
    )


def _v027(name: str, summary: str, mode: str) -> Preset:
    return Preset(
        name=name,
        system="vLLM",
        version="0.2.7",
        source="vllm 0.2.7, vllm/core/scheduler.py; recorded decisions of that version (recompute)",
        summary=summary,
        policy="policies.systems.paged_027:Paged027",
        defaults=MappingProxyType(
            {
                "max_num_batched_tokens": _WHOLE_BUDGET,
                **_DEFAULTS,
                "preemption_mode": mode,
                "max_paddings": 256,
            }
        ),
        checks_like_vllm=True,
        modelled=(_PREFILL_FIRST, *_MODELLED, *_PADDED),
        left_out=_LEFT_OUT_027,
        host=_HOST_027,
        graphs=_GRAPHS,
        guarded=(_EXHAUSTED, _SWAPPED_FOR_EVER),
        recorded_as=("vllm", "v0", "0.2.7"),
    )


VLLM_V0 = (
    _v063("vllm-0.6", "paged KV, prefill before decode steps, recompute", _PREFILL_FIRST, *_MODELLED),
    _v063(
        "vllm-0.6-chunked",
        "paged KV, 512 tokens a step, chunked prompts, recompute",
        *(_CHUNKED, *_MODELLED),
        chunked=True,
    ),
    _v063("vllm-0.6-swap", "paged KV, prefill before decode steps, swap to host memory", _PREFILL_FIRST, *_MODELLED),
    _v063(
        "vllm-0.6-priority",
        "paged KV, prefill before decode steps, better requests push worse ones out",
        *(_PREFILL_FIRST, *_MODELLED, *_PRIORITY),
        policy="paged_priority:PagedPriority",
    ),
    _multi_step(),
    _v027("vllm-0.2.7", "paged KV, padded prefill before decode steps, recompute", "recompute"),
    _v027("vllm-0.2.7-swap", "paged KV, padded prefill before decode steps, swap to host memory", "swap"),
)
"""vLLM V0 with that version's defaults."""
