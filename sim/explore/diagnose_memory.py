"""The risk of running out of memory, from model, card, utilisation and lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sim.api import Setup
from sim.costs.pool import DEFAULT_RESERVE_BYTES, activation_bytes
from sim.wording import digits, percent

if TYPE_CHECKING:
    import pandas as pd

LEVELS = ("none", "the pool may run out", "the pool runs out when the batch is full", "some never fit", "out of memory")
"""From no risk to the worst."""

TIGHT = 0.97
"""Share of the card's memory above which what is not counted (other processes, fragmentation) may not fit."""


class MemoryRisk(NamedTuple):
    """``level`` is one of ``LEVELS``. Bytes are of one GPU: what weights, activations, reserve (both assumed, see
    docs/costs.md) and the KV pool take of its memory. Tokens: what the pool holds, the longest request that the model's
    length allows, the longest of the run, ``full_tokens``, which a full batch of the run's requests takes on average,
    and ``worst_tokens``, which as many of the longest take."""

    level: str
    memory_bytes: int
    weight_bytes: int
    activation_bytes: int
    reserve_bytes: int
    pool_bytes: int
    pool_tokens: int
    allowed_tokens: int
    longest_tokens: int
    full_tokens: float
    worst_tokens: int

    @property
    def taken(self) -> float:
        """Share of the card's memory that is taken in all."""
        parts = self.weight_bytes + self.activation_bytes + self.reserve_bytes + self.pool_bytes
        return parts / self.memory_bytes

    def sentences(self) -> list[str]:
        """What a reader should know, the worst first."""
        lines = {
            "out of memory": (
                f"Weights, activations, reserve and KV pool take {percent(self.taken)} of the card's memory: the engine"
                " is likely to die of CUDA out of memory under load."
            ),
            "some never fit": (
                f"A request of the longest length ({max(self._longest, 1):,} tokens) never fits the KV pool of"
                f" {self.pool_tokens:,} tokens: it would fail or hang."
            ),
            "the pool runs out when the batch is full": (
                f"A full batch takes {digits(self.full_tokens)} tokens on average, the KV pool holds"
                f" {self.pool_tokens:,}: it runs out, and requests wait or are preempted."
            ),
            "the pool may run out": (
                f"As many of the longest requests as the batch may have take {self.worst_tokens:,} tokens, the KV pool"
                f" holds {self.pool_tokens:,}: with long requests it runs out."
            ),
            "none": (
                f"The KV pool of {self.pool_tokens:,} tokens holds as many of the longest requests as the batch may"
                f" have ({self.worst_tokens:,} tokens)."
            ),
        }
        terms = (
            f"Of {self.memory_bytes / 1e9:.1f} GB, weights take {self.weight_bytes / 1e9:.1f} GB, activations"
            f" {self.activation_bytes / 1e9:.1f} GB and a reserve {self.reserve_bytes / 1e9:.1f} GB (both assumed), the"
            f" KV pool {self.pool_bytes / 1e9:.1f} GB: {percent(self.taken)} in all."
        )
        return [lines[self.level], terms]

    @property
    def _longest(self) -> int:
        return self.longest_tokens if self.longest_tokens > self.pool_tokens else self.allowed_tokens

    def to_dict(self) -> dict[str, Any]:
        """In JSON types."""
        return {**self._asdict(), "taken": self.taken}


def memory_risk(setup: Setup, requests: pd.DataFrame) -> MemoryRisk:
    """The risk of a run with these requests (columns ``prompt_tokens``, ``output_tokens``)."""
    shape, parameters, kv = setup.shape, setup.parameters, setup.policy.kv
    served = requests[requests["output_tokens"] > 0]
    totals = served["prompt_tokens"] + served["output_tokens"]
    longest = int(totals.max()) if len(totals) else 0
    # Over its life a request holds its prompt and, on average, half of its answer.
    mean = float((served["prompt_tokens"] + served["output_tokens"] / 2).mean()) if len(served) else 0.0
    seats = parameters.max_num_seqs
    risk = MemoryRisk(
        level=LEVELS[0],
        memory_bytes=setup.card.memory_bytes,
        weight_bytes=shape.weight_bytes,
        activation_bytes=activation_bytes(shape, parameters.max_num_batched_tokens, parameters.max_num_seqs),
        reserve_bytes=DEFAULT_RESERVE_BYTES,
        pool_bytes=kv.num_blocks * kv.block_size * shape.kv_bytes_per_token,
        pool_tokens=kv.num_blocks * kv.block_size,
        allowed_tokens=parameters.max_model_len,
        longest_tokens=longest,
        full_tokens=seats * mean,
        worst_tokens=seats * longest,
    )
    return risk._replace(level=_level(risk))


def _level(risk: MemoryRisk) -> str:
    if risk.taken > TIGHT:
        return "out of memory"
    if max(risk.longest_tokens, risk.allowed_tokens) > risk.pool_tokens:
        return "some never fit"
    if risk.full_tokens > risk.pool_tokens:
        return "the pool runs out when the batch is full"
    return "the pool may run out" if risk.worst_tokens > risk.pool_tokens else "none"
