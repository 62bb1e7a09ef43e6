"""The comparison of a recorded run as a plain table."""

from __future__ import annotations

from calibrate.validation.recorded import RunComparison
from calibrate.validation.text import counted, percent
from traces.imports.served import Served

_FEW = 30
"""Requests: a fit to fewer is said to say little."""


def run_lines(served: Served, found: RunComparison) -> list[str]:
    """The comparison of a run as a table."""
    summary, host = found.summary, found.host
    costs, kv = summary["cost_model"], summary["kv"]
    how = "fitted to this run" if found.fitted else "as the preset has it; --fit-host fits it to this run"
    request = f" + {1e3 * host.request_s:.1f} ms a request" if host.request_s else ""
    if (host.weights, host.kv) != (1.0, 1.0):
        request += f"; weights read in {host.weights:.2f}, KV in {host.kv:.2f} of the roofline's time"
    lines = [
        f"{served.tool}: {counted(found.requests, 'request')}, {served.side} side"
        + (f"; {served.failed} more failed or had no answer, and are left out" if served.failed else ""),
        f"simulated: {summary['preset']}, {summary['model']} on {summary['hardware']}, {costs['name']} (version"
        f" {costs['version']}), {kv['num_gpu_blocks']} blocks of {kv['block_size']} tokens,"
        f" {summary['preemptions']['recompute']} preemptions",
        f"host: {1e3 * host.base_s:.2f} ms a step + {1e3 * host.per_seq_s:.3f} ms a sequence{request}, {how}",
        *served.notices,
        *_remarks(found),
        f"  {'':12}{'measured, s':>13}{'simulated, s':>14}{'error':>10}   KV pool -5 %, +5 %",
    ]
    for line in found.lines:
        pool = ", ".join(percent(value / line.measured_s - 1.0) for value in line.pool_s or ())
        figures = f"{line.measured_s:13.4f}{line.simulated_s:14.4f}{percent(line.error):>10}"
        lines.append(f"  {line.name:12}{figures}   {pool}".rstrip())
    worst = max((line.error for line in found.lines), key=abs)
    return [*lines, f"  worst of these: {percent(worst)}"]


def _remarks(found: RunComparison) -> list[str]:
    """What makes figures of the two sides not comparable, or a fit say little."""
    counts = found.summary["requests"]
    missing = counts["offered"] - counts["finished"]
    lines = []
    if missing:
        lines.append(
            f"{missing:,} of these do not finish in the simulation ({counts['rejected']:,} are refused) and are in the"
            " measured figures alone: check max_model_len and the KV pool of --config"
        )
    if found.fitted and found.requests < _FEW:
        lines.append(
            f"fitted to {counted(found.requests, 'request')}: too few to tell the host's times apart, or a percentile"
            " from the mean; the errors below only show that a fit was possible"
        )
    return lines
