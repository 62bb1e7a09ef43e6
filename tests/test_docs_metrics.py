"""docs/metrics.md names whatever a run leaves behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim import simulate
from sim.cli.tables import ROWS
from sim.config_sections import RECORDS
from traces.record import schema
from traces.record.read import read_run

PAGE = (Path(__file__).parents[1] / "docs/metrics.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([\w.]+)`", PAGE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run short of memory, with limits, a prefix cache, and all its tables."""
    tables = {
        "workload": {
            **{"generator": "poisson", "rate_per_s": 2, "num_requests": 120},
            **{"prompt": {"dist": "fixed", "value": 64}, "output": {"dist": "uniform", "low": 20, "high": 60}},
        },
        "engine": {"num_gpu_blocks": 12},
        "sim": {"record": "tokens"},
        "slo": {"ttft_s": 1},
        "price": {"a100-80gb": 1.5},
    }
    folder = tmp_path_factory.mktemp("metrics") / "run"
    simulate(tables, out=folder)
    return folder


def test_every_key_of_a_summary(folder: Path) -> None:
    summary = read_run(folder).summary
    assert summary is not None
    assert {"stability", "goodput", "itl_s"} <= summary.keys()
    assert summary.keys() - NAMED == set()
    blocks = ("requests", "stability", "throughput", "goodput", "kv", "preemptions", "steps", "cost_model", "wall")
    for name in (*blocks, "cost"):
        assert summary[name].keys() - NAMED == set(), name
    assert summary["ttft_s"].keys() - NAMED == set()
    assert summary["limited_by"].keys() - NAMED == set()
    assert summary["requests"]["reasons"].keys() - NAMED == set()


def test_every_column_of_every_table(folder: Path) -> None:
    record = read_run(folder)
    for table in (record.requests, record.steps, record.stalls, record.segments):
        assert table is not None
        assert set(table.columns) - NAMED == set()


def test_every_row_reason_and_record_level() -> None:
    for row in ROWS:
        assert f"| {re.sub(r' (mean|p50|p99)$', '', row)} |" in PAGE or f"| {row} |" in PAGE, row
    assert schema._OUTCOMES.keys() - NAMED == set()
    assert set(RECORDS) - NAMED == set()
