"""Static batching after FasterTransformer: a batch starts when nothing runs, and nobody joins it.

Prompts are prefilled together in one step, padded to the longest; then the batch decodes until its last
request ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.core.errors import ContractError
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import BatchRow, Chunk, Finish, Grant, Horizon, Idle, StepPlan, StepResult
from policies.core.request import RequestId
from policies.core.rows import Row
from policies.systems.base import BatchingPolicy

_FOREVER: Final = 1 << 40


@mypyc_attr(allow_interpreted_subclasses=True)
class Static(BatchingPolicy):
    """Batches of at most ``max_num_seqs`` requests, each with one slot (block) of ``max_model_len`` tokens.

    ``return_early=False``: a request that ends (or whose client leaves) keeps its slot until the whole batch
    ends, and the steps go on being charged for it as if it decoded; answers return together
    (``Engine(deliver_at_batch_end= True)``). An abort of the last live request is noticed at the end of the
    next step. ``return_early=True``: it leaves at once and frees its slot, which stays empty until the batch
    ends.

    Padding is charged in ``num_tokens`` of the prefill step (batch x longest); chunks tell each prompt's own
    length. ``pads_context``: the padding stays in the cache, and every row is charged with the longest context
    in the steps after it too.
    """

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_model_len: int,
        return_early: bool = False,
        pads_context: bool = False,
    ) -> None:
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len, grows=False)
        self.return_early = return_early
        self.pads_context = pads_context
        self._ended: dict[RequestId, int] = {}
        self._sum_ended_steps = 0

    # -- steps -----------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Go on with the batch, or start one from the head of the queue."""
        if self.running:
            plan = self.make_plan(decode=True, limited_by=self._limit())
            return plan._replace(sum_context=plan.num_seqs * plan.max_context) if self.pads_context else plan
        if not self.waiting:
            return self.idle("no_requests")
        joins, chunks = self._start_batch()
        longest = max([chunk[2] for chunk in chunks])
        num_tokens = len(chunks) * longest
        return self.make_plan(
            decode=True, chunks=chunks, joins=joins, limited_by=self._limit(), num_tokens=num_tokens
        )

    def _limit(self) -> str:
        return "batch" if self.waiting else "arrivals"

    def _start_batch(self) -> tuple[list[Grant], list[Chunk]]:
        """Take requests from the head of the queue, as many as there are slots and places."""
        joins: list[Grant] = []
        chunks: list[Chunk] = []
        for _ in range(min(len(self.waiting), self.max_num_seqs, self.kv.num_free)):
            join, chunk = self.admit(self.waiting.popleft(), 1)
            joins.append(join)
            chunks.append(chunk)
        if not chunks:
            raise ContractError("static batching with a pool that holds not one slot")
        return joins, chunks

    def horizon(self) -> Horizon:
        """A batch goes on until its last request ends. Arrivals can only wait; the first is to be seen."""
        if self.num_idle == len(self.running):
            return Horizon(0, True)
        return Horizon(_FOREVER, not self.waiting)

    def on_step_end(self, result: StepResult) -> None:
        """Book one token for each live row; free each row that ended, or the batch once all of it has."""
        super().on_step_end(result)
        if not self.return_early and self.num_idle == len(self.running):
            self._end_batch()

    def _book_chunks(self, finished: Sequence[Finish]) -> None:
        """A row that ends with its prompt keeps its place among those that decode, unless it returns at once."""
        super()._book_chunks(finished if self.return_early else ())

    def _free(self, finished: Sequence[Finish]) -> None:
        if self.return_early:
            super()._free(finished)
            return
        for finish in finished:
            self._end(finish[0])

    def _end(self, request_id: RequestId) -> None:
        """Let a row idle in its slot from now on."""
        self._ended[request_id] = self.decode.steps
        self.num_idle += 1
        self._sum_ended_steps += self.decode.steps

    def _end_batch(self) -> None:
        for row in list(self.running.values()):
            self.remove(row)
        self._ended.clear()
        self.num_idle = self._sum_ended_steps = 0

    # -- aborts ----------------------------------------------------------------------------------------------

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request; one of a batch that returns together leaves its slot occupied."""
        row = self.running.get(request_id)
        if row is None or self.return_early:
            return super().on_abort(request_id)
        produced = self._num_tokens(row) - row.prompt_tokens
        if request_id not in self._ended:
            self._end(request_id)
        return produced

    def _num_tokens(self, row: Row) -> int:
        """Tokens that a row of the running batch really has."""
        return row.offset + self._ended.get(row.id, self.decode.steps)

    # -- views -----------------------------------------------------------------------------------------------

    def batch_order(self) -> list[BatchRow]:
        """All rows of the batch; those that have ended compute, but emit nothing."""
        order = super().batch_order()
        return [row._replace(emits=False) if row.id in self._ended else row for row in order]

    def stored_tokens(self) -> int:
        """As everywhere; rows that ended store no more tokens than they had."""
        return super().stored_tokens() - (self.num_idle * self.decode.steps - self._sum_ended_steps)
