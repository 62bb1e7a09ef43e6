"""One replica under a law's input: the engine, token-budget policy, world, recorder and metrics of any other run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.core.engine import Engine
from policies.core.kv import KvManager
from policies.systems.base import BatchingPolicy
from policies.systems.token_budget import TokenBudget
from sim.world.replica import StepCosts
from sim.world.world import Outcome, World
from tests.laws.draws import Floats
from tests.laws.identities import Tape
from traces.metrics.accumulate import MetricsSink, RunMetrics
from traces.record.columns import Columns
from traces.record.recorder import Recorder
from traces.record.schema import RecordSink
from traces.workload.rows import TraceRow
from traces.workload.source import Workload

UNLIMITED = 1 << 20
_NUM_BLOCKS, _BLOCK_SIZE = 100_000, 16


@dataclass(frozen=True)
class Served:
    """How a run ended, its metrics, and the tape for the identities."""

    outcome: Outcome
    metrics: RunMetrics
    tape: Tape


@dataclass(frozen=True)
class Run:
    """A law's run: times of each request in order of arrival, and what ``Served`` holds."""

    arrival_s: Floats
    first_scheduled_s: Floats
    finish_s: Floats
    metrics: RunMetrics
    tape: Tape


def serve(
    policy: BatchingPolicy,
    workload: Workload,
    costs: StepCosts,
    *,
    max_model_len: int,
    skip_ahead: bool = True,
    deliver_at_batch_end: bool = False,
    max_time_s: float | None = None,
    also: Sequence[RecordSink] = (),
) -> Served:
    """Run a workload against a policy, in the way that every run goes; ``also`` are further sinks."""
    metrics = MetricsSink(
        max_num_seqs=policy.max_num_seqs,
        num_gpu_blocks=policy.kv.num_blocks,
        block_size=policy.kv.block_size,
        delivery="batch_end" if deliver_at_batch_end else "step",
    )
    tape = Tape()
    recorder = Recorder(policy, [Columns(metrics, tape), *also], deliver_at_batch_end=deliver_at_batch_end)
    engine = Engine(policy, observer=recorder, deliver_at_batch_end=deliver_at_batch_end)
    world = World(engine, costs, max_model_len=max_model_len, skip_ahead=skip_ahead)
    return Served(world.run(workload, recorder, max_time_s), metrics.result(), tape)


def run(arrivals_s: Floats, output_tokens: Floats, costs: StepCosts, *, max_num_seqs: int = UNLIMITED) -> Run:
    """Serve requests of one prompt token; memory and budgets never limit."""
    kv = KvManager(_NUM_BLOCKS, _BLOCK_SIZE, null_block=True)
    policy = TokenBudget(kv, max_num_seqs=max_num_seqs, max_num_batched_tokens=UNLIMITED, max_model_len=UNLIMITED)
    rows = [
        TraceRow(arrival_s, 1, tokens, tokens)
        for arrival_s, tokens in zip(arrivals_s.tolist(), output_tokens.astype(int).tolist(), strict=True)
    ]
    served = serve(policy, workload_of(rows), costs, max_model_len=UNLIMITED)
    assert served.outcome.status == "completed", served.outcome.message
    requests = served.tape.request_columns()
    order = np.argsort(requests["id"])
    return Run(
        arrival_s=requests["arrival_s"][order],
        first_scheduled_s=requests["first_scheduled_s"][order],
        finish_s=requests["finish_s"][order],
        metrics=served.metrics,
        tape=served.tape,
    )


def workload_of(rows: Sequence[TraceRow]) -> Workload:
    """An open loop over rows in order of arrival."""
    return Workload(
        rows=lambda: iter(rows),
        num_requests=len(rows),
        notices=(),
        concurrency=None,
        think_time_s=0.0,
        description="a law's input",
        max_tokens_rule="output",
        over_length="cut",
    )
