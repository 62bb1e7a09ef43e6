"""Runs of schedulers from the literature against first come, first served: workloads, metrics, pairs by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isnan
from random import Random
from statistics import fmean
from typing import NamedTuple

from policies.core.engine import Engine
from sim.api import prepare
from sim.config import load_config
from sim.world.replica import SwapLink
from sim.world.world import World
from tests.token_watch import recorded_token_times
from tests.worlds import Kept, p8, workload_of
from traces.record.recorder import Recorder
from traces.record.schema import RequestRow
from traces.workload.rows import TraceRow

FCFS = "vllm-0.11"
"""The same engine, first come, first served."""

TTFT_S, TPOT_S = 1.0, 0.1
"""When a user of the runs for Andes expects the first token, and each further one."""


class Outcome(NamedTuple):
    """What a run left: its requests, when each of their tokens came, how long it took, bytes over the swap link."""

    requests: Sequence[RequestRow]
    rows: Sequence[TraceRow]
    kept: Kept
    duration_s: float
    moved_bytes: int


Metric = Callable[[Outcome], float]


def run(preset: str, rows: Sequence[TraceRow], settings: Iterable[str]) -> Outcome:
    """Serve these rows on Llama-2-7B, one A100-80GB. ``settings`` are keys of RUN.toml."""
    config = load_config(None, [*p8(len(rows)), f"engine.preset={preset}", *settings])
    setup = prepare(config)
    kept, block_bytes = Kept(), setup.shape.block_bytes(setup.policy.kv.block_size)
    recorder = Recorder(setup.policy, [kept], block_bytes=block_bytes, keep_segments=True)
    world = World(
        Engine(setup.policy, observer=recorder),
        setup.costs,
        max_model_len=setup.parameters.max_model_len,
        link=SwapLink(block_bytes, setup.shape.swap_pieces_per_block()),
    )
    setup.services.lengths = world.clients.unanswered
    ended = world.run(workload_of(rows), recorder)
    requests = sorted(kept.request_rows, key=lambda row: row.id)
    if ended.status != "completed" or any(row.reason != "stop" for row in requests):
        raise RuntimeError(f"{preset}: {ended.status} {ended.message}")
    counts = ended.counts
    return Outcome(requests, rows, kept, ended.end_s, counts.swapped_out_bytes + counts.swapped_in_bytes)


# -- workloads ---------------------------------------------------------------------------------------------------------


class Class(NamedTuple):
    """One kind of requests: its share of them, ranges of prompt and output tokens, and what its requests carry."""

    share: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    client: str = ""
    priority: int = 0
    ttft_s: float | None = None


class Load(NamedTuple):
    """Poisson arrivals of several kinds of requests; with ``pause_s``, in bursts of ``burst`` requests with pauses."""

    classes: tuple[Class, ...]
    rate_per_s: float
    burst: int = 0
    pause_s: float = 0.0

    def rows(self, seed: int, num_requests: int) -> list[TraceRow]:
        """The requests of one seed."""
        random, now_s = Random(seed), 0.0
        rows = []
        for number in range(num_requests):
            now_s += random.expovariate(self.rate_per_s)
            if self.burst and number and number % self.burst == 0:
                now_s += self.pause_s
            kind = random.choices(self.classes, [each.share for each in self.classes])[0]
            prompt, output = random.randint(*kind.prompt), random.randint(*kind.output)
            rows.append(
                TraceRow(now_s, prompt, output, priority=kind.priority, client_id=kind.client, slo_ttft_s=kind.ttft_s)
            )
        return rows


# -- metrics -----------------------------------------------------------------------------------------------------------


def ttft_s(row: RequestRow) -> float:
    """Time to the first token."""
    return row.first_token_s - row.arrival_s


def e2e_s(row: RequestRow) -> float:
    """Time to the last token."""
    return row.finish_s - row.arrival_s


def tpot_s(row: RequestRow) -> float:
    """Mean time of a token after the first one."""
    return (row.finish_s - row.first_token_s) / (row.output_tokens - 1)


def mean(of: Callable[[RequestRow], float], keep: Callable[[RequestRow], bool] = lambda row: True) -> Metric:
    """Mean over the requests that ``keep`` accepts."""
    return lambda outcome: fmean(of(row) for row in outcome.requests if keep(row))


def p99(of: Callable[[RequestRow], float], keep: Callable[[RequestRow], bool] = lambda row: True) -> Metric:
    """99th percentile (nearest rank) over the requests that ``keep`` accepts."""

    def metric(outcome: Outcome) -> float:
        values = sorted(of(row) for row in outcome.requests if keep(row))
        return values[max(0, -(-99 * len(values) // 100) - 1)]

    return metric


def attainment(outcome: Outcome) -> float:
    """Share of requests whose first token came within their own limit."""
    limits = zip(outcome.requests, outcome.rows, strict=True)
    return fmean(row.slo_ttft_s is None or ttft_s(request) <= row.slo_ttft_s for request, row in limits)


def output_rate(outcome: Outcome) -> float:
    """Output tokens a second until the last request ended."""
    return sum(row.output_tokens for row in outcome.requests) / outcome.duration_s


def qoe(outcome: Outcome) -> float:
    """Mean quality of experience: area under the tokens a user has read, over the area under those expected, both until
    the last one is read. A user expects token k (from 0) at ``TTFT_S`` + k x ``TPOT_S`` and reads one a ``TPOT_S`` at
    most, from when it comes."""
    times = recorded_token_times(outcome.kept)
    return fmean(_qoe([time_s - row.arrival_s for time_s in times[row.id]]) for row in outcome.requests)


def _qoe(delivered_s: Sequence[float]) -> float:
    read_s: list[float] = []
    for time_s in delivered_s:
        read_s.append(max(time_s, read_s[-1] + TPOT_S if read_s else TTFT_S))
    end_s = read_s[-1]
    read = sum(end_s - time_s for time_s in read_s)
    expected = sum(max(0.0, end_s - TTFT_S - number * TPOT_S) for number in range(len(read_s)))
    return min(1.0, read / expected) if expected else 1.0


def moved_gb(outcome: Outcome) -> float:
    """Gigabytes of KV over the link to the host, both ways."""
    return outcome.moved_bytes / 1e9


def longest_wait_s(outcome: Outcome) -> float:
    """Longest time to a first token."""
    return max(value for row in outcome.requests if not isnan(value := ttft_s(row)))
