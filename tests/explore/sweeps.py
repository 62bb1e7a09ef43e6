"""A small sweep to run in tests: short runs, one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE = """
[base.workload]
generator = "poisson"
rate_per_s = 6
num_requests = 30
prompt = {dist = "uniform", low = 20, high = 200}
output = {dist = "uniform", low = 5, high = 60}
"""

GRID = """
[grid]
"engine.max_num_seqs" = [2, 8, 64]
"engine.preset" = ["vllm-0.11", "orca-max"]
"""


def write(text: str, base: str = BASE, name: str = "sweep.toml") -> Path:
    """SWEEP.toml of that text over the base, in the working directory."""
    path = Path(name)
    path.write_text(text + base, encoding="utf-8")
    return path


def rows_of(folder: str | Path) -> list[dict[str, Any]]:
    """The rows that a sweep has kept in its folder."""
    return [json.loads(line) for line in (Path(folder) / "points.jsonl").read_text(encoding="utf-8").splitlines()]


def keys_of(folder: str | Path) -> list[str]:
    """Settings and seed of each of them, as texts."""
    return [json.dumps([row["settings"], row["seed"]], sort_keys=True) for row in rows_of(folder)]
