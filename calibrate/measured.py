"""What a measured run leaves behind: its record line by line while it runs, ``summary.json`` when it is over.

The folder reads like that of a simulated run: ``run.toml``, ``record.jsonl``, ``digest.json`` and ``summary.json``;
beside them are ``events.jsonl``, from which the run is replayed, and, with ``sim.record = "decisions"``,
``decisions.jsonl``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from policies.conformance.decisions import DecisionWriter, line_writer
from policies.core.errors import EngineDied
from policies.core.plan import Finish, StepPlan, StepResult, StepTime
from policies.core.protocols import StepObserver
from policies.core.request import Request
from sim.api import Setup, limits_of
from sim.notes import run_notes, unserved
from sim.record import Tee, log_config
from sim.runs import claim, write_whole
from sim.summary import CostModelFacts, RunFacts, build_summary, to_json
from traces.metrics.accumulate import MetricsSink, RunMetrics
from traces.metrics.digest import DIGEST_NAME, DigestSink
from traces.record.batched import BatchedSink
from traces.record.columns import Columns
from traces.record.events import EVENTS_NAME, EventLog
from traces.record.jsonl import JsonlSink
from traces.record.memory import MemorySink
from traces.record.read import JSONL_NAME
from traces.record.recorder import Recorder
from traces.workload.source import source_identity

if TYPE_CHECKING:
    from gpu_backend.loop import Ending
    from gpu_backend.swap import Moved

MEASURED = CostModelFacts("measured", 1, kind="measured")
"""In place of a cost model: the steps lasted as long as they lasted."""


class StepTimes:
    """An observer that keeps what host and device took of each step, in seconds."""

    def __init__(self) -> None:
        self._times: list[StepTime] = []

    def on_arrival(self, request: Request, now_s: float) -> None:
        """Nothing is noted."""

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """Nothing is noted."""

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """Keep the times of a step."""
        if result.time is not None:
            self._times.append(result.time)

    def on_finish(self, finish: Finish, now_s: float) -> None:
        """Nothing is noted."""

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
        self._metrics = MetricsSink(
            max_num_seqs=setup.parameters.max_num_seqs,
            num_gpu_blocks=kv.num_blocks,
            block_size=kv.block_size,
            delivery=delivery,
        )
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
        self._decisions: DecisionWriter | None = None
        self._stream: TextIO | None = None
        observers: list[StepObserver] = [self._recorder, self._times]
        if folder is not None and setup.config.sim.record == "decisions":
            self._stream = (folder / "decisions.jsonl").open("w", encoding="utf-8")
            self._decisions = DecisionWriter(
                setup.policy, line_writer(self._stream), config=log_config(setup, "measured")
            )
            observers.append(self._decisions)
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
        if self._stream is not None:
            self._stream.close()
        if self._folder is not None:
            for path in self._folder.iterdir():
                path.unlink()
            with suppress(OSError):  # a link to a folder, say
                self._folder.rmdir()

    def finish(
        self, ending: Ending, moved: Sequence[Moved], cpu_s: float, started_s: float
    ) -> tuple[dict[str, Any], RunMetrics, str, tuple[str, ...]]:
        """The summary, the metrics behind it, why the run is no success (else ""), and what a reader should be told;
        writes the folder's summary."""
        setup = self._setup
        self._recorder.close(ending.end_s)
        self._close_log(ending)
        metrics = self._metrics.result(limits_of(setup.config))
        message = ending.message or unserved(setup, metrics)
        notices = (*setup.notices, *run_notes(setup, ending, metrics))
        notes = (*((message,) if message else ()), *notices)
        summary = build_summary(self._facts(ending, moved, cpu_s, started_s, notes), metrics)
        summary["executor"] = {**self._executor, **self._times.summary(), **_swapping(moved)}
        if self._folder is not None:
            write_whole(self._folder / DIGEST_NAME, json.dumps(self.digest.to_dict(), allow_nan=False))
            write_whole(self._folder / "summary.json", to_json(summary))
        return summary, metrics, message, notices

    def _close_log(self, ending: Ending) -> None:
        if self._decisions is None or self._stream is None:
            return
        if ending.status == EngineDied.status:
            self._decisions.die(EngineDied(ending.message))
        self._decisions.close(stopped=ending.status in ("completed", "interrupted"))
        self._stream.close()

    def _facts(
        self, ending: Ending, moved: Sequence[Moved], cpu_s: float, started_s: float, notes: tuple[str, ...]
    ) -> RunFacts:
        setup = self._setup
        kv, parameters = setup.policy.kv, setup.parameters
        config = setup.config.to_dict() | {"parameters": dict(parameters.values)}
        moved_bytes = {kind: sum(one.num_bytes for one in moved if one.kind == kind) for kind in ("out", "in")}
        return RunFacts(
            preset=parameters.preset.name,
            policy=parameters.custom or type(setup.policy).__name__,
            model=setup.shape.name,
            hardware=self._hardware,
            config=config | source_identity(setup.config.workload),
            num_gpu_blocks=kv.num_gpu_blocks,
            block_size=kv.block_size,
            cost_model=MEASURED,
            side="server-measured",
            delivery=parameters.delivery,
            cpu_s=cpu_s,
            wall_s=time.monotonic() - started_s,
            status=ending.status,
            closed_loop=setup.workload.concurrency is not None,
            prefix_caching=kv.caches_prefixes,
            swap_exhausted=getattr(setup.policy, "swap_exhausted", 0),
            swapped_out_bytes=moved_bytes["out"],
            swapped_in_bytes=moved_bytes["in"],
            notes=notes,
        )


def _swapping(moved: Sequence[Moved]) -> dict[str, Any]:
    """Transfers by direction: their number, copies, bytes and seconds; nothing where none was made."""
    found = {}
    for kind in ("out", "in"):
        mine = [one for one in moved if one.kind == kind]
        if mine:
            found[f"swapped_{kind}"] = {
                "transfers": len(mine),
                "copies": sum(one.pieces for one in mine),
                "bytes": sum(one.num_bytes for one in mine),
                "time_s": sum(one.seconds for one in mine),
            }
    return found
