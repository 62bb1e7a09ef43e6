"""``vllm bench serve --save-result --save-detailed``: one JSON object with a list a column.

Its TTFT starts when a request is sent and leaves out waiting for its own concurrency limit; its ``itls`` are gaps
between chunks, whose sum with the TTFT is the whole time whatever a chunk holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from policies.core.errors import TraceError
from traces.imports.fields import Fields, load
from traces.imports.served import Served, ServedRequest, answered, in_order

_MOST = 1.1
"""Of the duration of a run that one request may take."""
_NO_TIMES = "the file has no start_times: requests are sent anew, at its rate or concurrency"


def read_vllm_bench(path: Path) -> Served:
    """The requests of a detailed result; TraceError names what is missing."""
    data = Fields(load(path), str(path))
    given = [name for name in ("start_times", "errors") if data.get(name)]
    columns: dict[str, Sequence[Any]] = {
        name: data.list(name) for name in ("input_lens", "output_lens", "ttfts", "itls", *given)
    }
    size = len(columns["ttfts"])
    for name, column in columns.items():
        if len(column) != size:
            raise TraceError(f"{path}: '{name}' has {len(column)} entries, 'ttfts' {size}; name a file of one run")
    has_times = bool(data.get("start_times"))
    if not has_times:
        columns["start_times"] = [0.0] * size
    if not data.get("errors"):
        columns["errors"] = [""] * size
    requests = []
    for i in range(size):
        row = Fields({name: column[i] for name, column in columns.items()}, f"{path}, request {i}")
        if not row.get("errors") and row.number("output_lens") >= 1:
            requests.append(_request(row, data.optional("duration")))
    return Served(
        tool="vllm bench",
        requests=in_order(requests),
        failed=size - len(requests),
        side="client",
        has_times=has_times,
        rate_per_s=_rate(data.get("request_rate")),
        concurrency=_limit(data.get("max_concurrency")),
        notices=() if has_times else (_NO_TIMES,),
    )


def _request(row: Fields, duration_s: float | None) -> ServedRequest:
    ttft_s = row.number("ttfts")
    e2e_s = ttft_s + sum(row.numbers("itls"))
    if duration_s and e2e_s > _MOST * duration_s:
        raise TraceError(
            f"{row.where}: takes {e2e_s:g} s, more than the run ('duration', {duration_s:g}); give seconds throughout"
        )
    sent_s = row.number("start_times")
    return answered(row.where, sent_s, row.count("input_lens"), row.count("output_lens"), ttft_s, e2e_s)


def _rate(given: Any) -> float | None:
    """None where all were sent at once, which the tool calls inf."""
    return float(given) if isinstance(given, int | float) and 0 < given < float("inf") else None


def _limit(given: Any) -> int | None:
    return int(given) if isinstance(given, int) and given > 0 else None
