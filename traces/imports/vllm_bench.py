"""``vllm bench serve --save-result --save-detailed``: one JSON object with a list a column.

Its TTFT starts when a request is sent and leaves out waiting for its own concurrency limit; its ``itls`` are gaps
between chunks, whose sum with the TTFT is the whole time whatever a chunk holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policies.core.errors import TraceError
from traces.imports.fields import Fields, load
from traces.imports.served import Served, ServedRequest, in_order

_NO_TIMES = "the file has no start_times: requests are sent anew, at its rate or concurrency"


def read_vllm_bench(path: Path) -> Served:
    """The requests of a detailed result; TraceError names what is missing."""
    data = Fields(load(path), str(path))
    columns = {name: data.list(name) for name in ("input_lens", "output_lens", "ttfts", "itls")}
    size = len(columns["ttfts"])
    for name, column in columns.items():
        if len(column) != size:
            raise TraceError(f"{path}: '{name}' has {len(column)} entries, 'ttfts' {size}; name a file of one run")
    starts = data.get("start_times")
    has_times = isinstance(starts, list) and len(starts) == size
    errors = data.get("errors") or [""] * size
    requests = []
    for i in range(size):
        row = Fields({name: column[i] for name, column in columns.items()}, f"{path}, request {i}")
        if not (i < len(errors) and errors[i]) and row.number("output_lens") >= 1:
            requests.append(_request(row, float(starts[i]) if has_times else 0.0))
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


def _request(row: Fields, sent_s: float) -> ServedRequest:
    ttft_s = row.number("ttfts")
    gaps = row.list("itls")
    try:
        e2e_s = ttft_s + sum(map(float, gaps))
    except (TypeError, ValueError):
        raise TraceError(f"{row.where}: 'itls' must hold numbers of seconds") from None
    return ServedRequest(sent_s, max(1, row.count("input_lens")), row.count("output_lens"), ttft_s, e2e_s)


def _rate(given: Any) -> float | None:
    """None where all were sent at once, which the tool calls inf."""
    return float(given) if isinstance(given, int | float) and 0 < given < float("inf") else None


def _limit(given: Any) -> int | None:
    return int(given) if isinstance(given, int) and given > 0 else None
