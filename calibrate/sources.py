"""Which measured tables a cost file is fitted from, and where they come from."""

from __future__ import annotations

from typing import NamedTuple

from policies.core.errors import CatalogError


class Source(NamedTuple):
    """One table: its file name, the public file it was taken from, the start of that file's sha256, its
    licence."""

    file: str
    origin: str
    origin_sha256: str
    licence: str


class FitSources(NamedTuple):
    """The tables for one model on one card. ``num_sms`` sets where the waves of decode attention jump; ``knots`` are
    batch sizes beside these jumps where it turns as well. Without ``context`` no table says what cached tokens add to
    a chunk. ``uneven`` measures batches of unequal contexts, on another card."""

    linear: Source
    decode: Source
    context: Source | None
    prefill: Source
    gemm: Source
    uneven: Source
    num_sms: int
    knots: tuple[int, ...] = ()
    max_num_seqs: int = 128


_VIDUR = "microsoft/vidur:data/profiling"


def _linear(card: str, model: str, folder: str, sha256: str) -> Source:
    return Source(f"vidur_{card}_{model}_linear.csv.gz", f"{_VIDUR}/compute/{card}/{folder}/mlp.csv", sha256, "MIT")


def _aic(card: str, version: str, operator: str, sha256: str) -> Source:
    folder = operator.split("_")[-1] if operator.endswith("attention") else "gemm"
    table = "gemm_perf" if folder == "gemm" else f"{operator}_perf"
    origin = f"aiconfigurator-core 0.12.0: systems/data/{card}/{folder}/vllm/{version}/{table}.parquet"
    return Source(f"aic_{card}_vllm_{operator}.csv.gz", origin, sha256, "Apache-2.0")


_A100_PREFILL = _aic("a100_sxm", "0.14.0", "context_attention", "990e25c974825b63")
_A100_DECODE = _aic("a100_sxm", "0.14.0", "generation_attention", "5bde27cff57ab2ca")
_A100_GEMM = _aic("a100_sxm", "0.14.0", "gemm_bf16", "13694b42a4da4956")
_A100_SMS = 108
_H100_SMS = 132
UNEVEN = Source(
    "llmservingsim_rtxpro6000_llama31-8b_skew.csv.gz",
    "casys-kaist/LLMServingSim:profiler/perf (5daddb21a; RTX PRO 6000, Llama-3.1-8B, vLLM 0.19.0)",
    "not stated",
    "MIT",
)
_LLAMA_2_7B_ATTENTION = Source(
    "vidur_a100_llama2-7b_attention_tp1_sample.csv.gz",
    f"{_VIDUR}/compute/a100/meta-llama/Llama-2-7b-hf/attention.csv (medians of a part of the file)",
    "not seen whole",
    "MIT",
)
_LLAMA_2_70B_ATTENTION = Source(
    "vidur_a100_llama2-70b_attention_tp2.csv.gz",
    f"{_VIDUR}/a100/attention.csv (commit e2d00e9af)",
    "83f4bb3ac779878b",
    "MIT",
)

_SOURCES: dict[tuple[str, str, int], FitSources] = {
    ("llama-2-7b", "a100-80gb", 1): FitSources(
        linear=_linear("a100", "llama2-7b", "meta-llama/Llama-2-7b-hf", "2cfacca979f32e83"),
        decode=_LLAMA_2_7B_ATTENTION,
        context=_LLAMA_2_7B_ATTENTION,
        prefill=_A100_PREFILL,
        gemm=_A100_GEMM,
        uneven=UNEVEN,
        num_sms=_A100_SMS,
    ),
    ("llama-2-70b", "a100-80gb", 2): FitSources(
        linear=_linear("a100", "llama2-70b", "meta-llama/Llama-2-70b-hf", "d690ce601f94ab80"),
        decode=_LLAMA_2_70B_ATTENTION,
        context=_LLAMA_2_70B_ATTENTION,
        prefill=_A100_PREFILL,
        gemm=_A100_GEMM,
        uneven=UNEVEN,
        num_sms=_A100_SMS,
        knots=(4, 8, 10, 16, 21, 22),
    ),
    **{
        ("llama-2-70b", "a100-80gb", tp): FitSources(
            linear=_linear("a100", "llama2-70b", "meta-llama/Llama-2-70b-hf", "d690ce601f94ab80"),
            decode=_A100_DECODE,
            context=None,
            prefill=_A100_PREFILL,
            gemm=_A100_GEMM,
            uneven=UNEVEN,
            num_sms=_A100_SMS,
        )
        for tp in (4, 8)
    },
    ("llama-3-8b", "a100-80gb", 1): FitSources(
        linear=_linear("a100", "llama3-8b", "meta-llama/Meta-Llama-3-8B", "98c26488298e324e"),
        decode=_A100_DECODE,
        context=None,
        prefill=_A100_PREFILL,
        gemm=_A100_GEMM,
        uneven=UNEVEN,
        num_sms=_A100_SMS,
        max_num_seqs=256,
    ),
    ("llama-2-7b", "h100-80gb", 1): FitSources(
        linear=_linear("h100", "llama2-7b", "meta-llama/Llama-2-7b-hf", "b1a2def08857d10e"),
        decode=_aic("h100_sxm", "0.24.0", "generation_attention", "20d81d2b77f464af"),
        context=None,
        prefill=_aic("h100_sxm", "0.24.0", "context_attention", "cea40c31b8c27329"),
        gemm=_aic("h100_sxm", "0.24.0", "gemm_bf16", "727df0c1ee5dbe75"),
        uneven=UNEVEN,
        num_sms=_H100_SMS,
        max_num_seqs=256,
    ),
}


def sources_for(model: str, card: str, tp: int = 1) -> FitSources:
    """The tables to fit from; CatalogError names the groups that have some."""
    try:
        return _SOURCES[model, card, tp]
    except KeyError:
        known = ", ".join(f"{m} on {c}" + (f" with tp {n}" if n > 1 else "") for m, c, n in _SOURCES)
        group = f"{model} on {card}" + (f" with tp {tp}" if tp > 1 else "")
        raise CatalogError(f"no operator tables are known for {group}; known: {known}") from None


def fitted_groups() -> tuple[tuple[str, str, int], ...]:
    """(model, card, tp) of every group that has tables."""
    return tuple(_SOURCES)
