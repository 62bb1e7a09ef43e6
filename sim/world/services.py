"""What a policy may ask about the simulated world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from policies.core.plan import Chunk
from policies.core.request import Request, RequestId


class TimeCosts(Protocol):
    """The three questions about time; a cost model answers them."""

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        """Seconds of a step."""

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """Seconds of one transfer."""

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        """Seconds to compute tokens again."""


class SimServices:
    """Times from the cost model; output lengths from an oracle, since a simulated workload knows them.

    ``lengths`` maps each request that has no answer yet to the output tokens it will make.
    """

    def __init__(self, costs: TimeCosts, lengths: Mapping[RequestId, int] | None = None) -> None:
        self.lengths: Mapping[RequestId, int] = {} if lengths is None else lengths
        self.step_time_s = costs.step_time_s
        self.swap_time_s = costs.swap_time_s
        self.recompute_time_s = costs.recompute_time_s

    def predict_output_len(self, request: Request) -> int:
        """The true number of output tokens."""
        return self.lengths[request.id]
