"""Measured cases: one published measurement each, in the schema of docs/validate.md."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from policies.core.errors import TraceError

FIGURES = (
    "e2e_batch_s",
    "makespan_s",
    "output_tok_s",
    "derived_output_tok_s_steady",
    "req_s",
    "prefill_batch_s",
    "prefill_batch_ms",
    "decode_step_mean_ms",
    "ttft_mean_ms",
    "ttft_p50_ms",
    "tpot_mean_ms",
    "tpot_p50_ms",
    "itl_mean_ms",
    "e2e_p50_s",
    "e2e_mean_s",
)
"""What is compared, where a source has it and the simulator says it."""

GRADES = ("A", "B", "C", "X")
"""A: every parameter needed is known; B: one or two are missing; C: for ratios only; X: impossible as labelled."""


class Lengths(NamedTuple):
    """Lengths of prompts or answers: all of ``mean`` tokens, or (``spread``) some distribution of that mean, which
    ``name`` tells if it was stated. No mean: only the name is known."""

    mean: float | None
    spread: bool
    name: str


class Case(NamedTuple):
    """One measurement. ``kind`` of the workload is ``offline_batch``, ``burst``, ``closed_loop`` or ``poisson``;
    ``num_requests`` and ``rate_per_s`` are None where they were not stated. ``measured`` are numbers by the source's
    names, whose units are in them (``output_tok_s``, ``ttft_mean_ms``). ``where`` is the file and line."""

    id: str
    where: str
    engine: str
    version: str
    batching: str
    gpu: str
    model: str
    tp: int
    weights: str
    kv: str
    kind: str
    concurrency: int | None
    num_requests: int | None
    rate_per_s: float | None
    prompt: Lengths
    output: Lengths
    settings: Mapping[str, Any]
    measured: Mapping[str, float]
    grade: str
    anchor: bool
    source: str


def read_cases(path: Path) -> list[Case]:
    """All cases of a JSON Lines file; TraceError names file, line and key of what is wrong."""
    return list(_cases(path))


def _cases(path: Path) -> Iterator[Case]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{path}: cannot be read ({reason}); name a file of measured cases") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _case(line, f"{path.name}, line {number}")


def _case(line: str, where: str) -> Case:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{where}: not JSON ({error}); one case a line, see docs/validate.md") from None
    if not isinstance(record, Mapping):
        raise TraceError(f"{where}: is no object with keys; one case a line, see docs/validate.md")
    try:
        return _from_record(record, where)
    except KeyError as error:
        raise TraceError(f"{where}: key {error} is missing; a case has the keys of docs/validate.md") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise TraceError(f"{where}: {error}; a case has the keys and types of docs/validate.md") from None


def _from_record(record: Mapping[str, Any], where: str) -> Case:
    workload, engine, hardware = record["workload"], record["engine"], record["hardware"]
    settings = engine.get("settings") or {}
    if not isinstance(settings, Mapping):
        raise TypeError(f"engine.settings is {settings!r}, no object with keys")
    batch, rate = workload.get("batch_size"), workload.get("request_rate")
    requests = workload.get("num_requests")
    if record["grade"] not in GRADES:
        raise ValueError(f"grade is {record['grade']!r}, not one of {', '.join(GRADES)}")
    return Case(
        id=str(record["id"]),
        where=where,
        engine=str(engine["name"]),
        version=str(engine["version"] or ""),
        batching=str(engine.get("batching") or ""),
        gpu=str(hardware["gpu"]),
        model=str(record["model"]),
        tp=int(hardware.get("tp") or 1),
        weights=str(record["dtype"]["weights"]),
        kv=str(record["dtype"]["kv"]),
        kind=str(workload["kind"]),
        concurrency=_count(workload.get("concurrency") if batch is None else batch),
        num_requests=_count(batch if requests is None else requests),
        rate_per_s=float(rate) if isinstance(rate, int | float) else None,
        prompt=_lengths(workload["input_len"]),
        output=_lengths(workload["output_len"]),
        settings=settings,
        measured=_measured(record["measured"]),
        grade=str(record["grade"]),
        anchor=bool(record.get("anchor")),
        source=str(record["source"]["name"]),
    )


def _measured(given: Mapping[str, Any]) -> Mapping[str, float]:
    """The figures that are numbers; others are remarks of the source."""
    found = {}
    for name, value in given.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            if name in FIGURES and not 0 < value < math.inf:
                raise ValueError(f"measured.{name} is {value!r}; it must be above 0, or left out")
            found[name] = float(value)
    return found


def _count(value: object) -> int | None:
    """A number of at least 1; None where the source says something else, as that it was not stated."""
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and value >= 1
    return int(value) if is_count else None  # type: ignore[call-overload]


def _lengths(given: Mapping[str, Any]) -> Lengths:
    law = str(given["dist"])
    mean = given.get("value", given.get("mean"))
    if mean is not None and not 1 <= float(mean) < math.inf:
        raise ValueError(f"a length is {mean!r}; it must be at least 1 token")
    return Lengths(None if mean is None else float(mean), law != "fixed", str(given.get("name") or law))
