"""A run as a page sees it: summary, requests, digest, and how it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from policies.core.errors import BatchscopeError, UserError
from sim.report.palette import DASHES, policy_colour
from sim.summary import SCHEMA, policy_name
from traces.metrics.digest import DIGEST_NAME, Digest, DigestSink, StepSplit
from traces.metrics.requests import OUTCOMES, RequestTimes, outcome_codes
from traces.record.columns import StallTable
from traces.record.read import RunRecord, damaged, read_part, read_run, step_table

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

_TEXTS = ("side", "preset", "policy", "model", "hardware", "delivery", "status")
_TABLES = ("config", "requests", "throughput", "kv", "preemptions", "steps", "limited_by", "cost_model")
_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
_COUNTS = ("offered", "finished", "rejected", "aborted", "failed", "unfinished")


@dataclass(frozen=True)
class RunView:
    """One run. ``label`` tells it from the others on the page, ``name`` is that of its policy, ``dash`` its line."""

    label: str
    name: str
    summary: dict[str, Any]
    record: RunRecord
    digest: Digest | None
    toml: str
    folder: Path | None = None
    dash: str = "solid"

    @property
    def colour(self) -> str:
        """Its policy's colour on every page."""
        return policy_colour(self.name)

    @property
    def at_batch_end(self) -> bool:
        """Whether answers are delivered whole, when their batch ends."""
        return bool(self.summary["delivery"] == "batch_end")

    @property
    def keeps_up(self) -> bool | None:
        """The stability verdict; None where there is none (closed loop, or too little data)."""
        verdict = self.summary.get("stability")
        return None if verdict is None else bool(verdict["stable"])

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, by arrival, with its ``outcome`` and its latencies, NaN where it has none
        (docs/metrics.md)."""
        table = self.record.requests.sort_values(["arrival_s", "id"], kind="stable", ignore_index=True)
        codes = outcome_codes(table["reason"].astype(str).tolist())
        times_s = {name: table[name].to_numpy(np.float64) for name in _TIMES}
        of = RequestTimes(**times_s, output_tokens=table["output_tokens"].to_numpy(), outcome=codes)
        latencies = {name: getattr(of, name) for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s")}
        return table.assign(outcome=np.array(OUTCOMES)[codes], **latencies)

    @cached_property
    def segments(self) -> pd.DataFrame | None:
        """The decode segments by request, in order; None below ``record = "tokens"``."""
        table = self.record.segments
        if table is None or self.record.steps is None:
            return None
        return table.sort_values("id", kind="stable").set_index("id")

    def values(self, metric: str) -> Floats:
        """All values of a request metric (ttft_s, tpot_s, e2e_s, queue_s), by arrival of their requests."""
        column: Floats = self.requests[metric].to_numpy(np.float64)
        return column[~np.isnan(column)]


def load_view(folder: Path | str) -> RunView:
    """The run in a folder. Raises a UserError where there is none, or it is not complete or damaged."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the folder of a run, as --out named it")
    summary_path, digest_path, toml_path = folder / "summary.json", folder / DIGEST_NAME, folder / "run.toml"
    if not summary_path.exists():
        raise UserError(f"{folder}: no summary.json; give the folder of a run that has ended")
    record = read_run(folder)
    assert record.summary is not None
    _check(summary_path, record.summary)
    _check_whole(folder, record, record.summary)
    content = read_part(digest_path) if digest_path.exists() else _digest_of(record)
    toml = toml_path.read_text(encoding="utf-8", errors="replace") if toml_path.exists() else ""
    try:
        return make_view(record, content, toml, folder)
    except UserError as error:
        raise damaged(digest_path, str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError):  # the digest is all that it reads
        raise damaged(digest_path, "something is missing or of the wrong kind") from None


def _check(path: Path, summary: dict[str, Any]) -> None:
    """Raises a UserError unless a summary has what every summary of this version has."""
    if summary.get("schema") != SCHEMA:
        raise damaged(path, f"schema {summary.get('schema')!r}, not {SCHEMA}")
    for name in _TEXTS:
        if not isinstance(summary.get(name), str):
            raise damaged(path, f"'{name}' is no text")
    for name, value in summary.items():
        if (name in _TABLES or name.endswith("_s")) and name != "duration_s" and not isinstance(value, dict):
            raise damaged(path, f"'{name}' is no object")
    for name in _TABLES:
        if name not in summary:
            raise damaged(path, f"'{name}' is missing")
    for name in ("stability", "groups"):
        if name in summary and not isinstance(summary[name], dict):
            raise damaged(path, f"'{name}' is no object")
    if not isinstance(summary.get("duration_s"), int | float) or not isinstance(summary.get("notes", []), list):
        raise damaged(path, "'duration_s' is no number, or 'notes' no list")
    for name in _COUNTS:
        if not isinstance(summary["requests"].get(name), int):
            raise damaged(path, f"'requests.{name}' is no number")


def _check_whole(folder: Path, record: RunRecord, summary: dict[str, Any]) -> None:
    """Raises a UserError where tables and summary are not of one run."""
    offered, found = summary["requests"]["offered"], len(record.requests)
    if found != offered:
        raise damaged(folder / "requests.parquet", f"{found:,} requests, of which summary.json counts {offered:,}")
    if record.steps is not None:
        steps, found = summary["steps"].get("count"), int(record.steps["steps"].sum())
        if found != steps:
            raise damaged(folder / "steps.parquet", f"{found:,} steps, of which summary.json counts {steps}")


def make_view(
    record: RunRecord, digest: dict[str, Any] | None, toml: str, folder: Path | None = None
) -> RunView:
    """The view of a record with a summary."""
    assert record.summary is not None
    name = policy_name(record.summary)
    kinds = {"num_gpu_blocks": int, "kinds": dict, "terms": list}
    if digest is not None and not all(isinstance(digest[key], kind) for key, kind in kinds.items()):
        raise TypeError("a digest has a number of blocks, kinds of steps, and a list of terms")
    return RunView(name, name, record.summary, record, None if digest is None else Digest(digest), toml, folder)


def side_by_side(views: Sequence[RunView]) -> list[RunView]:
    """The views with labels and lines that tell them apart; runs with one label are told by their folders."""
    labels = [view.label for view in views]
    told = []
    for number, view in enumerate(views):
        label = view.label
        if labels.count(label) > 1:
            label = f"{label} ({view.folder.name if view.folder else number + 1})"
        told.append(replace(view, label=label, dash=DASHES[number % len(DASHES)]))
    labels = [view.label for view in told]
    return [
        replace(view, label=f"{view.label} {number + 1}") if labels.count(view.label) > 1 else view
        for number, view in enumerate(told)
    ]


def _digest_of(record: RunRecord) -> dict[str, Any] | None:
    """The digest of a record that has steps."""
    if record.steps is None or record.summary is None:
        return None
    summary = record.summary
    sink = DigestSink(
        num_gpu_blocks=summary["kv"]["num_gpu_blocks"],
        split=_split_of(summary),
        delivery="batch_end" if summary["delivery"] == "batch_end" else "step",
    )
    sink.step_table(step_table(record.steps))
    if record.stalls is not None:
        stalls = record.stalls
        gap_s, num_gaps = stalls["gap_s"].to_numpy(), stalls["num_gaps"].to_numpy()
        sink.stall_table(StallTable(gap_s, num_gaps, stalls["cause"].astype(str).tolist()))
    return sink.to_dict()


def _split_of(summary: dict[str, Any]) -> StepSplit | None:
    """The terms of the run's cost model; None where it is not there any more."""
    from policies.catalog import card
    from policies.presets import preset
    from sim.config import SECTIONS, config_from_tables
    from sim.machine import costs_of, shape_of
    from sim.step_terms import StepTerms

    try:
        config = config_from_tables({name: table for name, table in summary["config"].items() if name in SECTIONS})
        shape = shape_of(config)
        costs = costs_of(config, shape, card(config.hardware.name), preset(summary["preset"]))
    except (BatchscopeError, KeyError, OSError):
        return None
    return StepTerms(costs, shape, summary["kv"]["block_size"])


def arrival_and_end_rates(view: RunView, edges_s: Floats) -> tuple[Floats, Floats]:
    """Arrivals and completions a second between the edges."""
    widths_s = np.diff(edges_s)
    table = view.requests
    ended = table.loc[table["outcome"] == "finished", "finish_s"].to_numpy(np.float64)
    arrived = table["arrival_s"].to_numpy(np.float64)
    return np.histogram(arrived, edges_s)[0] / widths_s, np.histogram(ended, edges_s)[0] / widths_s


__all__ = [
    "RunView",
    "arrival_and_end_rates",
    "load_view",
    "make_view",
    "side_by_side",
]
