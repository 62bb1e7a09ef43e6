"""guidellm's JSON: ``benchmarks[].requests.successful[]``.

What it calls the inter-token latency of a request is its mean, our TPOT; its own TPOT counts from sending, our
normalized latency, and is not read.
"""

from __future__ import annotations

from pathlib import Path

from policies.core.errors import TraceError
from traces.imports.fields import Fields, load
from traces.imports.served import Served, ServedRequest, answered, in_order


def read_guidellm(path: Path, part: int | None = None) -> Served:
    """The requests of one benchmark of a report: the only one, or number ``part`` (from 1)."""
    report = Fields(load(path), str(path))
    benchmarks = report.list("benchmarks")
    if part is None and len(benchmarks) != 1:
        raise TraceError(f"{path}: holds {len(benchmarks)} benchmarks; choose one with --part 1 to {len(benchmarks)}")
    number = part or 1
    if not 1 <= number <= len(benchmarks):
        raise TraceError(f"--part {number}: {path} holds {len(benchmarks)} benchmarks")
    sent = Fields(benchmarks[number - 1], f"{path}, benchmark {number}").inner("requests")
    rows = [Fields(row, f"{sent.where}, successful {i}") for i, row in enumerate(sent.list("successful"))]
    failed = sum(len(sent.list(kind)) for kind in ("errored", "incomplete") if sent.get(kind))
    answers = [row for row in rows if row.count("output_tokens")]
    failed += len(rows) - len(answers)
    return Served("guidellm", in_order([_request(row) for row in answers]), failed, "client", has_times=True)


def _request(row: Fields) -> ServedRequest:
    start_s, output = row.number("request_start_time", "start_time"), row.count("output_tokens")
    ttft_s = row.number("time_to_first_token_ms") / 1e3
    end_s, latency_s = row.optional("request_end_time", "end_time"), row.optional("request_latency")
    gap_ms = row.optional("inter_token_latency_ms")
    if gap_ms is not None:
        e2e_s = ttft_s + gap_ms / 1e3 * max(output - 1, 0)
    elif end_s is not None:
        e2e_s = end_s - start_s
    else:
        e2e_s = ttft_s if latency_s is None else latency_s
    return answered(row.where, start_s, row.count("prompt_tokens"), output, ttft_s, e2e_s)
