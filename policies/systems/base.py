"""What the built-in policies share: rows by queue, lockstep decoding, tokens booked from results."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from policies.core.errors import ContractError
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import (
    BatchRow,
    Chunk,
    Decode,
    Finish,
    Grant,
    Idle,
    Load,
    PreemptionMode,
    Queues,
    StepPlan,
    StepResult,
    Transfer,
)
from policies.core.prefix import Content
from policies.core.protocols import Policy
from policies.core.request import Request, RequestId, output_segment
from policies.core.rows import DecodeSet, Row

_ALL: Final = Decode.ALL
_NONE: Final = Decode.NONE
_new_tuple: Final = tuple.__new__
"""Makes a NamedTuple at a third of the cost of calling its class, in what runs every step."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchingPolicy(Policy):
    """Base of policies whose decoding rows advance in lockstep.

    ``waiting`` is a FIFO queue, ``running`` the running list in order (a dict, so that leaving costs O(1)), ``partial``
    those of it whose prompt is not complete, and ``decode`` the rest. ``order`` numbers entries to the running list.
    ``num_idle`` decoding rows hold their place and gain nothing.

    A subclass defines ``schedule`` and ``horizon``. What ``schedule`` owes (docs/write-a-policy.md has an example):

    - A request that starts: off ``waiting``, then ``admit``, whose join and chunk go into the plan. By hand that is
      ``enter``, ``kv.open`` with the blocks of its tokens, ``joins`` with (id, blocks), a ``Chunk`` from
      ``row.num_computed_tokens`` on, and ``row.num_computed_tokens`` raised by it.
    - A ``Chunk`` emits if, and only if, it ends at ``row.num_tokens``. Until then its row is in ``partial``.
    - Rows decode by themselves: ``make_plan(decode=True, grants=self.decode.grant())``. Before it,
      ``self.decode.num_needed`` blocks are free, or a row is preempted (``detach``, ``kv.close``).
    - Nothing to compute: ``self.idle(reason)``. Rows that left the batch are reported by it and by ``make_plan``.
    - ``horizon``: ``Horizon(0, True)`` promises nothing and is always right.
    """

    def __init__(self, kv: KvManager, *, max_num_seqs: int, max_model_len: int, grows: bool = True) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.waiting: deque[Row] = deque()
        self.running: dict[RequestId, Row] = {}
        self.partial: dict[RequestId, Row] = {}
        self.swapped: dict[RequestId, Row] = {}
        self.num_idle = 0
        self.decode = DecodeSet(kv, grows=grows)
        self._paused: list[Row] = []
        self._leaves: list[RequestId] = []
        self._chunks: Sequence[Chunk] = ()
        self._decode_runs = False
        self._step = 0
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

    def admit(self, row: Row, num_blocks: int | None = None) -> tuple[Grant, Chunk]:
        """Enter a request that prefills all it knows in this step; returns its join and its chunk. ``num_blocks`` are
        the blocks of its table, by default those of its tokens; ContractError if fewer are free."""
        if num_blocks is None:
            num_blocks = self.kv.blocks_for(row.num_tokens)
        self.enter(row)
        join = (row.id, self.kv.open(row.id, num_blocks))
        row.num_computed_tokens = row.num_tokens
        return join, Chunk(row.id, 0, row.num_tokens, True)

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

    def quiet_plan(self) -> StepPlan:
        """The plan of a step in which all decoding rows run, nothing else happens, and nothing waits."""
        decode, leaves = self.decode, self._leaves
        if leaves:
            self._leaves = []
        num_seqs, sum_context, max_context = decode.totals()
        self._decode_runs = True
        return _new_tuple(StepPlan, (
            self._step, num_seqs, num_seqs, sum_context, max_context, _ALL, (), (),
            tuple(decode.grant()), tuple(leaves), (), (), (), (), "arrivals", 0, (),
        ))  # fmt: skip

    def idle(self, reason: str, *, wake_at_s: float | None = None, rejected: Sequence[Finish] = ()) -> Idle:
        """No step: ``no_requests``, or why those that wait cannot run. Reports the rows that left the batch."""
        leaves = tuple(self._leaves)
        self._leaves.clear()
        return Idle(reason, wake_at_s, leaves, tuple(rejected))

    def make_plan(
        self,
        *,
        decode: bool,
        chunks: Sequence[Chunk] = (),
        joins: Sequence[Grant] = (),
        grants: Sequence[Grant] = (),
        preempted: Sequence[tuple[RequestId, PreemptionMode]] = (),
        rejected: Sequence[Finish] = (),
        transfers: Sequence[Transfer] = (),
        limited_by: str = "arrivals",
        num_tokens: int | None = None,
    ) -> StepPlan:
        """The plan of this step, charged with the rows that decode (if they do) and the chunks, or with ``num_tokens``
        tokens in all."""
        rows = self.decode
        leaves = self._leaves
        if leaves:
            self._leaves = []
        self._chunks = chunks
        mode: Decode | tuple[RequestId, ...] = _NONE
        num_seqs = sum_context = max_context = 0
        if decode:
            num_seqs, sum_context, max_context = rows.totals()
            mode = tuple(rows.rows) if self._paused else _ALL
        self._decode_runs = num_seqs > 0
        if num_tokens is None:
            num_tokens = num_seqs
            for chunk in chunks:
                num_tokens += chunk[2]
        return _new_tuple(StepPlan, (
            self._step, num_seqs, num_tokens, sum_context, max_context, mode, tuple(chunks),
            tuple(joins), tuple(grants), tuple(leaves), tuple(preempted),
            tuple(rejected), tuple(transfers), (), limited_by, 0, (),
        ))  # fmt: skip

    def skip(self, steps: int) -> Sequence[Grant]:
        """Blocks of further steps of a quiet run."""
        return self.decode.skip(steps)

    # -- results -----------------------------------------------------------------------------------------------------

    def on_step_end(self, result: StepResult) -> None:
        """One token for each emitting row, then free what finished, in running order."""
        steps, finished = result[3:5]
        self._step += steps
        if self._decode_runs:
            self.decode.advance(steps)
        if self._chunks:
            self._book_chunks(finished)
        if finished:
            self._free(finished)

    def _book_chunks(self, finished: Sequence[Finish]) -> None:
        ended = {finish.id for finish in finished} if finished else ()
        for request_id, _, _, emits in self._chunks:
            if emits:
                row = self.running[request_id]
                self.partial.pop(request_id, None)
                row.num_tokens += 1
                if request_id not in ended:
                    self.decode.join(row)
        self._chunks = ()

    def _free(self, finished: Sequence[Finish]) -> None:
        if len(finished) == 1:
            self.remove(self.running[finished[0][0]])
            return
        for row in sorted([self.running[finish[0]] for finish in finished], key=lambda row: row.order):
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

    def stored_tokens(self) -> int:
        """Tokens of the running requests that have KV."""
        stored = self.decode.sum_context
        if self.partial or self._paused:
            stored += sum(row.num_computed_tokens for row in (*self.partial.values(), *self._paused))
        return stored

    def load(self) -> Load:
        """Queue lengths, free blocks, stored tokens, and which rows need blocks when."""
        decode, kv = self.decode, self.kv
        size = decode.block_size
        return _new_tuple(Load, (
            len(self.waiting), len(self.running), len(self.swapped), kv.pool.num_free, self.stored_tokens(),
            decode.steps % size if size else 0, tuple(decode.sizes), len(decode.rows) - self.num_idle,
            kv.cpu_pool.num_free,
        ))  # fmt: skip

    def queues(self) -> Queues:
        """Waiting and running requests in order."""
        return Queues(tuple(row.id for row in self.waiting), tuple(self.running), tuple(self.swapped))
