"""What the built-in policies share: rows by queue, lockstep decoding, tokens booked from results."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from policies.core.errors import ContractError
from policies.core.kv import KvManager
from policies.core.plan import BatchRow, Chunk, Decode, Finish, Grant, Load, Queues, StepPlan, StepResult
from policies.core.prefix import Content
from policies.core.protocols import Policy
from policies.core.request import Request, RequestId, output_segment
from policies.core.rows import DecodeSet, Row


class BatchingPolicy(Policy):
    """Base of policies whose decoding rows advance in lockstep.

    ``waiting`` is a FIFO queue, ``running`` the running list in order (a dict, so that leaving costs O(1)), ``partial``
    those of it whose prompt is not complete, and ``decode`` the rest. ``order`` numbers entries to the running list.
    """

    def __init__(self, kv: KvManager, *, max_num_seqs: int, max_model_len: int, grows: bool = True) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.waiting: deque[Row] = deque()
        self.running: dict[RequestId, Row] = {}
        self.partial: dict[RequestId, Row] = {}
        self.decode = DecodeSet(kv, grows=grows)
        self._paused: list[Row] = []
        self._leaves: list[RequestId] = []
        self._chunks: tuple[Chunk, ...] = ()
        self._decode_runs = False
        self._step = -1
        self._last_order = 0

    # -- arrivals and aborts -----------------------------------------------------------------------------------------

    def refusal(self, request: Request) -> str | None:
        """A prompt that leaves no room for one output token is refused."""
        return "prompt_too_long" if request.prompt_tokens >= self.max_model_len else None

    def on_arrival(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(self.new_row(request))

    def new_row(self, request: Request) -> Row:
        """State of a new request; its content is hashed only if it says what it shares."""
        row = Row(request)
        if request.segments and self.kv.prefix_cache is not None:
            row.content = Content(request.segments, output_segment(request.id), self.kv.block_size)
        return row

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request, wherever it is."""
        row = self.running.get(request_id)
        if row is not None:
            self.remove(row)
            return row.num_tokens - row.prompt_tokens
        for row in self.waiting:
            if row.id == request_id:
                self.waiting.remove(row)
                return row.num_tokens - row.prompt_tokens
        raise ContractError(f"abort of request {request_id}, which this policy does not hold")

    # -- running list ------------------------------------------------------------------------------------------------

    def enter(self, row: Row) -> None:
        """Append a row to the running list."""
        self._last_order += 1
        row.order = self._last_order
        self.running[row.id] = row

    def remove(self, row: Row) -> None:
        """Take a row off the running list and free its blocks; its counts are exact afterwards."""
        self.detach(row)
        self.kv.close(row.id)

    def detach(self, row: Row) -> None:
        """Take a row off the running list, its blocks left as they are."""
        del self.running[row.id]
        if row.is_decoding:
            self.decode.leave(row)
        else:
            self.partial.pop(row.id, None)
            if self._paused and row in self._paused:
                self._paused.remove(row)
        self._leaves.append(row.id)

    def pause(self, row: Row) -> None:
        """Leave a decoding row out of the next step only."""
        self.decode.leave(row)
        self._paused.append(row)

    def unpause(self) -> None:
        """Let the rows that the last step left out decode again."""
        for row in self._paused:
            self.decode.join(row)
        self._paused.clear()

    # -- plans -------------------------------------------------------------------------------------------------------

    def make_plan(
        self,
        *,
        decode: bool,
        chunks: Sequence[Chunk] = (),
        joins: Sequence[Grant] = (),
        grants: Sequence[Grant] = (),
        **fields: object,
    ) -> StepPlan:
        """The plan of this step, charged with the rows that decode (if they do) and the chunks."""
        rows = self.decode
        num_seqs = len(rows.rows) if decode else 0
        self._chunks = tuple(chunks)
        self._decode_runs = decode and num_seqs > 0
        self._step += 1
        mode: Decode | tuple[RequestId, ...] = Decode.ALL if decode else Decode.NONE
        if self._paused and decode:
            mode = tuple(rows.rows)
        plan = StepPlan(
            self._step,
            num_seqs,
            num_seqs + sum([chunk.num_tokens for chunk in chunks]) if chunks else num_seqs,
            rows.sum_context if decode else 0,
            rows.max_context if decode else 0,
            mode,
            self._chunks,
            tuple(joins),
            tuple(grants),
            tuple(self._leaves),
            **fields,  # type: ignore[arg-type]
        )
        self._leaves.clear()
        return plan

    def skip(self, steps: int) -> Sequence[Grant]:
        """Blocks of further steps of a quiet run."""
        return self.decode.skip(steps)

    # -- results -----------------------------------------------------------------------------------------------------

    def on_step_end(self, result: StepResult) -> None:
        """One token for each emitting row, then free what finished, in running order."""
        if self._decode_runs:
            self.decode.advance(result.steps)
            self._step += result.steps - 1
        finished = result.finished
        if self._chunks:
            self._book_chunks(finished)
        if finished:
            self._free(finished)

    def _book_chunks(self, finished: Sequence[Finish]) -> None:
        ended = {finish.id for finish in finished} if finished else ()
        for chunk in self._chunks:
            if chunk.emits:
                row = self.running[chunk.id]
                self.partial.pop(chunk.id, None)
                row.num_tokens += 1
                if chunk.id not in ended:
                    self.decode.join(row)
        self._chunks = ()

    def _free(self, finished: Sequence[Finish]) -> None:
        rows = [self.running[finish.id] for finish in finished]
        if len(rows) > 1:
            rows.sort(key=lambda row: row.order)
        for row in rows:
            self.remove(row)

    # -- views -------------------------------------------------------------------------------------------------------

    def batch_order(self) -> list[BatchRow]:
        """Rows of the last plan in running order."""
        chunks = {chunk.id: chunk for chunk in self._chunks}
        order = []
        for row in self.running.values():
            chunk = chunks.get(row.id)
            if chunk is not None:
                order.append(BatchRow(chunk.id, chunk.num_tokens, chunk.start, chunk.emits))
            elif row.is_decoding and self._decode_runs:
                order.append(BatchRow(row.id, 1, self.decode.num_tokens(row) - 1, True))
        return order

    @property
    def num_emitting(self) -> int:
        """Decoding rows; each gains a token in every step that lets them run."""
        return len(self.decode.rows)

    def load(self) -> Load:
        """Queue lengths, free blocks and stored tokens."""
        stored = self.decode.sum_context
        if self.partial or self._paused:
            stored += sum(row.num_computed_tokens for row in (*self.partial.values(), *self._paused))
        return Load(len(self.waiting), len(self.running), 0, self.kv.pool.num_free, stored)

    def residues(self) -> tuple[tuple[int, ...], int]:
        """Which steps need how many new blocks."""
        return self.decode.residues()

    def queues(self) -> Queues:
        """Waiting and running requests in order."""
        return Queues(tuple(row.id for row in self.waiting), tuple(self.running))
