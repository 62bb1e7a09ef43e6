"""Writes what a run leaves behind: sinks for its record while it runs, ``summary.json`` when it is over."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policies.conformance.decisions import DecisionWriter, line_writer
from policies.core.errors import EngineDied
from policies.core.plan import Finish, StepPlan, StepResult
from policies.core.protocols import StepObserver
from policies.core.request import Request, Slo
from sim.costs.floor import bound_output_tokens_per_s
from sim.decisions import DECISIONS_NAME
from sim.extrapolation import ExtrapolationSink
from sim.notes import group_name, run_notes, unserved
from sim.runs import claim, remove, write_whole
from sim.step_terms import StepTerms
from sim.summary import CostModelFacts, RunFacts, build_summary, to_json
from sim.world.world import Outcome
from traces.metrics.accumulate import MetricsSink, RunMetrics
from traces.metrics.digest import DIGEST_NAME, DigestSink
from traces.record.columns import Columns, TableSink
from traces.record.memory import MemorySink
from traces.record.recorder import Recorder
from traces.workload.source import source_identity

if TYPE_CHECKING:
    from sim.api import Setup


class Tee:
    """Tells several observers the same."""

    def __init__(self, *observers: StepObserver) -> None:
        self._observers = observers

    def on_arrival(self, request: Request, now_s: float) -> None:
        """A request was handed to the engine."""
        for observer in self._observers:
            observer.on_arrival(request, now_s)

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """A step is about to run."""
        for observer in self._observers:
            observer.on_begin(plan, now_s, fresh=fresh)

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """Steps were run."""
        for observer in self._observers:
            observer.on_step(plan, result)

    def on_finish(self, finish: Finish, now_s: float) -> None:
        """A request ended."""
        for observer in self._observers:
            observer.on_finish(finish, now_s)


class DecisionLog:
    """The decisions of a run, in its folder; ``how`` its steps ran: simulated or measured."""

    def __init__(self, setup: Setup, folder: Path, how: str) -> None:
        self._stream = (folder / DECISIONS_NAME).open("w", encoding="utf-8")
        self._writer = DecisionWriter(setup.policy, line_writer(self._stream), config=log_config(setup, how))
        self.observer: StepObserver = self._writer

    def close(self, status: str, message: str) -> None:
        """The run ended so."""
        if status == EngineDied.status:
            self._writer.die(EngineDied(message))
        self._writer.close(stopped=status in ("completed", "interrupted"))
        self._stream.close()

    def release(self) -> None:
        """Close the file of a run that has no end."""
        self._stream.close()


def metrics_of(setup: Setup) -> MetricsSink:
    """What makes the metrics of a run from its record."""
    kv = setup.policy.kv
    return MetricsSink(
        max_num_seqs=setup.parameters.max_num_seqs,
        num_gpu_blocks=kv.num_blocks,
        block_size=kv.block_size,
        delivery=setup.parameters.delivery,
    )


def facts_of(
    setup: Setup,
    *,
    hardware: str,
    cost_model: CostModelFacts,
    status: str,
    cpu_s: float,
    started_s: float,
    notes: tuple[str, ...],
) -> RunFacts:
    """What the set-up says of a run that was ``started_s`` on the monotonic clock and is over now."""
    kv, parameters = setup.policy.kv, setup.parameters
    config = setup.config.to_dict() | {"parameters": dict(parameters.values)}
    return RunFacts(
        preset=parameters.preset.name,
        policy=parameters.custom or type(setup.policy).__name__,
        model=setup.shape.name,
        hardware=hardware,
        config=config | source_identity(setup.config.workload),
        num_gpu_blocks=kv.num_gpu_blocks,
        block_size=kv.block_size,
        cost_model=cost_model,
        cpu_s=cpu_s,
        wall_s=time.monotonic() - started_s,
        delivery=parameters.delivery,
        status=status,
        closed_loop=setup.workload.concurrency is not None,
        prefix_caching=kv.caches_prefixes,
        swap_exhausted=getattr(setup.policy, "swap_exhausted", 0),
        notes=notes,
    )


class RunWriter:
    """The observer of one run and its files. ``folder`` None writes none, and keeps only what the summary needs;
    with ``keep`` also ``memory``, the record, and ``digest``, what a page shows. A folder has a digest if the record
    level leaves out the steps, from which it could be made."""

    def __init__(self, setup: Setup, folder: Path | None, *, keep: bool = False) -> None:
        self._setup, self._folder = setup, folder
        if folder is not None:
            claim(folder, setup.config.to_toml())
        record = setup.config.sim.record
        kv, delivery = setup.policy.kv, setup.parameters.delivery
        self._metrics = metrics_of(setup)
        self._extrapolated = ExtrapolationSink(setup.costs)
        level = "tokens" if record == "decisions" else record
        self.memory = MemorySink(level) if keep and folder is None else None
        self.digest: DigestSink | None = None
        if keep or (folder is not None and record == "requests"):
            in_groups = setup.policy.num_scheduler_steps > 1
            terms = StepTerms(setup.costs, setup.shape, kv.block_size, in_groups=in_groups)
            self.digest = DigestSink(num_gpu_blocks=kv.num_blocks, split=terms, delivery=delivery)
        kept = [sink for sink in (self.memory, self.digest) if sink is not None]
        self._recorder = Recorder(
            setup.policy,
            [Columns(self._metrics, self._extrapolated, *kept, *self._parquet(level))],
            block_bytes=setup.shape.block_bytes(kv.block_size),
            keep_segments=record in ("tokens", "decisions"),
            deliver_at_batch_end=delivery == "batch_end",
        )
        self.observer: StepObserver = self._recorder
        self._decisions: DecisionLog | None = None
        if record == "decisions" and folder is not None:
            self._decisions = DecisionLog(setup, folder, "simulated")
            self.observer = Tee(self._recorder, self._decisions.observer)

    def _parquet(self, level: str) -> Sequence[TableSink]:
        if self._folder is None:
            return ()
        from traces.record.parquet import ParquetSink

        return (ParquetSink(self._folder, level),)

    def close(self, now_s: float) -> None:
        """The run is over at ``now_s``."""
        self._recorder.close(now_s)

    def discard(self) -> None:
        """Remove the files, and the folder, of a run whose figures are worth nothing."""
        if self._decisions is not None:
            self._decisions.release()
        if self._folder is not None:
            remove(self._folder)

    def finish(
        self, outcome: Outcome, loop_cpu_s: float, started_s: float
    ) -> tuple[dict[str, Any], RunMetrics, str, tuple[str, ...]]:
        """The summary, the metrics behind it, why the run is no success (else ""), and what a reader should be told;
        writes the folder's summary."""
        setup = self._setup
        slo = setup.config.slo
        if self._decisions is not None:
            self._decisions.close(outcome.status, outcome.message)
        metrics = self._metrics.result(Slo(slo.ttft_s, slo.itl_s, slo.tpot_s, slo.e2e_s))
        message = outcome.message or unserved(setup, metrics)
        notices = self._with_range((*setup.notices, *run_notes(setup, outcome, metrics)))
        notes = (*((message,) if message else ()), *notices)
        facts = self._facts(outcome, metrics, loop_cpu_s, started_s, notes)
        summary = build_summary(facts, metrics)
        if self._folder is not None:
            if self.digest is not None:
                write_whole(self._folder / DIGEST_NAME, json.dumps(self.digest.to_dict(), allow_nan=False))
            write_whole(self._folder / "summary.json", to_json(summary))
        return summary, metrics, message, notices

    def _with_range(self, notices: tuple[str, ...]) -> tuple[str, ...]:
        """With what was never measured: a warning goes first, a remark last."""
        error = self._setup.costs.file.held_out.get("step")
        notice = self._extrapolated.notice(error["median"] if error else None)
        if notice.startswith("WARNING: "):
            return (notice, *notices)
        return (*notices, notice) if notice else notices

    def _facts(
        self,
        outcome: Outcome,
        metrics: RunMetrics,
        loop_cpu_s: float,
        started_s: float,
        notes: tuple[str, ...],
    ) -> RunFacts:
        setup, counts = self._setup, outcome.counts
        costs = setup.costs
        common = facts_of(
            setup,
            hardware=group_name(setup.card.name, setup.shape.tp),
            cost_model=CostModelFacts(
                costs.name,
                costs.version,
                costs.file.kind,
                costs.file.band,
                costs.file.held_out.get("step"),
                self._extrapolated.steps,
                self._extrapolated.shares(),
            ),
            status=outcome.status,
            cpu_s=loop_cpu_s,
            started_s=started_s,
            notes=notes,
        )
        return replace(
            common,
            swapped_out_bytes=counts.swapped_out_bytes,
            swapped_in_bytes=counts.swapped_in_bytes,
            decode_only_steps=counts.quiet_steps,
            plans=counts.quiet_plans,
            bound_output_tokens_per_s=self._bound(metrics),
            usd_per_hour=setup.config.price.usd_per_hour(setup.card.name, setup.shape.tp),
        )

    def _bound(self, metrics: RunMetrics) -> float | None:
        """Output tokens a second that the hardware allows for this mix of lengths; None without output."""
        made = metrics.throughput
        if not made.output_tokens or not metrics.mean_context_tokens:
            return None
        kv = self._setup.policy.kv
        return bound_output_tokens_per_s(
            self._setup.shape,
            self._setup.card,
            mean_context_tokens=metrics.mean_context_tokens,
            prompt_tokens_per_output_token=made.prompt_tokens / made.output_tokens,
            pool_tokens=kv.num_blocks * kv.block_size,
            max_num_seqs=self._setup.parameters.max_num_seqs,
        )


def log_config(setup: Setup, how: str) -> dict[str, object]:
    """First line of a decision log: the settings under the names of the recorded logs, so that ``policies conform``
    replays the log of an engine it knows. ``how`` the steps ran: simulated or measured."""
    kv, parameters = setup.policy.kv, setup.parameters
    preset, custom = parameters.preset, parameters.custom
    unknown = (preset.system, preset.name, preset.version) if custom is None else ("custom", custom, "")
    system, engine, version = (preset.recorded_as if custom is None else None) or unknown
    values = dict(parameters.values)
    del values["faithful"]
    if "scheduler_reserve_full_isl" in values:
        values["reserve_full_isl"] = values.pop("scheduler_reserve_full_isl")
    if "scheduling_policy" in preset.fixed:
        values["policy"] = preset.fixed["scheduling_policy"]
    if values.pop("swap_space_bytes", None) is not None:
        values["num_cpu_blocks"] = kv.cpu_pool.num_blocks
    return {
        "scenario": f"{how}-{preset.name}",
        "system": system,
        "engine": engine,
        "version": version,
        "num_blocks": kv.num_gpu_blocks,
        **values,
        "block_size": kv.block_size,
    }
