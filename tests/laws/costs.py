"""Cost models of queueing theory: service times from a script, and a step that is affine in its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from policies.core.errors import ContractError
from policies.core.plan import Chunk

_FOREVER = 1 << 40


class ScriptedCosts:
    """Step k takes the k-th of the given durations. With one output token a request and one request a step, request
    k's service takes that long."""

    def __init__(self, durations_s: Iterable[float]) -> None:
        self._durations_s = iter(durations_s)

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        """The next duration."""
        return next(self._durations_s)

    def decode_curve(
        self, num_seqs: int, num_tokens: int, sum_context: int, max_context: int
    ) -> tuple[float, float, int]:
        """Requests of one token never decode."""
        raise ContractError("a scripted service decodes nothing")

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """Nothing is ever swapped."""
        raise ContractError("a scripted service swaps nothing")


class AffineCosts:
    """Each step takes ``base_s + per_row_s`` times its rows, whether a row decodes or completes its prompt."""

    def __init__(self, base_s: float, per_row_s: float) -> None:
        self.base_s, self.per_row_s = base_s, per_row_s

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        """A step of ``num_seqs`` decoding rows and ``chunks`` prompts."""
        return self.base_s + self.per_row_s * (num_seqs + len(chunks))

    def decode_curve(
        self, num_seqs: int, num_tokens: int, sum_context: int, max_context: int
    ) -> tuple[float, float, int]:
        """The same for ever: contexts cost nothing."""
        return self.base_s + self.per_row_s * num_seqs, 0.0, _FOREVER

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """Nothing is ever swapped."""
        raise ContractError("this law swaps nothing")
