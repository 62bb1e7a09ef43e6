"""What users of real engines measured, run again here: set-ups, and the figures that are to be compared.

    python -m tests.perf.findings [--orders 40]

prints them all. tests/test_user_findings.py holds them against what was measured.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from policies.catalog import Card, card
from sim import simulate
from sim.api import prepare, run_setup
from sim.config import load_config
from sim.costs.load import load_cost_model
from sim.result import Result

Summary = Mapping[str, Any]
Figures = Mapping[str, float]


def tables(preset: str, workload: Mapping[str, object], **more: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Tables of RUN.toml."""
    made = {"workload": dict(workload), **{name: dict(table) for name, table in more.items()}}
    return {**made, "engine": {"preset": preset, **made.get("engine", {})}}


def run(preset: str, workload: Mapping[str, object], **more: Mapping[str, object]) -> Summary:
    """The summary of one simulation."""
    return simulate(tables(preset, workload, **more)).summary


def uniform(low: int, high: int) -> dict[str, object]:
    """A law of lengths."""
    return {"dist": "uniform", "low": low, "high": high}


def fixed(value: int) -> dict[str, object]:
    """A law of lengths."""
    return {"dist": "fixed", "value": value}


def figures(summary: Summary) -> dict[str, float]:
    """Those that the reports state."""
    return {
        "preemptions": summary["preemptions"]["recompute"],
        "output_tok_s": summary["throughput"]["output_tokens_per_s"],
        "req_s": summary["throughput"]["requests_per_s"],
        "ttft_p50_ms": 1e3 * summary["ttft_s"]["p50"],
        "ttft_p99_ms": 1e3 * summary["ttft_s"]["p99"],
        "itl_p99_ms": 1e3 * summary["itl_s"]["p99"],
        "tpot_p99_ms": 1e3 * summary["tpot_s"]["p99"],
        "e2e_p50_s": summary["e2e_s"]["p50"],
        "e2e_p99_s": summary["e2e_s"]["p99"],
    }


# -- KV watermark: vllm-project/vllm#44594 -----------------------------------------------------------------------------

WATERMARKS = (0.0, 0.02, 0.05, 0.10)
WATERMARK_ORDERS = 40
FEW_PLACES, ANY_ORDER = 5.0, 1e6
"""Places by which the first requests leave their order: through a front end that works side by side, and at random."""

MEASURED_SIGNS = {"output_tok_s": -1, "ttft_p50_ms": -1, "ttft_p99_ms": 1, "itl_p99_ms": -1, "e2e_p50_s": 1}
"""How what the report states changed from 0.02 to 0.10, preemptions aside."""

GB200: Card = card("h200-141gb")._replace(
    name="gb200-186gb",
    flops_per_s=2.5e15,
    bytes_per_s=8e12,
    memory_bytes=186 * 10**9,
    source="NVIDIA GB200 NVL72 data sheet, one GPU, 16 bit, dense, nominal",
)
"""The card of that measurement; its costs are the roofline's."""

_CLIENTS, _REQUESTS = 128, 450


def bench_lengths() -> list[tuple[int, int]]:
    """Prompt and output tokens of the requests that were sent: ``vllm bench serve`` with random data, 1,000 and 5,000
    tokens at a range ratio of 0.2, draws all prompts and then all answers from NumPy's generator of its default seed 0.

    Its answers have 5,022.52 tokens in the mean. The report does not state the seed, but its tokens a second over its
    requests a second are 5,022 in every row, where other seeds are off by 27 tokens (one standard deviation).
    """
    rng = np.random.default_rng(0)
    prompts, outputs = (rng.integers(low, high + 1, size=_REQUESTS) for low, high in ((800, 1200), (4000, 6000)))
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


def watermark(share: float, orders: int = WATERMARK_ORDERS, places: float = FEW_PLACES) -> list[Figures]:
    """128 clients of a Qwen2.5-7B, 450 requests, 299,584 KV tokens, max_num_seqs 256, no prefix cache; 16,384 tokens a
    step, the default of that card.

    The clients' first requests are sent at once, and the order in which a server's front end hands them to the engine
    is chance: one run for each of that many orders, in which each is ``places`` earlier or later than it was sent (the
    standard deviation of a normal distribution).
    """
    lengths = bench_lengths()
    first, rest = lengths[:_CLIENTS], lengths[_CLIENTS:]
    return [_watermark(share, [*_displaced(first, places, Random(seed)), *rest]) for seed in range(orders)]


def _displaced(sent: Sequence[tuple[int, int]], places: float, random: Random) -> list[tuple[int, int]]:
    keys = [place + random.gauss(0, places) for place in range(len(sent))]
    return [sent[place] for place in sorted(range(len(sent)), key=keys.__getitem__)]


def watermark_changes(low: Sequence[Figures], high: Sequence[Figures]) -> Figures:
    """What changes from runs with a watermark of 0.02 to runs with one of 0.10: by how many percent in the mean, and in
    what share of all pairs of runs with the sign of the report, one by one and all five together."""
    means = over(low, fmean), over(high, fmean)
    percent = {f"{name}_percent": 100 * (means[1][name] / means[0][name] - 1) for name in MEASURED_SIGNS}
    same = {
        name: [(after[name] > before[name]) == (sign > 0) for before, after in product(low, high)]
        for name, sign in MEASURED_SIGNS.items()
    }
    shares = {f"{name}_share": fmean(values) for name, values in same.items()}
    return {**percent, **shares, "all_share": fmean(map(all, zip(*same.values(), strict=True)))}


def _watermark(share: float, lengths: Sequence[tuple[int, int]]) -> Figures:
    engine = {
        "max_model_len": 8192,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 16_384,
        "enable_prefix_caching": False,
        "num_gpu_blocks": 299_584 // 16,  # the tokens that vLLM prints count its null block
        "watermark": share,
    }
    hardware = {"name": "h200-141gb", "cost_model": "roofline"}
    with rows_file([(0.0, *pair) for pair in lengths]) as path:
        workload = {"trace": str(path), "concurrency": _CLIENTS}
        config = tables("vllm-0.33", workload, model={"name": "qwen2.5-7b"}, hardware=hardware, engine=engine)
        setup = prepare(load_config(config))
        costs = load_cost_model(setup.shape, GB200, "roofline")
        return figures(run_setup(setup._replace(costs=costs)).summary)


# -- TensorRT-LLM: no-evict and max-utilization, NVIDIA/TensorRT-LLM#16827 ---------------------------------------------


def tensorrt(preset: str, clients: int) -> Figures:
    """Llama-3.3-70B in FP8 on one H200, 128 requests of 16,384 prompt and 512 output tokens in a closed loop.

    Not stated there and assumed here: KV in FP8, chunked contexts, 8,192 tokens a step. 32 clients want twice the KV
    memory that there is; 8 find room.
    """
    workload = {
        "generator": "closed-loop",
        "concurrency": clients,
        "num_requests": 128,
        "prompt": fixed(16_384),
        "output": fixed(512),
    }
    engine = {"max_model_len": 16_384 + 512, "enable_chunked_prefill": True}
    model = {"name": "llama-3.1-70b", "weight_bits": 8, "kv_bits": 8}
    return figures(run(preset, workload, engine=engine, model=model, hardware={"name": "h200-141gb"}))


# -- chunked prefill ---------------------------------------------------------------------------------------------------


def chunked(*, enabled: bool, alone: bool) -> Figures:
    """Llama-2-7B, A100: one request of 3,000 prompt tokens alone, or such ones, one a second, among 16 clients with
    short prompts and 400 output tokens. vLLM 0.11 with whole prompts in steps of 4,096 tokens, or chunks of 512."""
    engine = {"enable_chunked_prefill": enabled, "max_num_batched_tokens": 512 if enabled else 4096}
    longs = [(float(second), 3_000, 4) for second in range(1, 11)]
    shorts = [(0.01 * number, 100, 400) for number in range(16)]
    return figures(run_rows("vllm-0.11", longs[:1] if alone else [*shorts, *longs], engine=engine))


def run_rows(
    preset: str, rows: Sequence[tuple[float, int, int]], *, concurrency: int | None = None, **more: Mapping[str, object]
) -> Summary:
    """The summary of one simulation of given requests."""
    with rows_file(rows) as path:
        workload: dict[str, object] = {"trace": str(path)}
        if concurrency is not None:
            workload["concurrency"] = concurrency
        return run(preset, workload, **more)


@contextmanager
def rows_file(rows: Sequence[tuple[float, int, int]]) -> Iterator[Path]:
    """A trace of requests: when each comes, its prompt and its output tokens."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "rows.csv")
        lines = ["arrival_s,prompt_tokens,output_tokens", *(",".join(map(str, row)) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield path


# -- waves and a closed loop -------------------------------------------------------------------------------------------

CLIENTS, WAVES = 16, 6


def closed_loop_and_waves(preset: str, seed: int) -> tuple[float, float]:
    """Seconds for 96 requests from 16 clients that each send the next one when they have their answer, and from one
    client that sends 16 at once and waits for all answers."""
    random = Random(seed)
    rows = [(0.0, random.randint(50, 200), random.randint(100, 500)) for _ in range(CLIENTS * WAVES)]
    closed_s = run_rows(preset, rows, concurrency=CLIENTS)["duration_s"]
    waves = [rows[start : start + CLIENTS] for start in range(0, len(rows), CLIENTS)]
    return closed_s, sum(run_rows(preset, wave)["duration_s"] for wave in waves)


# -- max_num_seqs ------------------------------------------------------------------------------------------------------

SEQS = (24, 28, 36)


def max_num_seqs(limit: int) -> Figures:
    """Llama-2-7B, A100, 6 requests/s of 50-200 prompt and 100-500 output tokens: below what 24 rows can serve."""
    workload = {
        "generator": "poisson",
        "rate_per_s": 6.0,
        "num_requests": 1_000,
        "prompt": uniform(50, 200),
        "output": uniform(100, 500),
    }
    summary = run("vllm-0.11", workload, engine={"max_num_seqs": limit})
    means = {f"{name}_mean_ms": 1e3 * summary[f"{name}_s"]["mean"] for name in ("ttft", "tpot")}
    return {**means, "req_s": summary["throughput"]["requests_per_s"]}


# -- several steps a plan ----------------------------------------------------------------------------------------------

STEPS = (1, 4, 10)


def lone_request(steps: int) -> Result:
    """The run of one request of 100 prompt and 201 output tokens alone, ``steps`` of which a plan decodes: Llama-2-7B,
    A100, vLLM 0.6."""
    engine, sim = {"num_scheduler_steps": steps}, {"record": "steps"}
    return simulate(tables("vllm-0.6-multi-step", alone(100, 201), engine=engine, sim=sim))


def alone(prompt: int, output: int) -> dict[str, object]:
    """One request."""
    one = {"generator": "closed-loop", "concurrency": 1, "num_requests": 1}
    return {**one, "prompt": fixed(prompt), "output": fixed(output)}


def multi_step(steps: int, *, host: bool = True) -> Figures:
    """64 clients that send 512 requests of 50-200 prompt and 100-500 output tokens to the same engine, with its host
    time or without."""
    workload = {
        "generator": "closed-loop",
        "concurrency": 64,
        "num_requests": 512,
        "prompt": uniform(50, 200),
        "output": uniform(100, 500),
    }
    engine, hardware = {"num_scheduler_steps": steps}, {"host_term": host}
    summary = run("vllm-0.6-multi-step", workload, engine=engine, hardware=hardware)
    more = {"itl_p50_ms": 1e3 * summary["itl_s"]["p50"], "slot_waste": summary["steps"]["slot_waste"]}
    return {**figures(summary), **more}


def over(runs: Sequence[Figures], middle: Callable[[Sequence[float]], float]) -> Figures:
    """One figure of each kind for several runs."""
    return {name: middle([run[name] for run in runs]) for name in runs[0]}


def _percentile(percent: float) -> Callable[[Sequence[float]], float]:
    return lambda values: float(np.percentile(values, percent))


def _print(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """A table with a row for each run."""
    names: Sequence[str] = list(next(iter(rows.values())))
    widths = [max(16, len(name) + 2) for name in names]
    print(f"\n{title}\n{'':24}" + "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True)))
    for name, row in rows.items():
        print(f"{name:24}" + "".join(f"{row[key]:{width},.4g}" for key, width in zip(names, widths, strict=True)))


def _changes(places: float, orders: int) -> Figures:
    low, high = (watermark(share, orders if places else 1, places) for share in (0.02, 0.10))
    return watermark_changes(low, high)


def main(words: Sequence[str] | None = None) -> None:
    """All tables."""
    parser = ArgumentParser(prog="python -m tests.perf.findings", description=__doc__)
    parser.add_argument("--orders", type=int, default=WATERMARK_ORDERS, help="runs of each watermark")
    orders = parser.parse_args(words).orders
    if orders < 1:
        parser.error(f"--orders {orders}: give a whole number of at least 1")
    series = {share: watermark(share, orders) for share in WATERMARKS}
    for words, middle in (("mean", fmean), ("5th percentile", _percentile(5)), ("95th percentile", _percentile(95))):
        rows = {f"watermark {share}": over(runs, middle) for share, runs in series.items()}
        _print(f"KV watermark, vllm-0.33, Qwen2.5-7B, GB200, 128 clients, {orders} orders: {words}", rows)
    places = {"as sent": 0.0, "2 places": 2.0, "5 places": FEW_PLACES, "10 places": 10.0, "any order": ANY_ORDER}
    changes = {name: _changes(few, orders) for name, few in places.items()}
    _print("from 0.02 to 0.10, first requests displaced by", changes)
    for clients in (32, 8):
        rows = {name: tensorrt(name, clients) for name in ("trtllm-no-evict", "trtllm-max-utilization")}
        _print(f"TensorRT-LLM, Llama-3.3-70B FP8, H200, {clients} clients", rows)
    for alone in (True, False):
        rows = {words: chunked(enabled=enabled, alone=alone) for words, enabled in (("whole", False), ("chunks", True))}
        _print(f"chunked prefill, {'a prompt of 3,000 alone' if alone else 'long prompts among 16 others'}", rows)
    pairs = {preset: closed_loop_and_waves(preset, 0) for preset in ("vllm-0.11", "orca-max", "ft-static")}
    named = {preset: {"closed_loop_s": pair[0], "waves_s": pair[1]} for preset, pair in pairs.items()}
    _print("waves and a closed loop, 96 requests, 16 at a time", named)
    _print("max_num_seqs, vllm-0.11, 6 requests/s", {str(limit): max_num_seqs(limit) for limit in SEQS})
    for host in (True, False):
        rows = {f"{steps} steps a plan": multi_step(steps, host=host) for steps in STEPS}
        _print(f"several steps a plan, vllm-0.6, 64 clients, host time {'paid' if host else 'left out'}", rows)


if __name__ == "__main__":
    main()
