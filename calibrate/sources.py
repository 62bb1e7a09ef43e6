"""Which measured tables a shipped cost file is fitted from, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from calibrate.fitter import Hints
from policies.core.errors import CatalogError


class Source(NamedTuple):
    """One table: its file name, the public file it was taken from, the start of that file's sha256, its licence, when
    it was measured or published, and the card where that is another one than the cost file's."""

    file: str
    origin: str
    origin_sha256: str
    licence: str
    date: str
    card: str = ""


class Table(NamedTuple):
    """A source, the tool that it is a table of, and the operators taken from it (none named: all). ``added``: of its
    prefill only what cached tokens add."""

    tool: str
    source: Source
    only: tuple[str, ...] = ()
    added: bool = False


class Recipe(NamedTuple):
    """The tables of one group. ``scaled_from`` is the card they were measured on where their memory-bound part is then
    scaled by the bandwidths."""

    tables: tuple[Table, ...]
    hints: Hints = Hints()
    max_num_seqs: int = 256
    scaled_from: str = ""


_VIDUR = "microsoft/vidur:data/profiling"
_VIDUR_DATE = "published 2024"
_AIC_DATE = "published 2026"
_SIM_ORIGIN = "casys-kaist/LLMServingSim:profiler/perf (5daddb21a; RTX PRO 6000, Llama-3.1-8B, vLLM 0.19.0)"
_RTX = "rtxpro6000-96gb"


def _linear(card: str, model: str, folder: str, sha256: str) -> Table:
    origin = f"{_VIDUR}/compute/{card}/{folder}/mlp.csv"
    return Table("vidur", Source(f"vidur_{card}_{model}_linear.csv.gz", origin, sha256, "MIT", _VIDUR_DATE))


def _aic(card: str, version: str, operator: str, sha256: str, backend: str = "vllm") -> Source:
    folder = operator.split("_")[-1] if operator.endswith("attention") else "gemm"
    table = "gemm_perf" if folder == "gemm" else f"{operator}_perf"
    origin = f"aiconfigurator-core 0.12.0: systems/data/{card}/{folder}/{backend}/{version}/{table}.parquet"
    return Source(f"aic_{card}_{backend}_{operator}.csv.gz", origin, sha256, "Apache-2.0", _AIC_DATE)


def _rtx(table: str) -> Source:
    return Source(f"llmservingsim_rtxpro6000_llama31-8b_{table}.csv.gz", _SIM_ORIGIN, "not stated", "MIT", "2026-04-24")


UNEVEN = _rtx("skew")._replace(card=_RTX)
_UNEVEN = Table("llmservingsim", UNEVEN, only=("uneven",))

_PREFILL = {
    "a100-80gb": _aic("a100_sxm", "0.14.0", "context_attention", "990e25c974825b63"),
    "h100-80gb": _aic("h100_sxm", "0.24.0", "context_attention", "cea40c31b8c27329"),
    "h200-141gb": _aic("h200_sxm", "0.24.0", "context_attention", "29e92f9aad6a05e8"),
}
_DECODE = {
    "a100-80gb": _aic("a100_sxm", "0.14.0", "generation_attention", "5bde27cff57ab2ca"),
    "h100-80gb": _aic("h100_sxm", "0.24.0", "generation_attention", "20d81d2b77f464af"),
    "h200-141gb": _aic("h200_sxm", "0.24.0", "generation_attention", "6deb59b0dc6706be"),
}
_GEMM = {
    "a100-80gb": _aic("a100_sxm", "0.14.0", "gemm_bf16", "13694b42a4da4956"),
    "h100-80gb": _aic("h100_sxm", "0.24.0", "gemm_bf16", "727df0c1ee5dbe75"),
    "h200-141gb": _aic("h200_sxm", "0.24.0", "gemm_bf16", "d5b767730e5d45ba"),
}
_SMS = {"a100-80gb": 108, "h100-80gb": 132, "h200-141gb": 132}
_LINEAR = {
    ("llama-2-7b", "a100-80gb"): _linear("a100", "llama2-7b", "meta-llama/Llama-2-7b-hf", "2cfacca979f32e83"),
    ("llama-2-70b", "a100-80gb"): _linear("a100", "llama2-70b", "meta-llama/Llama-2-70b-hf", "d690ce601f94ab80"),
    ("llama-3-8b", "a100-80gb"): _linear("a100", "llama3-8b", "meta-llama/Meta-Llama-3-8B", "98c26488298e324e"),
    # Its layers have the sizes of Llama-2-70B's.
    ("llama-3-70b", "a100-80gb"): _linear("a100", "llama2-70b", "meta-llama/Llama-2-70b-hf", "d690ce601f94ab80"),
    ("llama-2-7b", "h100-80gb"): _linear("h100", "llama2-7b", "meta-llama/Llama-2-7b-hf", "b1a2def08857d10e"),
}
_ATTENTION = {
    ("llama-2-7b", "a100-80gb", 1): Source(
        "vidur_a100_llama2-7b_attention_tp1_sample.csv.gz",
        f"{_VIDUR}/compute/a100/meta-llama/Llama-2-7b-hf/attention.csv (medians of a part of the file)",
        "not seen whole",
        "MIT",
        _VIDUR_DATE,
    ),
    ("llama-2-70b", "a100-80gb", 2): Source(
        "vidur_a100_llama2-70b_attention_tp2.csv.gz",
        f"{_VIDUR}/a100/attention.csv (commit e2d00e9af)",
        "83f4bb3ac779878b",
        "MIT",
        _VIDUR_DATE,
    ),
}
_KNOTS = {("llama-2-70b", "a100-80gb", 2): (4, 8, 10, 16, 21, 22)}

_GROUPS: dict[str, dict[str, tuple[int, ...]]] = {
    "a100-80gb": {
        "llama-2-7b": (1, 2, 4, 8),
        "llama-2-13b": (1, 2, 4, 8),
        "llama-2-70b": (2, 4, 8),
        "llama-3-8b": (1, 2, 4, 8),
        "llama-3-70b": (2, 4, 8),
    },
    "a100-40gb": {
        "llama-2-7b": (1, 2, 4, 8),
        "llama-2-13b": (1, 2, 4, 8),
        "llama-2-70b": (4, 8),
        "llama-3-8b": (1, 2, 4, 8),
        "llama-3-70b": (4, 8),
    },
    **{
        card: {"llama-2-7b": (1, 2, 4, 8), "llama-3.1-8b": (1, 2, 4, 8), "llama-3.1-70b": (2, 4, 8)}
        for card in ("h100-80gb", "h200-141gb")
    },
    _RTX: {"llama-3.1-8b": (1,)},
}
_SAME_CHIP = {"a100-40gb": "a100-80gb"}


def recipe_for(model: str, card: str, tp: int = 1) -> Recipe:
    """The tables to fit from; CatalogError names what has some."""
    if tp not in _GROUPS.get(card, {}).get(model, ()):
        known = "; ".join(f"{name}: {', '.join(of)}" for name, of in _GROUPS.items())
        group = f"{model} on {card}" + (f" with tp {tp}" if tp > 1 else "")
        raise CatalogError(
            f"no operator tables are known for {group}; known are {known}, with tp 1, 2, 4 or 8 where the memory allows"
        )
    if card == _RTX:
        tables = ("dense", "per_sequence", "attention", "skew")
        return Recipe(tuple(Table("llmservingsim", _rtx(table)) for table in tables))
    measured_on = _SAME_CHIP.get(card, card)
    hints = Hints(_SMS[measured_on], _KNOTS.get((model, measured_on, tp), ()))
    scaled_from = measured_on if measured_on != card else ""
    attention = _ATTENTION.get((model, measured_on, tp))
    return Recipe(tuple(_tables(model, measured_on, tp)), hints, 128 if attention else 256, scaled_from)


def _tables(model: str, card: str, tp: int) -> Iterator[Table]:
    linear, attention = _LINEAR.get((model, card)), _ATTENTION.get((model, card, tp))
    if linear is not None:
        yield linear
    yield Table("aiconfigurator", _GEMM[card], only=("head",) if linear is not None else ())
    if attention is not None:
        yield Table("vidur", attention, added=True)
    else:
        yield Table("aiconfigurator", _DECODE[card])
    yield Table("aiconfigurator", _PREFILL[card])
    yield _UNEVEN


def fitted_groups() -> tuple[tuple[str, str, int], ...]:
    """(model, card, tp) of every group that has tables."""
    return tuple((model, card, tp) for card, of in _GROUPS.items() for model, sizes in of.items() for tp in sizes)
