"""The table of presets: real systems by name and version, with their parameters and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policies.preset import POOL_BLOCK_SIZE, Preset, Rule, Value
from policies.preset_batchers import BATCHERS
from policies.preset_fastgen import FASTGEN
from policies.preset_hf import HF_STATIC
from policies.preset_literature import LITERATURE
from policies.preset_llamacpp import LLAMACPP
from policies.preset_sarathi import SARATHI, VIDUR
from policies.preset_sglang import SGLANG
from policies.preset_tensorrt import TENSORRT_LLM
from policies.preset_tgi import TGI
from policies.preset_vllm_v0 import VLLM_V0
from policies.preset_vllm_v1 import VLLM_V1

__all__ = ["POOL_BLOCK_SIZE", "PRESETS", "Preset", "Rule", "Value"]


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
            *VLLM_V1,
            *VLLM_V0,
            _orca("orca-max", "max", "max_model_len tokens"),
            _orca("orca-pow2", "pow2", "prompt + next power of two of the predicted output"),
            _orca("orca-oracle", "oracle", "prompt + predicted output"),
            _static("ft-static", return_early=False),
            _static("ft-static-early-return", return_early=True),
            HF_STATIC,
            FASTGEN,
            *BATCHERS,
            *SGLANG,
            *TGI,
            *TENSORRT_LLM,
            *LLAMACPP,
            *SARATHI,
            *VIDUR,
            *LITERATURE,
        )
    }
)
"""All presets by name."""
