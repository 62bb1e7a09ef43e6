"""Makes ``sim/costs/links.json``: all-reduce times by link, kind and number of GPUs, from public tables.

    python -m calibrate.links PROFILES OUT
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.operators import read_rows
from calibrate.sources import Source

_LEAST_BYTES = 1 << 10
_MOST_CUSTOM_BYTES = 1 << 23
"""vLLM takes its own all-reduce up to 8 MB and NCCL beyond."""


class _Table(NamedTuple):
    """One table; ``element_bytes`` is what a unit of its ``message_size`` holds.

    Both kinds call the column alike. Large NCCL messages agree with other tables of the same cards (Vidur on A100,
    apex_plus on H100) as bytes, and would be faster than NVLink as 16-bit elements; custom ones end at NCCL's rate
    as elements.
    """

    link: str
    kind: str
    source: Source
    element_bytes: int


def _aic(card: str, version: str, name: str, sha256: str) -> Source:
    origin = f"aiconfigurator-core 0.12.0: systems/data/{card}_sxm/comm/{version}/{name}_perf.parquet"
    infix = "vllm_custom_allreduce" if "custom" in name else "nccl"
    return Source(f"aic_{card}_sxm_{infix}.csv.gz", origin, sha256, "Apache-2.0", "published 2026")


_TABLES = (
    _Table("nvlink-a100", "nccl", _aic("a100", "nccl/2.27.3", "nccl", "3cfc7bd0dea8e37e"), 1),
    _Table(
        "nvlink-a100", "custom", _aic("a100", "vllm/0.14.0", "custom_allreduce", "371dd2396a95177b"), 2
    ),
    _Table("nvlink-h100", "nccl", _aic("h100", "nccl/2.29.2", "nccl", "3741fff88c638ab5"), 1),
    _Table("nvlink-h200", "nccl", _aic("h200", "nccl/2.29.2", "nccl", "9b46ab90aca04f23"), 1),
)


def fit_links(profiles: Path) -> dict[str, Any]:
    """The content of ``links.json``: for each link and kind a source and, by number of GPUs, bytes and seconds."""
    links: dict[str, dict[str, Any]] = {}
    for table in _TABLES:
        found: dict[int, dict[int, list[float]]] = {}
        for row in read_rows(profiles / table.source.file):
            if table.kind == "nccl" and row.text("nccl_dtype") != "half":
                continue
            if table.kind == "custom" and "graph" not in row.text("kernel_source"):
                continue
            num_bytes = row.integer("message_size") * table.element_bytes
            if num_bytes >= _LEAST_BYTES and (table.kind == "nccl" or num_bytes <= _MOST_CUSTOM_BYTES):
                found.setdefault(row.integer("num_gpus"), {}).setdefault(num_bytes, []).append(
                    row.seconds("latency_ms")
                )
        links.setdefault(table.link, {})[table.kind] = {
            "source": f"{table.source.origin} ({table.source.licence})",
            "origin_sha256": table.source.origin_sha256,
            "gpus": {str(gpus): _medians(times) for gpus, times in sorted(found.items()) if gpus <= 8},
        }
    _continue_custom(links)
    return {"units": "bytes of the message, seconds", "links": links}


def _medians(times: dict[int, list[float]]) -> dict[str, list[float]]:
    sizes = sorted(times)
    seconds = [float(f"{statistics.median(times[size]):.4g}") for size in sizes]
    return {"num_bytes": list(sizes), "seconds": seconds}


def _continue_custom(links: dict[str, dict[str, Any]]) -> None:
    """Beyond its largest message the custom all-reduce is NCCL's."""
    for kinds in links.values():
        for gpus, row in kinds.get("custom", {"gpus": {}})["gpus"].items():
            nccl = kinds["nccl"]["gpus"][gpus]
            for num_bytes, seconds in zip(nccl["num_bytes"], nccl["seconds"], strict=True):
                if num_bytes > row["num_bytes"][-1]:
                    row["num_bytes"].append(num_bytes)
                    row["seconds"].append(seconds)


def main() -> None:
    """Write the file."""
    from calibrate.cli import write_json

    write_json(fit_links(Path(sys.argv[1])), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
