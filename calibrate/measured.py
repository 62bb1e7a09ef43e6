"""What a measured run leaves behind: its record line by line while it runs, ``summary.json`` when it is over.

The folder reads like that of a simulated run: ``run.toml``, ``record.jsonl``, ``digest.json`` and ``summary.json``;
beside them are ``events.jsonl``, from which the run is replayed, and, with ``sim.record = "decisions"``,
``decisions.jsonl``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrate.transfers import by_direction
from policies.core.null_observer import NullObserver
from policies.core.plan import StepPlan, StepResult, StepTime
from policies.core.protocols import StepObserver
from sim.api import Setup, limits_of
from sim.notes import run_notes, unserved
from sim.record import DecisionLog, Tee, facts_of, metrics_of
from sim.runs import claim, remove, write_whole
from sim.summary import CostModelFacts, RunFacts, build_summary, to_json
from traces.metrics.accumulate import RunMetrics
from traces.metrics.digest import DIGEST_NAME, DigestSink
from traces.record.batched import BatchedSink
from traces.record.columns import Columns
from traces.record.events import EVENTS_NAME, EventLog
from traces.record.jsonl import JsonlSink
from traces.record.memory import MemorySink
from traces.record.read import JSONL_NAME
from traces.record.recorder import Recorder

if TYPE_CHECKING:
    from gpu_backend.loop import Ending
    from gpu_backend.swap import Moved

MEASURED = CostModelFacts("measured", 1, kind="measured")
"""In place of a cost model: the steps lasted as long as they lasted."""


class StepTimes(NullObserver):
    """An observer that keeps what host and device took of each step, in seconds."""

    def __init__(self) -> None:
        self._times: list[StepTime] = []

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """Keep the times of a step."""
        if result.time is not None:
            self._times.append(result.time)

    def summary(self) -> dict[str, dict[str, float]]:
        """Mean, median and 99th percentile of each part, in seconds; empty without steps."""
        if not self._times:
            return {}
        table = np.array(self._times)
        means, medians, tails = table.mean(0), np.median(table, 0), np.quantile(table, 0.99, 0)
        return {
            name: {"mean": float(means[place]), "p50": float(medians[place]), "p99": float(tails[place])}
            for place, name in enumerate(StepTime._fields)
        }


class MeasuredWriter:
    """The observer of one measured run and its files; ``folder`` None writes none.

    ``block_bytes`` are those of a block on the device, ``hardware`` names it, and ``executor`` says how the model ran.
    """

    def __init__(
        self, setup: Setup, folder: Path | None, *, block_bytes: int, hardware: str, executor: Mapping[str, object]
    ) -> None:
        self._setup, self._folder, self._hardware, self._executor = setup, folder, hardware, executor
        self._block_bytes = block_bytes
        kv, delivery = setup.policy.kv, setup.parameters.delivery
        if folder is not None:
            claim(folder, setup.config.to_toml())
        self._metrics = metrics_of(setup)
        self.digest = DigestSink(num_gpu_blocks=kv.num_blocks, delivery=delivery)
        self.memory = MemorySink("tokens") if folder is None else None
        self.events = None if folder is None else EventLog(folder / EVENTS_NAME)
        kept = () if self.memory is None else (self.memory,)
        self._lines = () if folder is None else (JsonlSink(folder / JSONL_NAME),)
        self._recorder = Recorder(
            setup.policy,
            [*self._lines, BatchedSink(Columns(self._metrics, self.digest, *kept))],
            block_bytes=block_bytes,
            keep_segments=True,
            deliver_at_batch_end=delivery == "batch_end",
        )
        self._times = StepTimes()
        self._decisions: DecisionLog | None = None
        observers: list[StepObserver] = [self._recorder, self._times]
        if folder is not None and setup.config.sim.record == "decisions":
            self._decisions = DecisionLog(setup, folder, "measured")
            observers.append(self._decisions.observer)
        self.observer = Tee(*observers)

    def step_done(self) -> None:
        """Write down what is known after a step."""
        if self._folder is not None:
            self._recorder.flush()

    def discard(self) -> None:
        """Remove the files, and the folder, of a run whose figures are worth nothing."""
        for lines in self._lines:
            lines.close()
        if self.events is not None:
            self.events.release()
        if self._decisions is not None:
            self._decisions.release()
        if self._folder is not None:
            remove(self._folder)

    def finish(
        self, ending: Ending, moved: Sequence[Moved], cpu_s: float, started_s: float
    ) -> tuple[dict[str, Any], RunMetrics, str, tuple[str, ...]]:
        """The summary, the metrics behind it, why the run is no success (else ""), and what a reader should be told;
        writes the folder's summary."""
        setup = self._setup
        self._recorder.close(ending.end_s)
        if self._decisions is not None:
            self._decisions.close(ending.status, ending.message)
        metrics = self._metrics.result(limits_of(setup.config))
        message = ending.message or unserved(setup, metrics)
        notices = (*setup.notices, *run_notes(setup, ending, metrics))
        notes = (*((message,) if message else ()), *notices)
        summary = build_summary(self._facts(ending, moved, cpu_s, started_s, notes), metrics)
        swapped = {f"swapped_{kind}": row for kind, row in by_direction(moved).items()}
        summary["executor"] = {**self._executor, **self._times.summary(), **swapped}
        if self._folder is not None:
            write_whole(self._folder / DIGEST_NAME, json.dumps(self.digest.to_dict(), allow_nan=False))
            write_whole(self._folder / "summary.json", to_json(summary))
        return summary, metrics, message, notices

    def _facts(
        self, ending: Ending, moved: Sequence[Moved], cpu_s: float, started_s: float, notes: tuple[str, ...]
    ) -> RunFacts:
        moved_bytes = {kind: sum(one.num_bytes for one in moved if one.kind == kind) for kind in ("out", "in")}
        common = facts_of(
            self._setup,
            hardware=self._hardware,
            cost_model=MEASURED,
            status=ending.status,
            cpu_s=cpu_s,
            started_s=started_s,
            notes=notes,
        )
        return replace(
            common,
            side="server-measured",
            swapped_out_bytes=moved_bytes["out"],
            swapped_in_bytes=moved_bytes["in"],
        )
