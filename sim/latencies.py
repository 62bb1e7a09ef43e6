"""The latencies that a summary has: what each is called, and what it is. Less is better, of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Latency(NamedTuple):
    """``short`` is its name for people, ``about`` what a figure of it is, ``meaning`` what is measured."""

    short: str
    about: str
    meaning: str


LATENCIES = {
    "ttft_s": Latency(
        "TTFT",
        "time to first token",
        "time to first token: from arrival to the first token of the answer, queueing included",
    ),
    "itl_s": Latency(
        "ITL", "gap between two tokens", "inter-token latency: each single gap between two tokens of an answer"
    ),
    "tpot_s": Latency(
        "TPOT", "time per output token", "time per output token: a request's mean gap after its first token"
    ),
    "e2e_s": Latency("E2E", "time to the last token", "end to end: from arrival to the last token"),
    "queue_s": Latency(
        "queue time", "time before the first step", "from arrival to the first step that works on the request"
    ),
    "normalized_latency_s": Latency(
        "normalized latency", "time to the last token, per output token", "E2E over the number of output tokens"
    ),
}
"""By their names in a summary."""

SHOWN = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
"""Those that every table and page shows."""

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
"""What a summary has of each."""

FEW = 300
"""Of fewer samples a p99 is little more than the maximum."""


def in_short(latency: str, statistic: str) -> str:
    """``TTFT p99``."""
    return f"{LATENCIES[latency].short} {statistic}"


def at_once(latency: str, summary: Mapping[str, Any]) -> bool:
    """Whether the run of that summary delivers answers whole, so that nobody sees such a time between tokens."""
    return summary["delivery"] == "batch_end" and latency in ("itl_s", "tpot_s")
