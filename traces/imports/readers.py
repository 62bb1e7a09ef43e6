"""One door to all result files."""

from __future__ import annotations

from pathlib import Path

from policies.core.errors import TraceError, closest
from traces.imports.served import Served

FORMATS = ("vllm-bench", "guidellm", "aiperf", "llmservingsim")
"""Names of the formats."""


def read_served(path: Path, kind: str, part: int | None = None) -> Served:
    """The requests of a result file of the given format; ``part`` chooses among the runs of a guidellm report."""
    if kind == "vllm-bench":
        from traces.imports.vllm_bench import read_vllm_bench

        served = read_vllm_bench(path)
    elif kind == "guidellm":
        from traces.imports.guidellm import read_guidellm

        served = read_guidellm(path, part)
    elif kind == "aiperf":
        from traces.imports.aiperf import read_aiperf

        served = read_aiperf(path)
    elif kind == "llmservingsim":
        from traces.imports.llmservingsim import read_llmservingsim

        served = read_llmservingsim(path)
    else:
        raise TraceError(f"--format {kind}: use one of {', '.join(FORMATS)}{closest(kind, FORMATS)}")
    if not served.requests:
        raise TraceError(f"{path}: no request in it was answered; name the results of a run that worked")
    return served
