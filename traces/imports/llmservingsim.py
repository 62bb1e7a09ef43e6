"""LLMServingSim's CSV of the requests of a server that it recorded: times in seconds, as the engine saw them.

``arrival_s`` is when a request reached the engine's process; files without it are taken by the time of queueing.
"""

from __future__ import annotations

import csv
from pathlib import Path

from traces.imports.fields import Fields, lines_of
from traces.imports.served import Served, ServedRequest, answered, in_order

_OUTPUT = ("output_toks", "output_tokens")


def read_llmservingsim(path: Path) -> Served:
    """The requests of a run; TraceError names file, row and column."""
    rows = [
        Fields(cells, f"{path}, row {number}")
        for number, cells in enumerate(csv.DictReader(lines_of(path)), start=2)
    ]
    has_arrivals = all(row.get("arrival_s") is not None for row in rows)
    notices = () if has_arrivals else ("no arrival_s: requests arrive when they were queued",)
    answers = [row for row in rows if row.count(*_OUTPUT)]
    requests = [_request(row, has_arrivals) for row in answers]
    failed = len(rows) - len(answers)
    return Served("LLMServingSim", in_order(requests), failed, "server", has_times=True, notices=notices)


def _request(row: Fields, has_arrivals: bool) -> ServedRequest:
    arrival_s = row.number("arrival_s" if has_arrivals else "queued_s")
    ttft_s = row.number("first_token_s") - arrival_s
    e2e_s = row.number("last_token_s") - arrival_s
    prompt, output = row.count("input_toks", "input_tokens"), row.count(*_OUTPUT)
    return answered(row.where, arrival_s, prompt, output, ttft_s, e2e_s)
