"""Every preset under four kinds of traffic, as a page: ``python -m tests.perf.policies_by_workloads [--out PAGE.md]``.

Each cell is one simulation of the same requests. Without ``--out`` the page is printed.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from policies.core.errors import UserError
from policies.presets import presets
from sim import simulate
from sim.runs import write_whole

MODEL, CARD, MAX_MODEL_LEN = "llama-3-8b", "a100-80gb", 8_192
NUM_REQUESTS = 1_000


class Traffic(NamedTuple):
    """A kind of traffic: a profile and its rate, or lengths of its own. ``words`` say what it is."""

    name: str
    words: str
    workload: Mapping[str, object]


TRAFFIC = (
    Traffic("chat", "profile `chat`, 12 requests/s", {"profile": "chat", "rate_per_s": 12.0}),
    Traffic("code", "profile `code`, 4 requests/s, in bursts", {"profile": "code", "rate_per_s": 4.0}),
    Traffic("sharegpt", "profile `sharegpt`, 4 requests/s", {"profile": "sharegpt", "rate_per_s": 4.0}),
    Traffic(
        "long prompts",
        "profile `summaries` (prompts of 2,730 tokens at the median), 4 requests/s",
        {"profile": "summaries", "rate_per_s": 4.0},
    ),
)


class Cell(NamedTuple):
    """One preset under one kind of traffic; ``said`` is why there are no figures."""

    preset: str
    traffic: str
    figures: Mapping[str, Any] | None
    said: str = ""


def cell(preset: str, traffic: Traffic, num_requests: int = NUM_REQUESTS) -> Cell:
    """Run it."""
    tables: dict[str, dict[str, object]] = {
        "workload": {**traffic.workload, "num_requests": num_requests},
        "engine": {"preset": preset, "max_model_len": MAX_MODEL_LEN},
        "model": {"name": MODEL},
        "hardware": {"name": CARD},
    }
    try:
        summary = simulate(tables).summary
    except UserError as error:
        return Cell(preset, traffic.name, None, str(error))
    return Cell(preset, traffic.name, summary)


COLUMNS = ("preset", "TTFT p50, s", "p99, s", "ITL p50, ms", "p99, ms", "tokens/s", "preemptions", "not served")


def row(found: Cell) -> list[str]:
    """A line of the table."""
    summary = found.figures
    if summary is None:
        return [f"`{found.preset}`", found.said, *[""] * (len(COLUMNS) - 2)]
    counts = summary["requests"]
    itl = summary.get("itl_s") if summary["delivery"] != "batch_end" else None
    return [
        f"`{found.preset}`",
        *(_seconds(summary, "ttft_s", statistic) for statistic in ("p50", "p99")),
        *(("-", "-") if itl is None else (f"{1e3 * itl[statistic]:.1f}" for statistic in ("p50", "p99"))),
        f"{summary['throughput']['output_tokens_per_s']:,.0f}",
        f"{summary['preemptions']['recompute'] + summary['preemptions']['swap']:,}",
        f"{counts['offered'] - counts['finished']:,}",
    ]


def _seconds(summary: Mapping[str, Any], name: str, statistic: str) -> str:
    stats = summary.get(name)
    return "-" if stats is None else f"{stats[statistic]:.3g}"


def page(cells: Sequence[Cell], date: datetime.date, num_requests: int = NUM_REQUESTS) -> str:
    """The whole page."""
    lines = [
        "# Policies under four kinds of traffic",
        "",
        f"Made on {date} by `make policies-by-workloads`: {num_requests:,} requests of each kind, the same for every",
        f"preset, {MODEL} on {CARD}, max_model_len {MAX_MODEL_LEN:,}, each preset's own defaults otherwise. The rates",
        "are near what the best can serve; static batches and small ones fall behind without end, and their times are",
        "those of a queue that only grows. Presets with a measured host term include it, the others are lower bounds",
        "(`batchscope policies show NAME`). Where answers return together there is no ITL. Not served are requests",
        "that a preset refuses by its own limits on prompts, answers or waiting requests.",
    ]
    for traffic in TRAFFIC:
        lines += ["", f"## {traffic.name}", "", f"{traffic.words[:1].upper()}{traffic.words[1:]}.", ""]
        lines += [_line(COLUMNS), _line(["---", *["--:"] * (len(COLUMNS) - 1)])]
        lines += [_line(row(found)) for found in cells if found.traffic == traffic.name]
    return "\n".join(lines) + "\n"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def main() -> None:
    """Run all cells, two at a time, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    pairs = [(preset.name, traffic) for traffic in TRAFFIC for preset in presets()]
    with ProcessPoolExecutor(options.jobs) as pool:
        cells = list(pool.map(cell, *zip(*pairs, strict=True)))
    text = page(cells, datetime.datetime.now(tz=datetime.UTC).date())
    if options.out is None:
        print(text)
    else:
        write_whole(options.out, text)


if __name__ == "__main__":
    main()
