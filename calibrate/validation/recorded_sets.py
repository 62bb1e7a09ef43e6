"""Recorded runs of LLMServingSim's repository in a data folder: whatever lies in ``e2e`` with its settings and, maybe,
the operator tables of the same card."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.cli import write_json
from calibrate.fit import fit_profile
from calibrate.importing import import_profile
from calibrate.validation.recorded import RunComparison, compare_run
from calibrate.validation.setups import MODELS
from policies.catalog import Card, ModelShape, card, cards, model
from policies.core.errors import TraceError
from policies.json_text import read_json
from sim.costs.load import is_shipped
from traces.imports.readers import read_served
from traces.imports.served import Served

_ENDING = "_vllm_requests.csv"
_TABLES = ("dense", "per_sequence", "attention", "skew")
_ENGINE_KEYS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "num_gpu_blocks")


class RecordedRun(NamedTuple):
    """One run: its name, requests, the tables of its RUN.toml, and where its step costs come from."""

    name: str
    served: Served
    tables: dict[str, dict[str, Any]]
    costs: str


def recorded_runs(folder: Path) -> Iterator[tuple[RecordedRun, RunComparison, RunComparison]]:
    """Each run of a folder under the preset's own host time, and with the host's time fitted to it."""
    paths = sorted(folder.glob(f"*{_ENDING}"))
    if not paths:
        raise TraceError(f"{folder}: holds no recorded run (*{_ENDING})")
    for path in paths:
        with tempfile.TemporaryDirectory() as scratch:
            run = _run(path, Path(scratch))
            yield (
                run,
                compare_run(run.served, run.tables, fit_host=False),
                compare_run(run.served, run.tables, fit_host=True),
            )


def _run(path: Path, scratch: Path) -> RecordedRun:
    prefix = path.name.removesuffix(_ENDING)
    meta_path = path.with_name(f"{prefix}_vllm_meta.json")
    meta = _meta(meta_path)
    kwargs = meta.get("engine_kwargs", {})
    name, device = MODELS.get(str(meta.get("model"))), _card(prefix)
    if name is None or device is None:
        raise TraceError(f"{meta_path}: model {meta.get('model')} or card of {prefix} is not in the catalog")
    tp = int(kwargs.get("tensor_parallel_size") or 1)
    engine = {key: kwargs[key] for key in _ENGINE_KEYS if kwargs.get(key) is not None}
    hardware: dict[str, Any] = {"name": device.name, "tp": tp}
    shape = model(name).shard(tp)
    costs = "shipped cost file"
    if not is_shipped(shape, device):
        found = _fitted(path, prefix, shape, device, scratch)
        costs = "roofline" if found is None else "operator tables beside it"
        hardware["cost_model"] = "roofline" if found is None else str(found)
    tables = {"engine": {"preset": "vllm-0.11", **engine}, "model": {"name": name}, "hardware": hardware}
    return RecordedRun(prefix, read_served(path, "llmservingsim"), tables, costs)


def _meta(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read ({error}); it holds the settings of the run") from None
    return found if isinstance(found, dict) else {}


def _card(prefix: str) -> Card | None:
    """The card of the catalog that a word of a file's name begins."""
    words = prefix.lower().split("_")
    names = [known.name for known in cards() if any(known.name.split("-")[0] == word for word in words)]
    return card(names[0]) if names else None


def _fitted(path: Path, prefix: str, shape: ModelShape, device: Card, scratch: Path) -> Path | None:
    """A cost file from operator tables that lie beside a run; None where there are none."""
    tables = [path.with_name(f"{prefix}_{table}.csv.gz") for table in _TABLES]
    found = [table for table in tables if table.exists()]
    if not found:
        return None
    profile = import_profile("llmservingsim", found, shape, device)
    out = scratch / "costs.json"
    write_json(fit_profile(profile, shape, device).cost_file, out)
    return out


