"""aiperf's ``profile_export.jsonl``: a record a line, ``metadata`` and ``metrics`` with a value and a unit each.

Requests of the warm-up are left out. Its inter-token latency is the mean of a request, our TPOT.
"""

from __future__ import annotations

from pathlib import Path

from policies.core.errors import TraceError
from policies.json_text import parse_json
from traces.imports.fields import Fields, lines_of
from traces.imports.served import Served, ServedRequest, answered, in_order

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


_OUTPUT = ("output_sequence_length", "output_token_count")


def read_aiperf(path: Path) -> Served:
    """The requests of the profiling phase; TraceError names file, line and key."""
    requests: list[ServedRequest] = []
    failed = 0
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = Fields(parse_json(line), where)
        except ValueError as error:
            raise TraceError(f"{where}: not JSON ({error}); name the file as aiperf wrote it") from None
        metadata = record.inner("metadata")
        if metadata.get("benchmark_phase") == "warmup":
            continue
        is_failed = record.get("error") or metadata.get("was_cancelled")
        metrics = None if is_failed else record.inner("metrics")
        if metrics is None or not _count(metrics, *_OUTPUT):
            failed += 1
        else:
            requests.append(_request(where, metadata, metrics))
    return Served("aiperf", in_order(requests), failed, "client", has_times=True)


def _request(where: str, metadata: Fields, metrics: Fields) -> ServedRequest:
    start_s = metadata.number("request_start_ns") * 1e-9
    # Nanoseconds since 1970 keep some 100 ns as a double: far below what is compared.
    e2e_s = (metadata.number("request_end_ns") - metadata.number("request_start_ns")) * 1e-9
    ttft_s = _seconds(metrics.inner("time_to_first_token"))
    if metrics.get("request_latency") is not None:
        e2e_s = _seconds(metrics.inner("request_latency"))
    output = _count(metrics, *_OUTPUT)
    return answered(where, start_s, _count(metrics, "input_sequence_length"), output, ttft_s, e2e_s)


def _seconds(metric: Fields) -> float:
    unit = str(metric.get("unit"))
    if unit not in _SECONDS:
        raise TraceError(f"{metric.where}: unit is {unit!r}; known are {', '.join(_SECONDS)}")
    return metric.number("value") * _SECONDS[unit]


def _count(metrics: Fields, *names: str) -> int:
    for name in names:
        if metrics.get(name) is not None:
            return metrics.inner(name).count("value")
    raise TraceError(f"{metrics.where}: '{names[0]}' is missing; name the file as aiperf wrote it")
