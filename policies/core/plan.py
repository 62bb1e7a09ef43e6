"""The values that cross the seam between a policy and the two worlds. All are frozen and hold plain numbers.

A plan is a *delta* against the previous plan of the same lane: rows that decode go on decoding unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import cycle, repeat
from math import sqrt
from typing import Final, Literal, NamedTuple, overload

from policies.core.native import mypyc_attr
from policies.core.request import RequestId
from policies.core.unnumbered import ONE, Unnumbered
from policies.core.unnumbered import Blocks as Blocks


class Decode(Enum):
    """Which of the decoding rows a step advances, unless a plan names their ids (as any tuple, or ``AllBut``)."""

    ALL = "all"
    NONE = "none"


@mypyc_attr(native_class=False)
class AllBut(tuple[RequestId, ...]):
    """The ids of the decoding rows that a step advances where it leaves out a few: who only wants to know what changes
    looks at these."""

    left_out: tuple[RequestId, ...] = ()


Grant = tuple[RequestId, Blocks]
"""Blocks appended to the table of one request."""


class Grants(Sequence[Grant]):
    """Grants of one block each; ``ids`` again and again until the ``blocks`` are used up. Most of what a driver books
    ahead nobody reads, so no tuple is made before."""

    __slots__ = ("_blocks", "_ids")

    def __init__(self, ids: Sequence[RequestId], blocks: Sequence[int]) -> None:
        self._ids, self._blocks = ids, blocks

    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, index: int) -> Grant: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Grant]: ...
    def __getitem__(self, index: int | slice) -> Grant | Sequence[Grant]:
        if isinstance(index, slice):
            return list(self)[index]
        request_id = self._ids[index % len(self._blocks) % len(self._ids)]
        return request_id, ONE if isinstance(self._blocks, Unnumbered) else (self._blocks[index],)

    def __iter__(self) -> Iterator[Grant]:
        if isinstance(self._blocks, Unnumbered):
            return zip(cycle(self._ids), repeat(ONE, len(self._blocks)), strict=False)
        return zip(cycle(self._ids), zip(self._blocks, strict=False), strict=False)


Remap = tuple[RequestId, int, Blocks]
"""From this position on, these blocks take the place of those in the table of a running request. They hold the same
content: the request's own ones were duplicates and are free."""

PreemptionMode = Literal["recompute", "swap"]


class Chunk(NamedTuple):
    """Prompt tokens (or recomputed tokens) of one request: ``num_tokens`` on top of ``start`` cached ones.

    ``emits`` is True when the pass completes what is known of the request, so that the step yields its next token.
    """

    id: RequestId
    start: int
    num_tokens: int
    emits: bool


class Finish(NamedTuple):
    """A request that ended. ``reason`` is one of:

    ``stop`` made all its tokens; ``length`` cut at ``max_tokens`` or the model's length; ``prompt_too_long``,
    ``over_length`` (prompt and limit together) and ``overloaded`` refused; ``kv_capacity`` the pool can never hold it;
    ``abort`` the client went away.
    """

    id: RequestId
    reason: str
    num_output_tokens: int


class Transfer(NamedTuple):
    """Copy of KV blocks between tiers or replicas: ``src[i]`` to ``dst[i]``.

    ``out`` GPU to CPU, ``in`` CPU to GPU. A ``blocking`` transfer ends before the step computes; any other is reported
    by ``Policy.on_transfer_done`` and its blocks are in transit until then.
    """

    key: int
    id: RequestId
    kind: Literal["out", "in", "send", "recv"]
    src: Blocks
    dst: Blocks
    blocking: bool


class StepPlan(NamedTuple):
    """What one step computes, as a delta against the previous plan of the same lane.

    ``num_seqs``, ``sum_context`` and ``max_context`` describe the decoding rows the cost model is charged with, before
    the step (context = tokens with KV); ``num_tokens`` counts every token computed. They may exceed the rows that
    really decode (finished rows of a static batch, padding).
    """

    step: int
    num_seqs: int
    num_tokens: int
    sum_context: int
    max_context: int
    decode: Decode | tuple[RequestId, ...] = Decode.ALL
    chunks: tuple[Chunk, ...] = ()
    joins: tuple[Grant, ...] = ()
    """Requests that enter the batch (new, resumed, or swapped in) with all their blocks, prefix hits included."""
    grants: Sequence[Grant] = ()
    leaves: tuple[RequestId, ...] = ()
    """Requests that left the batch since the previous plan: finished, aborted, or preempted."""
    preempted: tuple[tuple[RequestId, PreemptionMode], ...] = ()
    rejected: tuple[Finish, ...] = ()
    """Requests the policy ended by itself; what they produced counts."""
    transfers: tuple[Transfer, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    """Block copies on the GPU (source, destination), for copy-on-write."""
    limited_by: str = "arrivals"
    """Why no more was admitted: arrivals (nothing waits), max_num_seqs, token_budget, kv_blocks, batch, swapped."""
    lane: int = 0
    remaps: tuple[Remap, ...] = ()
    """Tables whose blocks were found to be duplicates of cached ones; they hold from this step on."""

    @property
    def is_quiet(self) -> bool:
        """True when the step decodes and does nothing else that takes time, so that it may start a quiet run."""
        return self.decode is Decode.ALL and not self.chunks and not self.transfers


class Idle(NamedTuple):
    """Nothing to compute. ``wake_at_s`` asks the driver to plan again at that time even if nothing happens."""

    reason: str
    wake_at_s: float | None = None
    leaves: tuple[RequestId, ...] = ()
    rejected: tuple[Finish, ...] = ()


class Horizon(NamedTuple):
    """How long the last plan may go on unasked: ``steps`` further steps in which the policy would decide nothing but
    grants. With ``arrivals_matter`` False a new arrival would not change them either."""

    steps: int
    arrivals_matter: bool


class QuietRun(NamedTuple):
    """Closed form of the times of decode-only steps with constant rows.

    Step i (from 0) lasts ``base_s + slope_s * (sum_context + i * num_seqs)``. Stepping and jumping evaluate the same
    expression of ``end_s``; nothing is accumulated.
    """

    anchor_s: float
    base_s: float
    slope_s: float
    sum_context: int
    num_seqs: int

    def end_s(self, steps: int) -> float:
        """Time at which ``steps`` steps after the anchor are complete."""
        return end_of(self, steps)

    def steps_until(self, time_s: float, low: int, high: int) -> int:
        """Fewest steps in ``low..high`` whose end is at or after ``time_s`` (``high`` if none is).

        The root of the closed form, corrected by the times themselves, which alone decide.
        """
        anchor_s, base_s, slope_s, sum_context, num_seqs = self
        bend_s = slope_s * num_seqs / 2
        first_s = base_s + slope_s * sum_context - bend_s
        elapsed_s = time_s - anchor_s
        if elapsed_s <= 0.0:
            return low
        steps = int(2 * elapsed_s / (first_s + sqrt(first_s * first_s + 4 * bend_s * elapsed_s))) + 1
        if steps < low:
            steps = low
        elif steps > high:
            steps = high
        while steps < high and end_of(self, steps) < time_s:
            steps += 1
        while steps > low and end_of(self, steps - 1) >= time_s:
            steps -= 1
        return steps


def end_of(run: QuietRun, steps: int) -> float:
    """``run.end_s(steps)``. A function, because compiled a method of a tuple costs three times its work to call."""
    anchor_s, base_s, slope_s, sum_context, num_seqs = run
    tokens = steps * sum_context + num_seqs * (steps * (steps - 1) // 2)
    return anchor_s + (base_s * steps + slope_s * tokens)


class StepTime(NamedTuple):
    """Duration of a step in seconds: host work before and after, the device (transfers that block it included)."""

    host_before_s: float
    device_s: float
    host_after_s: float

    @property
    def total_s(self) -> float:
        """Sum of the three."""
        return self.host_before_s + self.device_s + self.host_after_s


NO_EMITTED: Final[Mapping[RequestId, int]] = {}


class StepResult(NamedTuple):
    """What a backend reports of a plan. Silence means that each emitting row gave one token.

    ``steps`` > 1 books that many steps of a quiet run at once; then ``run`` holds their times and ``first`` the index
    in it of the first one. ``emitted`` lists exceptions only.
    """

    step: int
    start_s: float
    end_s: float
    steps: int = 1
    finished: tuple[Finish, ...] = ()
    run: QuietRun | None = None
    first: int = 0
    time: StepTime | None = None
    emitted: Mapping[RequestId, int] = NO_EMITTED
    transfers_done: tuple[int, ...] = ()
    lane: int = 0


class BatchRow(NamedTuple):
    """One row of a step in batch order: ``num_tokens`` computed on top of ``context`` cached ones."""

    id: RequestId
    num_tokens: int
    context: int
    emits: bool


class Load(NamedTuple):
    """What a policy holds now: requests by queue, free blocks by tier, and tokens with KV on the GPU.

    ``residues[r]`` rows need a new block in the steps that are r modulo the block size, and the step just planned is
    ``phase`` modulo it; empty when tables do not grow. ``emitting`` decoding rows gain a token in each step, fewer than
    ``plan.num_seqs`` when rows idle in their slots.
    """

    waiting: int
    running: int
    swapped: int
    free_blocks: int
    stored_tokens: int
    phase: int
    residues: tuple[int, ...]
    emitting: int
    free_cpu_blocks: int


class Queues(NamedTuple):
    """The queues of a policy in order, as the decision logs list them."""

    waiting: tuple[RequestId, ...]
    running: tuple[RequestId, ...]
    swapped: tuple[RequestId, ...] = ()
