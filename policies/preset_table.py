"""The table of presets: real systems by name and version, with their parameters and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from policies.preset import POOL_BLOCK_SIZE, Preset, Rule, Value
from policies.preset_batchers import BATCHERS
from policies.preset_fastgen import FASTGEN
from policies.preset_sarathi import SARATHI, VIDUR
from policies.preset_sglang import SGLANG

if TYPE_CHECKING:
    from policies.catalog import Card

__all__ = ["POOL_BLOCK_SIZE", "PRESETS", "Preset", "Rule", "Value"]


def _is_large(card: Card | None) -> bool:
    """vLLM's rule for its larger defaults: at least 70 GiB, and no A100."""
    return card is not None and card.memory_bytes >= 70 << 30 and "a100" not in card.name


def _v1_tokens(values: Mapping[str, Value], card: Card | None) -> Value:
    tokens = 8_192 if _is_large(card) else 2_048
    return tokens if values["enable_chunked_prefill"] else max(tokens, int(values["max_model_len"]))


def _v0_tokens(values: Mapping[str, Value], card: Card | None) -> Value:
    return 512 if values["enable_chunked_prefill"] else max(int(values["max_model_len"]), 2_048)


_V1_LEFT_OUT = (
    "priority scheduling, asynchronous scheduling, speculative decoding, KV connectors",
    "sampling and tokenization: no host term",
)
_V0_LEFT_OUT = (
    "beam search and n > 1, priority scheduling, delay_factor, the prefix cache",
    "asynchronous output processing (outputs lag one step on CUDA): no host term",
)
_KV_GUARD = "a request alone in the pool that cannot get its next block ends with kv_capacity"
_V0_GUARDS = (
    "a victim for which swap space has no room is computed again (swap_exhausted); the engine dies",
    "a half-prefilled victim with more left than a step takes is computed again; swapped out, it would never"
    " return",
    "a swapped request that the pool less the watermark cannot hold ends with kv_capacity; the engine keeps"
    " it swapped for ever",
)
_V0_MODELLED = (
    "three queues (waiting, running, swapped), watermark, victims from the end of the running list",
    "a decoding request asks for a free block in every step, even if it takes none",
)


def _vllm_v0(name: str, summary: str, *, chunked: bool = False, mode: str = "recompute") -> Preset:
    rules = "pure prefill steps go first" if not chunked else "decodes first, prompts in chunks beside them"
    return Preset(
        name=name,
        system="vLLM",
        version="0.6.3 (V0 scheduler)",
        source="vllm 0.6.3.post1, vllm/core/scheduler.py; recorded decisions of that version",
        summary=summary,
        policy="policies.systems.paged:Paged",
        chunked_policy="policies.systems.paged_chunked:PagedChunked",
        defaults=MappingProxyType(
            {
                "enable_chunked_prefill": chunked,
                "max_num_batched_tokens": Rule(
                    "max(max_model_len, 2048), or 512 with chunked prefill", _v0_tokens
                ),
                "max_num_seqs": 256,
                "block_size": 16,
                "preemption_mode": mode,
                "swap_space_bytes": 4 << 30,
                "watermark": 0.01,
            }
        ),
        checks_like_vllm=True,
        modelled=(rules, *_V0_MODELLED),
        left_out=_V0_LEFT_OUT,
        guarded=_V0_GUARDS,
        recorded_as=("vllm", "v0", "0.6.3.post1"),
    )


_V1 = Preset(
    name="vllm-0.11",
    system="vLLM",
    version="0.11.2 (V1 scheduler)",
    source="vllm 0.11.2, vllm/v1/core/sched/scheduler.py; recorded decisions of that version",
    summary="token budget a step, prompts in chunks beside decodes, prefix cache, recompute",
    policy="policies.systems.token_budget:TokenBudget",
    defaults=MappingProxyType(
        {
            "enable_chunked_prefill": True,
            "max_num_batched_tokens": Rule(
                "2048, or 8192 on cards of 70 GiB and more other than A100; without chunked prefill at least"
                " max_model_len",
                _v1_tokens,
            ),
            "max_num_seqs": Rule(
                "256, or 1024 on such cards", lambda values, card: 1_024 if _is_large(card) else 256
            ),
            "block_size": 16,
            "enable_prefix_caching": True,
            "long_prefill_token_threshold": 0,
        }
    ),
    null_block=True,
    checks_like_vllm=True,
    modelled=(
        "running requests first, then waiting ones, from one budget; no watermark; block 0 unused",
        "prefix cache by blocks, its eviction order included; victims from the end of the running list",
    ),
    left_out=_V1_LEFT_OUT,
    recorded_as=("vllm", "v1", "0.11.2"),
    guarded=(f"{_KV_GUARD}; the engine starts it over for ever",),
)


def _orca(name: str, reservation: str, reserves: str) -> Preset:
    by_token = reservation != "max"
    outgrown = (
        "a request that makes more tokens than predicted has its reservation doubled while slots are free,"
        " and ends with kv_capacity when none is (never with true lengths)",
    )
    guards = (*outgrown, "a reservation larger than the whole pool ends with kv_capacity") if by_token else ()
    return Preset(
        name=name,
        system="Orca",
        version="OSDI 2022",
        source="algorithm of the Orca paper, as summarised in public; the vLLM paper names the variants",
        summary=f"iteration-level batching, reserves {reserves}",
        policy="policies.systems.orca:Orca",
        defaults=MappingProxyType({"max_num_seqs": 256}),
        fixed=MappingProxyType({"reservation": reservation}),
        blocks="token" if by_token else "slot",
        modelled=(
            f"first come, first served; a request joins when its reservation ({reserves}) fits; first misfit"
            " stops",
            "prompts and increments mix in one iteration; nothing is preempted",
        ),
        left_out=("pipelined batches in flight", "max_num_seqs is assumed: the paper leaves it open"),
        guarded=guards,
    )


def _static(name: str, *, return_early: bool) -> Preset:
    ends = (
        "a request that ends leaves its slot empty until the batch ends, and is answered at once"
        if return_early
        else "a request that ends keeps slot and cost until the batch ends; all are answered together"
    )
    return Preset(
        name=name,
        system="FasterTransformer",
        version="static batching",
        source="FasterTransformer's batched generation; early return as Sarathi-Serve emulates it (96f9911)",
        summary="a batch runs until its last request ends"
        + ("; early return" if return_early else "; answers return together"),
        policy="policies.systems.static:Static",
        defaults=MappingProxyType(
            {"max_num_seqs": Rule("32, and never more than the slots of the pool", lambda values, card: 32)}
        ),
        fixed=MappingProxyType({"return_early": return_early}),
        delivery="step" if return_early else "batch_end",
        blocks="slot",
        modelled=(
            "a batch starts when nothing runs and something waits; nobody joins it",
            "prompts are prefilled together, padded to the longest; a slot is max_model_len tokens",
            ends,
        ),
        left_out=(
            "waiting for a batch to fill (batch window)",
            "padding inside attention (own lengths count), and host time",
        ),
    )


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            _V1,
            _vllm_v0("vllm-0.6", "paged KV, prefill before decode steps, recompute"),
            _vllm_v0(
                "vllm-0.6-chunked", "paged KV, 512 tokens a step, chunked prompts, recompute", chunked=True
            ),
            _vllm_v0(
                "vllm-0.6-swap", "paged KV, prefill before decode steps, swap to host memory", mode="swap"
            ),
            _orca("orca-max", "max", "max_model_len tokens"),
            _orca("orca-pow2", "pow2", "prompt + next power of two of the predicted output"),
            _orca("orca-oracle", "oracle", "prompt + predicted output"),
            _static("ft-static", return_early=False),
            _static("ft-static-early-return", return_early=True),
            FASTGEN,
            *BATCHERS,
            *SGLANG,
            *SARATHI,
            *VIDUR,
        )
    }
)
"""All presets by name."""
