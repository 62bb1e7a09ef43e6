"""What a user sends: one request, as every policy and both worlds see it."""

from __future__ import annotations

from typing import NamedTuple

RequestId = int
"""Requests are numbered in order of arrival; ties in time are broken by this number."""

Segments = tuple[tuple[str, int], ...]
"""Identity of the prompt's content: ``((key, length), ...)``. The token at offset k of segment ``key`` is unique
to ``(key, k)``, so equal prefixes of segments mean equal tokens. The output of request r is segment ``out:r``."""


class Slo(NamedTuple):
    """Latency limits of one request, in seconds; None is no limit."""

    ttft_s: float | None = None
    itl_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def with_own(self, ttft_s: float | None, tpot_s: float | None) -> Slo:
        """These limits of all requests, with those that a row names in their place."""
        return self._replace(
            ttft_s=self.ttft_s if ttft_s is None else ttft_s, tpot_s=self.tpot_s if tpot_s is None else tpot_s
        )


class Request(NamedTuple):
    """One request. It holds the limit ``max_tokens``, never the number of tokens it will really produce.

    ``arrival_s`` is when the engine's queue receives it; ``prompt_tokens`` >= 1; ``max_tokens`` >= 1 is the most
    output tokens the user allows; small ``priority`` is more urgent. Empty ``segments`` mean content that no other
    request shares.
    """

    id: RequestId
    arrival_s: float
    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    client_id: str = ""
    slo: Slo | None = None
    segments: Segments = ()


def output_segment(request_id: RequestId) -> str:
    """Key of the segment that the output tokens of a request form."""
    return f"out:{request_id}"
