"""Runs a measured case through the simulator and names the figures as sources do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from calibrate.validation.cases import Case
from calibrate.validation.recipe import Recipe, costs_of
from calibrate.validation.setups import NotSimulated, Target, tables_of, target_of
from policies.core.errors import UserError
from policies.presets import preset, resolve
from sim.api import prepare, run_setup
from sim.config import config_from_tables
from sim.costs.pool import kv_pool
from sim.latencies import SHOWN, STATISTICS

MOST_REQUESTS = 3_000
"""Requests that are simulated at most: throughput hardly depends on how many follow."""


class Prediction(NamedTuple):
    """What the simulator says of a case: figures by the source's names, KV blocks, and whether memory ran short
    (requests preempted or left waiting for blocks)."""

    figures: Mapping[str, float]
    num_gpu_blocks: int
    short_of_memory: bool
    cost_model: str


def predict(
    case: Case, recipe: Recipe | None, blocks_factor: float = 1.0, *, cost_model: str | None = None
) -> Prediction:
    """Simulate a case under a recipe, or with the shipped costs and the preset's own host time (None).

    ``blocks_factor`` multiplies the KV pool; ``cost_model`` is a key of [hardware]. NotSimulated says why a case is not
    run.
    """
    target = target_of(case)
    tables = tables_of(case, target)
    workload = tables["workload"]
    workload["num_requests"] = min(workload["num_requests"], max(MOST_REQUESTS, 4 * workload.get("concurrency", 0)))
    if case.kind == "burst":
        workload["num_requests"] = workload["concurrency"] = min(workload["concurrency"], MOST_REQUESTS)
    try:
        blocks = round(_blocks(tables, target, recipe) * blocks_factor)
        tables["engine"]["num_gpu_blocks"] = blocks
        if cost_model is not None:
            tables["hardware"]["cost_model"] = cost_model
        config = config_from_tables(tables)
        costs = None if recipe is None else costs_of(recipe, target.shape, target.card, target.preset)
        setup = prepare(config, costs=costs)
        result = run_setup(setup)
    except UserError as error:
        raise NotSimulated(str(error)) from None
    if result.status != "completed":
        raise NotSimulated(f"the run ends as {result.status}: {result.message}")
    summary = result.summary
    if not summary["requests"]["finished"]:
        raise NotSimulated(f"the simulated engine serves no such request ({', '.join(summary['requests']['reasons'])})")
    short = bool(summary["preemptions"]["recompute"] or summary["limited_by"].get("kv_blocks", 0.0))
    return Prediction(figures_of(summary, case), blocks, short, _cost_name(setup.costs.file.kind, setup.costs.name))


def _cost_name(kind: str, name: str) -> str:
    return kind if kind == "roofline" else name


def memory_of(preset_name: str) -> Recipe:
    """What an engine leaves to KV where no recipe says it: TensorRT-LLM takes nearly all that is left once it has
    loaded, the others a share of the memory."""
    whole = Recipe(0.0, 0.0)
    return whole._replace(utilization=0.97, reserve_bytes=1_000_000_000) if preset_name.startswith("trtllm") else whole


def _blocks(tables: Mapping[str, Mapping[str, Any]], target: Target, recipe: Recipe | None) -> int:
    """Blocks of the pool that the card's memory leaves."""
    engine = {name: value for name, value in tables["engine"].items() if name != "preset"}
    parameters = resolve(
        preset(target.preset), engine, max_model_len=target.shape.max_model_len, card=target.card
    )
    memory = recipe or memory_of(target.preset)
    return kv_pool(
        target.shape,
        target.card,
        max_num_batched_tokens=parameters.max_num_batched_tokens,
        max_num_seqs=parameters.max_num_seqs,
        block_size=parameters.pool_block_size,
        utilization=memory.utilization,
        reserve_bytes=memory.reserve_bytes,
    ).num_gpu_blocks


def figures_of(summary: Mapping[str, Any], case: Case) -> dict[str, float]:
    """The figures of a run under the names of the sources; one that the run has no samples of is left out."""
    throughput, duration_s = summary["throughput"], summary["duration_s"]
    figures: dict[str, float] = {
        "output_tok_s": throughput["output_tokens_per_s"],
        "output_tok_s_per_gpu": throughput["output_tokens_per_s"] / case.tp,
        "total_tok_s": throughput["total_tokens_per_s"],
        "req_s": throughput["requests_per_s"],
        "e2e_batch_s": duration_s,
        "makespan_s": duration_s,
    }
    for name in SHOWN:
        short = name.removesuffix("_s")
        for place in STATISTICS:
            seconds = (summary.get(name) or {}).get(place)
            if seconds is not None:
                figures[f"{short}_{place}_ms"] = 1e3 * seconds
                figures[f"{short}_{place}_s"] = seconds
    _derived(figures, case)
    return figures


def _derived(figures: dict[str, float], case: Case) -> None:
    """Figures that sources compute from others, the same way."""
    output, clients = case.output.mean, case.concurrency
    ttft_ms, tpot_ms = figures.get("ttft_mean_ms"), figures.get("tpot_mean_ms")
    if case.kind == "offline_batch" and ttft_ms is not None and output is not None and output > 1:
        figures["prefill_batch_s"] = figures["ttft_p99_s"]
        figures["prefill_batch_ms"] = figures["ttft_p99_ms"]
        figures["decode_step_mean_ms"] = (1e3 * figures["e2e_batch_s"] - figures["ttft_p99_ms"]) / (output - 1)
    if case.kind == "closed_loop" and ttft_ms is not None and tpot_ms is not None and output and clients:
        figures["derived_output_tok_s_steady"] = 1e3 * clients * output / (ttft_ms + (output - 1) * tpot_ms)
