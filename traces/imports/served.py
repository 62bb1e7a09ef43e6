"""Requests that a server answered, as their client (or another tool) recorded them.

Whatever a tool calls its figures, here a request has the definitions of docs/metrics.md: TTFT from sending to the first
token, E2E to the last one, TPOT the mean gap between its tokens, undefined for a single one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from policies.core.errors import TraceError

_CLOCK_S = 1e-3
"""By how much rounded times of a file may contradict each other."""


class ServedRequest(NamedTuple):
    """One answered request. ``sent_s`` counts from the first of the run."""

    sent_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    e2e_s: float

    @property
    def tpot_s(self) -> float | None:
        """Mean time between two tokens; None for a single token."""
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class Served(NamedTuple):
    """A run: answered requests in order of sending, and how many were not answered.

    ``side`` is ``client`` (times include HTTP and tokenization) or ``server``. ``has_times`` says whether the file has
    the times of sending; else all are 0, and ``rate_per_s`` (None: all at once) or ``concurrency`` say how they were
    sent. ``notices`` are remarks for the user, a line each.
    """

    tool: str
    requests: Sequence[ServedRequest]
    failed: int
    side: str
    has_times: bool
    rate_per_s: float | None = None
    concurrency: int | None = None
    notices: tuple[str, ...] = ()


def answered(
    where: str, sent_s: float, prompt_tokens: int, output_tokens: int, ttft_s: float, e2e_s: float
) -> ServedRequest:
    """A request of ``where`` in a file; TraceError for times in an order in which no answer comes."""
    if ttft_s <= 0:
        raise TraceError(
            f"{where}: its first token comes {ttft_s:g} s after sending; stream answers, and time them by one clock"
        )
    if e2e_s < ttft_s - _CLOCK_S:
        raise TraceError(
            f"{where}: ends {e2e_s:g} s after sending, before its first token ({ttft_s:g} s); use times of one clock"
        )
    return ServedRequest(sent_s, max(1, prompt_tokens), output_tokens, ttft_s, max(e2e_s, ttft_s))


def in_order(requests: Sequence[ServedRequest]) -> list[ServedRequest]:
    """By time of sending, counted from the first."""
    first_s = min((request.sent_s for request in requests), default=0.0)
    shifted = [request._replace(sent_s=request.sent_s - first_s) for request in requests]
    return sorted(shifted, key=lambda request: request.sent_s)
