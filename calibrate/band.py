"""How far the roofline model is off: predicted over measured time of whole batches that others published."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.fitting import least_squares
from policies.catalog import Card, ModelShape, card, model
from policies.core.errors import ConfigError, CostFileError
from policies.core.plan import Chunk
from policies.presets import preset
from sim.costs.links import link_of
from sim.costs.model import NO_HOST, CostModel
from sim.costs.roofline import Shares, terms_from
from sim.costs.terms import HostTerm
from sim.machine import host_term

_FILES = ("argonne.jsonl", "trtllm_static.jsonl")
_SOURCE = "LLM-Inference-Bench (Argonne), TensorRT-LLM performance pages 0.5 to 0.9"
_CARDS = {
    "A100-SXM4-40GB": "a100-40gb",
    "A100-SXM4-80GB": "a100-80gb",
    "H100-SXM5-80GB": "h100-80gb",
    "H200-SXM5-141GB": "h200-141gb",
    "L40S-48GB": "l40s-48gb",
}
_MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
    "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "Qwen/Qwen2-7B": "qwen2.5-7b",
}
_BITS = {"fp16": 16, "fp8": 8}
_HOST_PRESETS = {"vllm": "vllm-0.6"}
_USABLE = 0.85
"""Share of the memory up to which weights and KV are taken to have fitted: beyond, engines queue or preempt."""


class Run(NamedTuple):
    """One measured static batch: everything arrives at once, all prompts and all outputs are of one length."""

    engine: str
    shape: ModelShape
    card: Card
    num_seqs: int
    prompt_tokens: int
    output_tokens: int
    seconds: float


def read_runs(measured: Path) -> Iterator[Run]:
    """The runs of the known cards and models that fitted the memory; what is graded impossible is left out."""
    for file in _FILES:
        path = measured / file
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise CostFileError(f"{path}: cannot be read ({error.strerror}); name the folder of the runs") from None
        for line in lines:
            run = _run(json.loads(line))
            if run is not None and _fits(run):
                yield run


def _run(record: Mapping[str, Any]) -> Run | None:
    workload, measured = record["workload"], record["measured"]
    device, name = _CARDS.get(record["hardware"]["gpu"]), _MODELS.get(record["model"])
    bits = _BITS.get(record["dtype"]["weights"])
    engine = record["engine"]["name"]
    known = workload["kind"] == "offline_batch" and record["grade"] in "AB" and engine != "deepspeed-mii"
    if not known or device is None or name is None or bits is None:
        return None
    batch = workload["batch_size"]
    prompt, output = workload["input_len"]["value"], workload["output_len"]["value"]
    if "e2e_batch_s" in measured:
        seconds = measured["e2e_batch_s"]
    elif "output_tok_s" in measured:
        seconds = batch * output / measured["output_tok_s"]
    else:
        return None
    try:
        shape = model(name)._replace(weight_bits=bits, kv_bits=bits).shard(record["hardware"]["tp"])
    except ConfigError:
        return None
    return Run(engine, shape, card(device), batch, prompt, output, seconds)


def _fits(run: Run) -> bool:
    kv_bytes = run.num_seqs * (run.prompt_tokens + run.output_tokens) * run.shape.kv_bytes_per_token
    return run.shape.weight_bytes + kv_bytes <= _USABLE * run.card.memory_bytes


def predicted_s(run: Run, shares: Shares, host: HostTerm = NO_HOST) -> float:
    """One step for all prompts, then as many decode steps as there are tokens left; decode time is linear in the
    context, so that they last as long as at the mean context."""
    all_reduce = link_of(run.card, run.shape.tp).all_reduce
    costs = CostModel(terms_from(shares, run.shape, run.card), run.shape, run.card, host, all_reduce=all_reduce)
    batch, prompt, steps = run.num_seqs, run.prompt_tokens, run.output_tokens - 1
    prefill_s = costs.step_time_s(batch * prompt, 0, 0, 0, [Chunk(0, 0, prompt, True)] * batch)
    context = prompt + steps // 2
    return prefill_s + steps * costs.step_time_s(batch, batch, batch * context, context, ())


def fit_host(shares: Shares, measured: Path) -> tuple[float, float, float]:
    """What steps of vLLM take beyond the roofline: (a step, a sequence in it, a step of several GPUs), in seconds.

    Least squares of relative errors over all its runs, no coefficient below zero.
    """
    import numpy as np

    runs = [run for run in read_runs(measured) if run.engine in _HOST_PRESETS]
    seconds = np.array([run.seconds for run in runs])
    rest_s = seconds - np.array([predicted_s(run, shares) for run in runs])
    columns = np.array(
        [run.output_tokens * np.array([1.0, run.num_seqs, float(run.shape.tp > 1)]) for run in runs]
    )
    base_s, per_seq_s, parallel_s = least_squares(columns, rest_s, list(1 / seconds), [0.0] * 3)
    return base_s, per_seq_s, parallel_s


def host_of(run: Run) -> HostTerm:
    """The host time of the engine's preset; none for engines without."""
    name = _HOST_PRESETS.get(run.engine)
    return host_term(preset(name), run.shape.tp) if name else NO_HOST


def band_of(shares: Shares, measured: Path) -> tuple[dict[str, float], str]:
    """Quantiles of predicted over measured time and their number, and where the runs come from."""
    ratios = sorted(predicted_s(run, shares, host_of(run)) / run.seconds for run in read_runs(measured))
    places = {"p5": 0.05, "median": 0.5, "p95": 0.95}
    band = {name: round(ratios[round(place * (len(ratios) - 1))], 3) for name, place in places.items()}
    return {**band, "runs": len(ratios)}, f"predicted over measured time of whole batches: {_SOURCE}"
