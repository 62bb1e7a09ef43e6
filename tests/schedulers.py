"""Where each scheduler from the literature gains, and where it does harm, against first come, first served.

    python -m tests.schedulers [--requests N] [--seeds N]

runs every case on the same requests for both, seed by seed, and writes docs/schedulers.md and docs/schedulers.svg
(about a minute). tests/test_schedulers.py holds the signs and sizes at fewer requests.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from sim.runs import write_whole
from tests.schedulers_run import (
    FCFS,
    Class,
    Load,
    Metric,
    attainment,
    e2e_s,
    longest_wait_s,
    mean,
    p99,
    qoe,
    run,
    ttft_s,
)
from traces.record.schema import RequestRow

DOCS = Path(__file__).parents[1] / "docs"
SEATS = ("engine.max_num_seqs=32", "engine.num_gpu_blocks=4000")
FEW_BLOCKS = ("engine.num_gpu_blocks=1000",)


class Scenario(NamedTuple):
    """One workload and metric. ``engine`` holds for both sides, ``order`` for the scheduler alone; ``unit`` is ``s`` or
    ``%`` (of 1), and ``more_is_better`` says which way is good."""

    metric_name: str
    text: str
    load: Load
    metric: Metric
    unit: str = "s"
    more_is_better: bool = False
    engine: tuple[str, ...] = SEATS
    order: tuple[str, ...] = ()


class Case(NamedTuple):
    """A preset, where it gains and where it does harm."""

    preset: str
    gain: Scenario
    harm: Scenario


class Pair(NamedTuple):
    """What the metric is for first come, first served and for the scheduler, a value a seed each."""

    fcfs: tuple[float, ...]
    other: tuple[float, ...]
    more_is_better: bool

    @property
    def change(self) -> float:
        """Change of the mean, as a share: 0.2 is 20 % more."""
        return fmean(self.other) / fmean(self.fcfs) - 1.0

    @property
    def times_better(self) -> float:
        """How many times better the mean is; below 1 it is worse."""
        return self._better(fmean(self.fcfs), fmean(self.other))

    @property
    def range_better(self) -> tuple[float, float]:
        """The same of the worst and of the best seed."""
        each = [self._better(fcfs, other) for fcfs, other in zip(self.fcfs, self.other, strict=True)]
        return min(each), max(each)

    def _better(self, fcfs: float, other: float) -> float:
        return other / fcfs if self.more_is_better else fcfs / other


def measure(preset: str, scenario: Scenario, *, seeds: range, num_requests: int) -> Pair:
    """Both sides on the same requests, seed by seed."""
    fcfs, other = [], []
    for seed in seeds:
        rows = scenario.load.rows(seed, num_requests)
        fcfs.append(scenario.metric(run(FCFS, rows, scenario.engine)))
        other.append(scenario.metric(run(preset, rows, (*scenario.engine, *scenario.order))))
    return Pair(tuple(fcfs), tuple(other), scenario.more_is_better)


# -- cases -------------------------------------------------------------------------------------------------------------


def _of_client(name: str) -> Callable[[RequestRow], bool]:
    return lambda row: row.client_id == name


def _of_priority(level: int) -> Callable[[RequestRow], bool]:
    return lambda row: row.priority == level


_SHORT, _LONG = Class(0.8, (50, 200), (20, 200)), Class(0.2, (50, 200), (600, 1_000))
_CHAT = Load((_SHORT, _LONG), 12.0)
_LEVELS = Load((Class(0.2, (50, 200), (50, 400), priority=0), Class(0.8, (50, 200), (50, 400), priority=1)), 10.0)
_DEADLINES = Load((Class(0.5, (50, 200), (50, 300), ttft_s=1.0), Class(0.5, (50, 200), (50, 300), ttft_s=30.0)), 14.0)
_LONG_PROMPTS = Load(
    (
        Class(0.4, (50, 200), (50, 200), ttft_s=1.0),
        Class(0.2, (2_500, 3_500), (50, 200), ttft_s=2.0),
        Class(0.4, (50, 200), (50, 200), ttft_s=30.0),
    ),
    15.0,
    burst=100,
    pause_s=8.0,
)
_HOPELESS = Load((Class(0.5, (50, 200), (50, 300), ttft_s=1.0), Class(0.5, (50, 200), (50, 300), ttft_s=8.0)), 35.0)
_FLOOD = Load(
    (Class(0.85, (50, 200), (100, 300), client="flood"), Class(0.15, (50, 200), (100, 300), client="light")), 14.0
)
_HEAVY_TAIL = Load((Class(0.9, (50, 200), (10, 60)), Class(0.1, (50, 200), (800, 1_500))), 14.0)
_ALIKE = Load((Class(1.0, (50, 200), (300, 400)),), 8.0)
_BURSTS = Load((Class(1.0, (50, 200), (200, 500)),), 40.0, burst=160, pause_s=35.0)

_GUESSED = ("engine.predictor_sigma=0.5",)
_SLICED = ("engine.preemption_cap=6",)
_DOMINO = "deadlines of 1 and 8 s, hopeless overload"

CASES = (
    Case(
        "priority",
        Scenario("TTFT p99, urgent", "a fifth is urgent, overload", _LEVELS, p99(ttft_s, _of_priority(0))),
        Scenario("TTFT mean, the others", "the same", _LEVELS, mean(ttft_s, _of_priority(1))),
    ),
    Case(
        "sjf",
        Scenario("E2E mean", "chat, a fifth of the answers long, overload", _CHAT, mean(e2e_s)),
        Scenario("longest TTFT", "the same", _CHAT, longest_wait_s),
    ),
    Case(
        "srtf",
        Scenario("E2E mean", "chat, lengths guessed with sigma 0.5", _CHAT, mean(e2e_s), order=_GUESSED),
        Scenario("E2E p99", "the same", _CHAT, p99(e2e_s), order=_GUESSED),
    ),
    Case(
        "edf",
        Scenario("TTFT limits met", "deadlines of 1 and 30 s, overload", _DEADLINES, attainment, "%", True),
        Scenario("TTFT limits met", _DOMINO, _HOPELESS, attainment, "%", True),
    ),
    Case(
        "least-laxity",
        Scenario(
            "TTFT limits met", "bursts, deadlines of 1, 2 and 30 s, long prompts", _LONG_PROMPTS, attainment, "%", True
        ),
        Scenario("TTFT limits met", _DOMINO, _HOPELESS, attainment, "%", True),
    ),
    Case(
        "vtc",
        Scenario(
            "TTFT p99, light client", "another client floods the engine", _FLOOD, p99(ttft_s, _of_client("light"))
        ),
        Scenario("TTFT mean, flooding client", "the same", _FLOOD, mean(ttft_s, _of_client("flood"))),
    ),
    Case(
        "fastserve",
        Scenario(
            "E2E mean", "a tenth of the answers very long, few blocks", _HEAVY_TAIL, mean(e2e_s), engine=FEW_BLOCKS
        ),
        Scenario("E2E mean", "answers all alike, overload: all are late", _ALIKE, mean(e2e_s)),
    ),
    Case(
        "andes",
        Scenario("QoE mean", "bursts of 160 requests", _BURSTS, qoe, "%", True, order=_SLICED),
        Scenario("E2E mean", "the same", _BURSTS, mean(e2e_s), order=_SLICED),
    ),
)
"""Every scheduler from the literature. A gain is at least 20 %; a harm has the other sign."""


def main() -> None:
    """Measure all, write page and picture."""
    from tests.schedulers_page import Row, page, picture

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rows = []
    for case in CASES:
        for kind, scenario in (("gain", case.gain), ("harm", case.harm)):
            pair = measure(case.preset, scenario, seeds=range(1, options.seeds + 1), num_requests=options.requests)
            rows.append(Row(case.preset, kind, scenario, pair))
            print(f"{case.preset:13} {kind}  {scenario.metric_name:27} {pair.change:+8.1%}", flush=True)
    today = datetime.now(UTC).date().isoformat()
    write_whole(DOCS / "schedulers.svg", picture(rows))
    text = page(rows, date=today, num_requests=options.requests, num_seeds=options.seeds)
    write_whole(DOCS / "schedulers.md", text)


if __name__ == "__main__":
    main()
