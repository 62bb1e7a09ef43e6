"""One run of a policy on the model of the check, with what each of its steps took; needs no simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrate.execute_run import ready_backend, timed_run
from gpu_backend.clock import RealClock
from gpu_backend.loop import Door, RealTimeLoop
from gpu_backend.traffic import Traffic
from policies.core.engine import Engine
from policies.core.errors import RunError
from policies.core.plan import Chunk, Finish, StepPlan, StepResult
from policies.core.protocols import StepObserver
from policies.core.request import Request
from policies.presets import build_policy, choose, resolve
from sim.config import load_config
from sim.latencies import SHOWN
from traces.metrics.accumulate import MetricsSink, RunMetrics
from traces.record.recorder import Recorder
from traces.workload.source import build_source

if TYPE_CHECKING:
    from gpu_backend.model import LlamaModel
    from gpu_backend.swap import Moved

NAN = float("nan")


class StepLine(NamedTuple):
    """A step as it was planned, in the words of ``StepPlan``, and as it was timed; ``moved`` is whether it waited for
    blocks that were swapped."""

    start_s: float
    end_s: float
    device_s: float
    num_tokens: int
    num_seqs: int
    sum_context: int
    max_context: int
    chunks: Sequence[Chunk]
    moved: bool


class StepLog:
    """An observer that notes steps and preemptions, and passes everything on."""

    def __init__(self, others: StepObserver) -> None:
        self.steps: list[StepLine] = []
        self.preemptions = 0
        self._others = others

    def on_arrival(self, request: Request, now_s: float) -> None:
        """Pass it on."""
        self._others.on_arrival(request, now_s)

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """Pass it on."""
        self._others.on_begin(plan, now_s, fresh=fresh)

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """Note the step."""
        self.preemptions += len(plan.preempted)
        device_s = 0.0 if result.time is None else result.time.device_s
        sizes = plan.num_tokens, plan.num_seqs, plan.sum_context, plan.max_context
        line = StepLine(result.start_s, result.end_s, device_s, *sizes, plan.chunks, bool(plan.transfers))
        self.steps.append(line)
        self._others.on_step(plan, result)

    def on_finish(self, finish: Finish, now_s: float) -> None:
        """Pass it on."""
        self._others.on_finish(finish, now_s)


class Driven(NamedTuple):
    """A run that ended: tokens of each request, metrics, steps, transfers, and the number of preemptions."""

    outputs: Mapping[int, Sequence[int]]
    metrics: RunMetrics
    steps: Sequence[StepLine]
    moved: Sequence[Moved]
    preemptions: int


def drive(
    model: LlamaModel,
    tables: Mapping[str, Mapping[str, Any]],
    *,
    graphs: bool = True,
    poison: bool = False,
    max_time_s: float | None = None,
) -> Driven:
    """Run the tables of a RUN.toml on the model, for at most ``max_time_s``; with ``poison`` memory begins as NaN.

    RunError where the engine dies or not every request has its answer in that time.
    """
    config = load_config(tables, ())
    shape = model.shape
    chosen, custom = choose(config.engine.preset, config.engine.policy)
    parameters = resolve(chosen, config.engine.to_dict(), max_model_len=shape.max_model_len, custom=custom)
    num_gpu_blocks, bytes_per_token = int(config.engine.num_gpu_blocks or 0), shape.kv_bytes_per_token
    policy, options = build_policy(parameters, num_gpu_blocks=num_gpu_blocks, kv_bytes_per_token=bytes_per_token)
    workload = build_source(config.workload, parameters.max_model_len)
    clock = RealClock()
    backend = ready_backend(model, policy, parameters, clock, graphs=graphs)
    if poison:
        backend.runner.cache.blocks_NL2KSD.fill_(NAN)
    kv = policy.kv
    metrics = MetricsSink(
        max_num_seqs=parameters.max_num_seqs,
        num_gpu_blocks=kv.num_blocks,
        block_size=kv.block_size,
        delivery=parameters.delivery,
    )
    at_batch_end = options.deliver_at_batch_end
    recorder = Recorder(policy, [metrics], deliver_at_batch_end=at_batch_end)
    log = StepLog(recorder)
    engine = Engine(policy, observer=log, deliver_at_batch_end=at_batch_end)
    loop = RealTimeLoop(engine, backend, Traffic.of(workload), clock, Door(parameters.max_model_len))
    ending, _ = timed_run(loop, clock, max_time_s)
    recorder.close(ending.end_s)
    backend.transfers_done()
    if ending.status != "completed":
        raise RunError(f"a run of {chosen.name} ended as {ending.status}: {ending.message}")
    found = metrics.result()
    answered = found.counts.get("finished", 0)
    if answered < workload.num_requests:
        asked = f"{answered} of {workload.num_requests} requests answered"
        raise RunError(f"{chosen.name}: {asked} when its time was over ({ending.end_s:.0f} s)")
    return Driven(backend.outputs, found, log.steps, backend.moved, log.preemptions)


def figures(metrics: RunMetrics) -> dict[str, Any]:
    """What is compared of a run, in either world: mean, median and 95th percentile of latencies, and throughput."""
    found: dict[str, Any] = {}
    for name in SHOWN:
        stats = metrics.latencies.get(name)
        found[name] = None if stats is None else {"mean": stats.mean, "p50": stats.p50, "p95": stats.p95}
    return {
        **found,
        "output_tokens_per_s": metrics.throughput.output_tokens_per_s,
        "duration_s": metrics.duration_s,
        "output_tokens": metrics.throughput.output_tokens,
        "requests": metrics.counts.get("finished", 0),
        "preemptions": metrics.preemptions.recompute + metrics.preemptions.swap,
    }
