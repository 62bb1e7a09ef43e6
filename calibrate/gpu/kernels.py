"""Stage 1: compiles every kernel that this check launches, in processes of their own, and compares all with float64.

What one process compiles the others find in Triton's cache, so the later stages compile nothing. A kernel that takes
its process down takes no other with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrate.measure_points import BLOCK_SIZE
from policies.core.errors import RunError

if TYPE_CHECKING:
    from calibrate.gpu.worker import Check

TOKENS_MODEL = "110m"
"""The model of the token checks on a card."""

_DTYPES = ("float32", "float16", "bfloat16")
_SLOT_BLOCK_SIZE = 128
"""Tokens of a block where a request has a slot of 1,024 tokens."""


class Job(NamedTuple):
    """Arguments of ``python -m calibrate.gpu.kernel_jobs``."""

    name: str
    arguments: tuple[str, ...]


def run(check: Check) -> None:
    """All jobs at once on CUDA; plain torch against float64 on a CPU, which compiles nothing."""
    if check.settings.on_cuda:
        run_jobs(check, _jobs(check))
    else:
        from calibrate.gpu.kernel_jobs import check_dtype

        check.record.keep(checks=[row for dtype in _DTYPES for row in check_dtype("cpu", dtype)], gate=[], jobs={})
    found = check.record.found
    failed = [f"{operation} {case}" for operation, case, error, limit in found["checks"] if not error <= limit]
    failed += [f"{row['kernel']} {row['case']}: {row['faults']}" for row in found["gate"] if row["faults"]]
    failed += [f"{name}: {job['error']}" for name, job in found["jobs"].items() if job["error"]]
    check.say(f"{len(found['checks'])} results beside float64, {len(found['gate'])} variants, {len(failed)} failed")
    if failed:
        raise RunError("; ".join(failed))


def _jobs(check: Check) -> list[Job]:
    device, model = check.settings.device, check.settings.model
    dtype = str(check.where.dtype).removeprefix("torch.")
    jobs = [Job(f"float64 {name}", ("check", device, name)) for name in _DTYPES]
    for name, layers, numbers, page in (
        (model, 0, dtype, BLOCK_SIZE),
        (model, 0, dtype, _SLOT_BLOCK_SIZE),
        (model, 2, dtype, BLOCK_SIZE),
        (TOKENS_MODEL, 0, "float32", BLOCK_SIZE),
        (TOKENS_MODEL, 0, "float32", _SLOT_BLOCK_SIZE),
    ):
        arguments = ("launch", device, name, str(layers), numbers, str(page))
        jobs.append(Job(f"launches of {name}, {layers or 'all'} layers, {numbers}, blocks of {page}", arguments))
    jobs.append(Job("gate", ("gate", device, str(max(1, (os.cpu_count() or 1) - len(jobs))))))
    return jobs


def run_jobs(check: Check, jobs: Sequence[Job]) -> None:
    """All at once; what each found, and what was wrong with it, is kept as soon as it is over."""
    record = check.record
    record.keep(checks=[], gate=[], jobs={})
    limit_s = check.left_s()
    with ThreadPoolExecutor(len(jobs)) as pool:
        running = {pool.submit(_run_job, job, limit_s): job for job in jobs}
        for done in as_completed(running):
            job, (lines, error, seconds) = running[done], done.result()
            found = record.found
            rows = {key: found[key] + [line for kind, line in lines if kind == key] for key in ("checks", "gate")}
            record.keep(**rows, jobs={**found["jobs"], job.name: {"seconds": seconds, "error": error}})
            check.say(f"{job.name}: {error or 'done'} ({seconds:.1f} s)")


def _run_job(job: Job, limit_s: float) -> tuple[list[tuple[str, Any]], str, float]:
    """What a job printed, what was wrong, and its seconds."""
    from time import monotonic

    began_s = monotonic()
    command = [sys.executable, "-m", "calibrate.gpu.kernel_jobs", *job.arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=max(limit_s, 1.0), check=False)
        output, error = ended.stdout, ""
        if ended.returncode:
            last = ended.stderr.strip().splitlines()[-1:] or ["no message"]
            error = f"exit code {ended.returncode}: {last[0][:200]}"
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode()  # bytes, whatever ``text`` says
        error = f"not over after {limit_s:.0f} s"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
    return [(str(kind), line) for kind, line in lines], error, monotonic() - began_s
