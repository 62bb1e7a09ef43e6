"""Iteration-level scheduling after Orca: first come, first served, KV slots reserved for a whole request.

Every iteration runs all admitted requests, prompts and increments mixed; requests join and leave between
iterations. Nothing is ever preempted. The variants Max, Pow2 and Oracle (named by the vLLM paper) differ in
what they reserve.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, Literal

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import Chunk, Finish, Grant, Horizon, Idle, StepPlan, StepResult
from policies.core.protocols import Services
from policies.core.request import Request
from policies.core.rows import Row
from policies.systems.base import BatchingPolicy

Reservation = Literal["max", "pow2", "oracle"]

_FOREVER: Final = 1 << 40


@mypyc_attr(allow_interpreted_subclasses=True)
class Orca(BatchingPolicy):
    """Orca's scheduler: the head of the queue joins while its reservation fits the free slots and the batch
    has fewer than ``max_num_seqs`` requests; the first that does not fit stops admission.

    ``reservation`` in tokens, at most ``max_model_len``: ``max`` that length itself; ``oracle`` prompt +
    predicted output; ``pow2`` prompt + the next power of two at or above the predicted output. The last two
    ask ``services`` for the prediction.

    Slots are the blocks of ``kv``: one block of ``max_model_len`` tokens a request for ``max``, blocks of one
    token for the others. A request that makes more tokens than predicted outgrows its reservation: in that
    very step the output part is doubled (at most to ``max_model_len``), or extended by what is free; with no
    free slot at all the request ends with ``kv_capacity``, as does one whose reservation exceeds the whole
    pool. Neither can happen with true lengths as predictions and a pool of at least ``max_model_len`` tokens.
    """

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_model_len: int,
        reservation: Reservation = "max",
        services: Services | None = None,
    ) -> None:
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len, grows=False)
        if services is None and reservation != "max":
            raise ConfigError(
                f"Orca's reservation '{reservation}' needs predicted output lengths, and nothing predicts"
                " them here; use preset orca-max"
            )
        self.reservation = reservation
        self.services = services
        self._head: tuple[Row, int] | None = None
        self._outgrows: list[tuple[int, int, Row]] = []
        self._rejected: list[Finish] = []

    # -- steps -----------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """All running requests, then new ones from the head of the queue."""
        self._rejected = []
        grants = self._extend_outgrown() if self._outgrows else []
        joins: list[Grant] = []
        chunks: list[Chunk] = []
        if self.waiting:
            self._admit(joins, chunks)
        rejected = tuple(self._rejected)
        if not self.running:
            return self.idle("no_requests", rejected=rejected)
        limit = self._limit() if self.waiting else "arrivals"
        return self.make_plan(
            decode=True, chunks=chunks, joins=joins, grants=grants, rejected=rejected, limited_by=limit
        )

    def _limit(self) -> str:
        return "max_num_seqs" if len(self.running) >= self.max_num_seqs else "kv_blocks"

    def horizon(self) -> Horizon:
        """Until a row outgrows its reservation. A blocked head stays blocked and hides later arrivals."""
        due = self._next_due()
        steps = _FOREVER if due is None else due - self.decode.steps - 1
        return Horizon(steps, not self.waiting)

    def on_step_end(self, result: StepResult) -> None:
        """Book tokens and free what finished; note when each new row outgrows its reservation."""
        chunks = self._chunks
        super().on_step_end(result)
        for chunk in chunks:
            row = self.running.get(chunk.id)
            if row is not None:
                self._watch(row)

    # -- admission -------------------------------------------------------------------------------------------

    def _admit(self, joins: list[Grant], chunks: list[Chunk]) -> None:
        kv = self.kv
        while self.waiting and len(self.running) < self.max_num_seqs:
            row = self.waiting[0]
            num_blocks = kv.blocks_for(self._reservation_of_head(row))
            if num_blocks > kv.num_blocks:
                self.waiting.popleft()
                self._rejected.append(Finish(row.id, "kv_capacity", 0))
                continue
            if num_blocks > kv.num_free:
                break
            join, chunk = self.admit(self.waiting.popleft(), num_blocks)
            joins.append(join)
            chunks.append(chunk)

    def _reservation_of_head(self, row: Row) -> int:
        """Asked once a request, however long it waits at the head."""
        if self._head is None or self._head[0] is not row:
            self._head = (row, self.reserved_tokens(row.request))
        return self._head[1]

    def reserved_tokens(self, request: Request) -> int:
        """KV slots, in tokens, that a request reserves when it is admitted. A prediction beyond the request's
        own ``max_tokens`` counts as that."""
        if self.services is None or self.reservation == "max":
            return self.max_model_len
        output = max(1, min(self.services.predict_output_len(request), request.max_tokens))
        if self.reservation == "pow2":
            output = 1 << (output - 1).bit_length()
        return min(request.prompt_tokens + output, self.max_model_len)

    # -- outgrown reservations -------------------------------------------------------------------------------

    def _watch(self, row: Row) -> None:
        """Enter a decoding row at the step that finds its slots full, unless they cannot fill."""
        capacity = len(self.kv.tables[row.id]) * self.kv.block_size
        if capacity < self.max_model_len:
            # In step k a decoding row has offset + k - 1 cached tokens before it computes one more.
            heappush(self._outgrows, (capacity + 1 - row.offset, row.order, row))

    def _next_due(self) -> int | None:
        """The step in which the next row finds its slots full; rows that have ended are passed over."""
        heap = self._outgrows
        while heap and self.running.get(heap[0][2].id) is not heap[0][2]:
            heappop(heap)
        return heap[0][0] if heap else None

    def _extend_outgrown(self) -> list[Grant]:
        """More slots for the rows that find theirs full in the next step, in running order."""
        grants: list[Grant] = []
        while (due := self._next_due()) is not None and due <= self.decode.steps:
            row = heappop(self._outgrows)[2]
            held = len(self.kv.tables[row.id])
            capacity = held * self.kv.block_size
            wanted = min(2 * capacity - row.prompt_tokens, self.max_model_len)
            count = min(self.kv.blocks_for(wanted) - held, self.kv.num_free)
            if count > 0:
                grants.append((row.id, self.kv.extend(row.id, count)))
                self._watch(row)
            else:
                self.remove(row)
                self._rejected.append(Finish(row.id, "kv_capacity", row.num_tokens - row.prompt_tokens))
        return grants
