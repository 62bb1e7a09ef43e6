"""Columns of the run record: what either world writes, and every metric reads.

A row of steps is one step, or a quiet run: consecutive decode-only steps with the same rows, cut where its anchor, the
number waiting or swapped, or the limiting cause changes. Cuts do not depend on whether the run was stepped or jumped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol


class StepRow(NamedTuple):
    """``steps`` consecutive steps.

    Boundary i of the row (0 <= i <= steps) lies at ``start_s`` for i = 0, at ``end_s`` for i = steps, and else at
    ``anchor_s + (base_s * k + slope_s * (k * anchor_context + num_seqs * k * (k - 1) / 2))`` with k = first + i, which
    also gives the two ends of a row with ``first`` >= 0. A single step that is no quiet run has first = -1.

    ``emitting`` decoding rows gain one token in each step (0 in a step that pauses them); ``chunk_emits`` requests gain
    one by completing their prompt. Tokens of the first step follow those at ``previous_emit_s`` for all emitting rows
    except ``irregular`` of them, whose gaps come as stalls. ``num_seqs``,
    ``num_tokens`` and ``sum_context`` are those of the first step.

    ``free_blocks`` counts after the first step's blocks were booked; step i > 0 takes ``residues[(phase + i) %
    len(residues)]`` more. ``stored_tokens`` are cached tokens before the first step; each step adds ``emitting``
    (and the chunks' tokens). ``moved_bytes`` went over the swap link before the first step.
    """

    step: int
    steps: int
    start_s: float
    end_s: float
    first: int
    anchor_s: float
    base_s: float
    slope_s: float
    anchor_context: int
    num_seqs: int
    num_tokens: int
    sum_context: int
    emitting: int
    irregular: int
    chunk_emits: int
    chunk_tokens: int
    previous_emit_s: float
    waiting: int
    running: int
    swapped: int
    free_blocks: int
    stored_tokens: int
    moved_bytes: int
    limited_by: str
    phase: int
    residues: tuple[int, ...]


class RequestRow(NamedTuple):
    """One request that ended, or was unfinished when the run ended (reason ``unfinished``).

    Times are those of delivery, in seconds; NaN where it never happened. ``waited_s`` is all time outside the batch,
    requeues included. ``segments`` (record = tokens) derive every token's time: ``(first_token_s, step, steps)`` is a
    token at that time (NaN: none, decoding goes on after a swap or a pause) followed by one at the end of each of
    ``steps`` decode steps from the given decode ordinal on; ordinals count steps with ``emitting`` > 0 from 0.
    """

    id: int
    arrival_s: float
    first_scheduled_s: float
    first_token_s: float
    finish_s: float
    reason: str
    prompt_tokens: int
    output_tokens: int
    priority: int
    client_id: str
    recompute_preemptions: int
    swap_preemptions: int
    recomputed_tokens: int
    waited_s: float
    hit_tokens_new: int
    hit_tokens_resumed: int
    segments: tuple[tuple[float, int, int], ...]


class Stall(NamedTuple):
    """``num_gaps`` inter-token gaps that do not follow the row's ``previous_emit_s``: after a preemption, a pause, or
    the first token. ``cause`` is decode (first gap after a prompt), preemption, swap, or batch
    (gaps of 0 between tokens that were delivered together)."""

    gap_s: float
    num_gaps: int
    cause: str


class RecordSink(Protocol):
    """Receives the record in batches, in order; ``close`` comes last."""

    def steps(self, rows: Collection[StepRow]) -> None:
        """Rows of steps."""

    def requests(self, rows: Collection[RequestRow]) -> None:
        """Requests, in order of their end."""

    def stalls(self, rows: Sequence[Stall]) -> None:
        """Irregular inter-token gaps."""

    def close(self) -> None:
        """The run is over."""


def outcome(reason: str) -> str:
    """Which count of the summary a reason belongs to."""
    return _OUTCOMES[reason]


_OUTCOMES = {
    "stop": "finished",
    "length": "finished",
    "prompt_too_long": "rejected",
    "over_length": "rejected",
    "overloaded": "rejected",
    "kv_capacity": "failed",
    "abort": "aborted",
    "unfinished": "unfinished",
}
