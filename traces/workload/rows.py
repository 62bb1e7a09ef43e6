"""One row of a workload: what a client asks for and, unlike a request, how long the answer will really be."""

from __future__ import annotations

from typing import NamedTuple

from policies.core.request import Segments


class TraceRow(NamedTuple):
    """One request of a trace or generator, before it is sent.

    ``arrival_s`` >= 0, from the start of the run; ``prompt_tokens`` >= 1; ``output_tokens`` >= 1 is the true
    length of the answer, known to the driver and to no policy; ``max_tokens`` is the limit the user sets,
    None where the source says nothing. ``parent_id`` is the row number, from 0 in order of arrival, of the
    request whose answer must be delivered before this one is sent: it is sent at ``max(arrival_s, delivery of
    the parent)``. ``segments`` name the content of the prompt and add up to ``prompt_tokens`` unless empty.
    ``abort_after_s`` > 0 is the patience of the client: it goes away that long after it sent the request, if
    it has not got the whole answer by then. ``slo_ttft_s`` and ``slo_tpot_s`` > 0 are its own latency limits, in place
    of those of [slo].
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    priority: int = 0
    client_id: str = ""
    session_id: str = ""
    parent_id: int | None = None
    segments: Segments = ()
    abort_after_s: float | None = None
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
