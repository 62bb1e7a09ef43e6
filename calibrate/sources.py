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
    """The tables for one model on one card. ``num_sms`` sets where the waves of decode attention jump."""

    linear: Source
    decode: Source
    context: Source
    prefill: Source
    gemm: Source
    num_sms: int


_VIDUR = "microsoft/vidur:data/profiling/compute/a100/meta-llama/Llama-2-7b-hf"
_AIC = "aiconfigurator-core 0.12.0: systems/data/a100_sxm"
_VIDUR_ATTENTION = Source(
    "vidur_a100_llama2-7b_attention_tp1_sample.csv.gz",
    f"{_VIDUR}/attention.csv (medians of a part of the file)",
    "not seen whole",
    "MIT",
)

_SOURCES: dict[tuple[str, str], FitSources] = {
    ("llama-2-7b", "a100-80gb"): FitSources(
        linear=Source("vidur_a100_llama2-7b_linear.csv.gz", f"{_VIDUR}/mlp.csv", "2cfacca979f32e83", "MIT"),
        decode=_VIDUR_ATTENTION,
        context=_VIDUR_ATTENTION,
        prefill=Source(
            "aic_a100_sxm_vllm_context_attention.csv.gz",
            f"{_AIC}/attention/vllm/0.14.0/context_attention_perf.parquet",
            "990e25c974825b63",
            "Apache-2.0",
        ),
        gemm=Source(
            "aic_a100_sxm_vllm_gemm_bf16.csv.gz",
            f"{_AIC}/gemm/vllm/0.14.0/gemm_perf.parquet",
            "13694b42a4da4956",
            "Apache-2.0",
        ),
        num_sms=108,
    ),
}


def sources_for(model: str, card: str) -> FitSources:
    """The tables to fit from; CatalogError names the pairs that have some."""
    try:
        return _SOURCES[model, card]
    except KeyError:
        known = ", ".join(f"{m} on {c}" for m, c in _SOURCES)
        raise CatalogError(f"no operator tables are known for {model} on {card}; known: {known}") from None
