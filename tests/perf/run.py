"""Times whole processes: ``python -m tests.perf.run [--quick] [--program PATH] [NAME...]``; ``make perf``
gives it the compiled program.

Each workload is the median of nine runs of ``batchscope run`` (fewer where one takes long): user and system CPU seconds
and peak memory as the operating system accounts them, and a fixed pure-Python loop timed before each run, since one
machine is not equally fast all day. Targets are CPU seconds on the machine they were set on; ``cpu/loop`` compares
machines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
DATA = Path(os.environ.get("BATCHSCOPE_DATA", HERE.parents[2] / "shared" / "data"))
AZURE = DATA / "traces" / "azure_conv_2023_first40min.csv.gz"
LOOP = ("-c", "x = 0\nfor i in range(5_000_000): x += i & 3")


class Case(NamedTuple):
    """One workload: arguments of ``batchscope run``, limits, and how often it runs; ``writes`` with a record folder."""

    name: str
    arguments: tuple[str, ...]
    cpu_s: float | None = None
    memory_mb: float | None = None
    runs: int = 9
    writes: bool = False


def _batch(batch: int, steps: int) -> tuple[str, ...]:
    settings = {"concurrency": batch, "num_requests": batch, "output.value": steps}
    words = (word for key, value in settings.items() for word in ("--set", f"workload.{key}={value}"))
    return str(HERE / "batch.toml"), *words


STEP = "step"
STEPPED = ((8, 200, 3_200), (256, 50, 300))
"""Batch, and steps of a short and of a long run."""


CASES = (
    Case("p8", (str(HERE / "p8.toml"),), 0.45, 90),
    Case("p8_stepped", (str(HERE / "p8_stepped.toml"),)),
    Case("p8_steps", (str(HERE / "p8_steps.toml"),), 0.8, 150, writes=True),
    Case("azure_conv", ("--trace", str(AZURE)), 2.0),
    Case("p8_100k", (str(HERE / "p8_100k.toml"),), 4.0, runs=3),
    Case("p8_1m", (str(HERE / "p8_1m.toml"),), 45.0, 600, runs=1),
)


class Run(NamedTuple):
    """One process: CPU seconds, peak memory, the loop timed before it, and its summary."""

    cpu_s: float
    memory_mb: float
    loop_s: float
    summary: dict[str, Any]


def measure(command: Sequence[str]) -> tuple[float, float, str]:
    """CPU seconds, peak MB and output of one process."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"perf: {' '.join(command)} ended with exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output


def run_once(program: Sequence[str], case: Case) -> Run:
    """One run of a case, with the loop before it."""
    loop_s, _, _ = measure((sys.executable, *LOOP))
    with tempfile.TemporaryDirectory() as folder:
        out = ("--out", str(Path(folder) / "run")) if case.writes else ()
        cpu_s, memory_mb, output = measure((*program, "run", *case.arguments, *out, "--json"))
    return Run(cpu_s, memory_mb, loop_s, json.loads(output))


def report(case: Case, runs: Sequence[Run]) -> str:
    """A line of the table."""
    cpu_s = statistics.median(run.cpu_s for run in runs)
    memory_mb = statistics.median(run.memory_mb for run in runs)
    loop_s = statistics.median(run.loop_s for run in runs)
    rate = statistics.median(run.summary["wall"]["requests_per_cpu_s"] for run in runs)
    target = f"{case.cpu_s or '-':>6} s {case.memory_mb or '-':>5} MB"
    return (
        f"{case.name:<14}{cpu_s:>9.3f} s {memory_mb:>7.0f} MB  target {target}  loop {loop_s:.3f} s"
        f"  cpu/loop {cpu_s / loop_s:6.2f}  event loop {rate:>8,.0f} requests/CPU s  ({len(runs)} runs)"
    )


def growth(program: Sequence[str], count: int) -> str:
    """What one more step costs at batch 8 and at batch 256: the event loop of a long run less that of a short one. The
    four take turns, and the median of the differences is taken, since what differs is a few milliseconds."""
    step_s: dict[int, list[float]] = {batch: [] for batch, _, _ in STEPPED}
    for _ in range(count):
        for batch, few, many in STEPPED:
            short, long = (run_once(program, Case(STEP, _batch(batch, steps))).summary["wall"] for steps in (few, many))
            step_s[batch].append((long["cpu_s"] - short["cpu_s"]) / (many - few))
    small, large = (statistics.median(values) for values in step_s.values())
    times = f"{small * 1e6:.1f} us at batch 8, {large * 1e6:.1f} us at batch 256"
    return f"one more step, stepped: {times}: {large / small:.2f} times (target 3), {count} pairs each"


def main() -> None:
    """Run the cases named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(case.name for case in CASES)}, {STEP}")
    parser.add_argument("--quick", action="store_true", help="three runs each, without the longest")
    parser.add_argument("--program", help="the batchscope to time, by default the interpreted one of this checkout")
    options = parser.parse_args()
    program = (options.program,) if options.program else (sys.executable, "-m", "sim.cli.main")
    print(measure((*program, "--version"))[2], end="")
    wanted = [case for case in CASES if not options.names or case.name in options.names]
    for case in wanted:
        if case.name == "azure_conv" and not AZURE.exists():
            print(f"azure_conv   skipped: no {AZURE} (set BATCHSCOPE_DATA)")
            continue
        if options.quick and case.name in ("p8_100k", "p8_1m"):
            continue
        count = min(3, case.runs) if options.quick else case.runs
        print(report(case, [run_once(program, case) for _ in range(count)]), flush=True)
    if not options.names or STEP in options.names:
        print(growth(program, 3 if options.quick else 15))


if __name__ == "__main__":
    main()
