"""Fixed slots after llama.cpp's server: a request has one from start to end, and all share the tokens of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import BatchRow, Chunk, Grant, Horizon, Idle, Load, Queues, StepPlan
from policies.core.request import RequestId
from policies.core.rows import Row
from policies.systems.gated import Gated

_FOREVER: Final = 1 << 40
_NO_STEPS: Final = Horizon(0, True)
_new_tuple: Final = tuple.__new__


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotServer(Gated):
    """llama.cpp's server (tools/server/server.cpp at 0c1e57098).

    A request goes to the free slot that was used least recently (of several never used, to the one with the highest
    number), else it waits. A step computes one token for each slot that generates, then prompts slot by slot, in slot
    order, until ``max_num_batched_tokens`` (n_batch) tokens are used; with ``cont_batching = False`` prompts only when
    no slot generates. One prompt may take all. A request ends when its slot's context, ``max_model_len`` tokens, is
    full.

    When a slot is released, the request that waits longest is put in front of all others that are about to get a slot:
    where several are released by one step (in slot order), requests take them in reverse order of arrival.
    ``keeps_order``: whoever is in front of the server (Ollama) hands requests on one by one, in order.

    KV memory: a slot is one block of ``max_model_len`` tokens of ``kv``, or with ``kv_unified`` all slots take cells
    from one pool as they grow. If that runs out, the server halves the batch until a token has no cell, and then fails
    every request that has a slot (``faithful``). Otherwise prompts wait for cells, and while a token has none the last
    one that got a slot ends, both with ``kv_capacity``.

    ``max_num_queued_reqs`` requests may wait at the door for a slot; the next one is refused with ``overloaded``.
    """

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        cont_batching: bool = True,
        kv_unified: bool = False,
        keeps_order: bool = False,
        max_num_queued_reqs: int | None = None,
        faithful: bool = False,
    ) -> None:
        num_slots = max_num_seqs if kv_unified else min(max_num_seqs, kv.num_blocks)
        super().__init__(
            kv,
            max_num_seqs=num_slots,
            max_model_len=max_model_len,
            max_requests=0 if max_num_queued_reqs is None else num_slots + max_num_queued_reqs,
            grows=kv_unified,
        )
        self.max_num_batched_tokens = max_num_batched_tokens
        self.cont_batching = cont_batching
        self.kv_unified = kv_unified
        self.keeps_order = keeps_order
        self.faithful = faithful
        self.slots: list[Row | None] = [None] * num_slots
        self.begun: dict[RequestId, Row] = {}
        """Requests with a slot, but no KV yet."""
        self._taken_at = [0] * num_slots
        self._last_used = [-1] * num_slots
        self._turns = 0
        self._num_free_slots = num_slots
        self._num_called = self._num_deferred = 0
        self._lacks_cells = False

    # -- slots -------------------------------------------------------------------------------------------------------

    def _assign_slots(self) -> None:
        """Give free slots to the requests called by releases, the last called first, then to those that came."""
        waiting = self.waiting
        if self._num_called > 1 and not self.keeps_order:
            called = [waiting.popleft() for _ in range(self._num_called)]
            waiting.extendleft(called)
        while waiting and self._num_free_slots:
            self._take_slot(waiting.popleft())
        self._num_called, self._num_deferred = 0, len(waiting)

    def _take_slot(self, row: Row) -> None:
        free = [number for number, held in enumerate(self.slots) if held is None]
        number = min(free, key=lambda number: (self._last_used[number], -number))
        self.slots[number] = row
        self._num_free_slots -= 1
        self._turns += 1
        self._taken_at[number] = self._turns
        row.order = number
        self.begun[row.id] = row

    def _release_slot(self, row: Row) -> None:
        self.slots[row.order] = None
        self._num_free_slots += 1
        self._turns += 1
        self._last_used[row.order] = self._turns
        if self._num_called < self._num_deferred:
            self._num_called += 1

    def enter(self, row: Row) -> None:
        """Put a row into the running list, which keeps slot order."""
        running = self.running
        is_last = not running or running[next(reversed(running))].order < row.order
        running[row.id] = row
        if not is_last:
            self.running = {row.id: row for row in sorted(running.values(), key=_slot)}

    def detach(self, row: Row) -> None:
        """Take a row off the running list; its slot is free."""
        super().detach(row)
        self._release_slot(row)

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request, wherever it is."""
        row = self.begun.pop(request_id, None)
        if row is not None:
            self._release_slot(row)
            self._inside.discard(request_id)
            return row.num_tokens - row.prompt_tokens
        for place, row in enumerate(self.waiting):
            if row.id == request_id:
                self._num_called -= place < self._num_called
                self._num_deferred -= place < self._num_deferred
                break
        return super().on_abort(request_id)

    # -- steps -------------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Slots, then a token for each that generates, then prompts."""
        if self.rejected:
            self.rejected = []
        if self.waiting and self._num_free_slots:
            self._assign_slots()
        self._num_deferred = len(self.waiting)
        if not (self.waiting or self.begun or self.partial) and self.decode.rows and self._has_cells():
            return self.quiet_plan()
        chunks: list[Chunk] = []
        joins: list[Grant] = []
        grants: list[Grant] = []
        if self.kv_unified:
            self._lacks_cells = False
            self._make_room()
        prompts = self._prompts()
        decode_grants = self.decode.grant()
        for row, count in prompts:
            chunks.append(self._compute(row, count, joins, grants))
        if not self.decode.rows and not chunks:
            return self.idle("blocked" if self.waiting else "no_requests", rejected=self.rejected)
        return self.make_plan(
            decode=True,
            chunks=chunks,
            joins=joins,
            grants=_merged(decode_grants, grants, self.running) if grants else decode_grants,
            rejected=self.rejected,
            limited_by=self._limit(),
        )

    def _limit(self) -> str:
        if not self.waiting and not self.begun:
            return "arrivals"
        if not self.cont_batching and self.decode.rows:
            return "batch"
        if self._lacks_cells:
            return "kv_blocks"
        return "max_num_seqs" if self.waiting else "token_budget"

    def _prompts(self) -> list[tuple[Row, int]]:
        """Prompts that run in this step, in slot order, each with its tokens."""
        if not (self.begun or self.partial) or (self.decode.rows and not self.cont_batching):
            return []
        left = self.max_num_batched_tokens - len(self.decode.rows)
        cells = self.kv.pool.num_free - self.decode.num_needed
        found = []
        for row in sorted((*self.partial.values(), *self.begun.values()), key=_slot):
            count = min(row.num_tokens - row.num_computed_tokens, left)
            if self.kv_unified and count > cells:
                count = cells
                self._lacks_cells = True
            if count <= 0:
                break
            found.append((row, count))
            left -= count
            cells -= count
        return found

    def _compute(self, row: Row, count: int, joins: list[Grant], grants: list[Grant]) -> Chunk:
        """Book a chunk; the first one opens the table."""
        start = row.num_computed_tokens
        row.num_computed_tokens = end = start + count
        num_blocks = self.kv.blocks_for(end)
        if self.begun.pop(row.id, None) is not None:
            self.enter(row)
            joins.append((row.id, self.kv.open(row.id, num_blocks)))
        elif num_blocks > len(self.kv.tables[row.id]):
            grants.append((row.id, self.kv.extend(row.id, num_blocks - len(self.kv.tables[row.id]))))
        if end < row.num_tokens:
            self.partial[row.id] = row
        return _new_tuple(Chunk, (row.id, start, count, end == row.num_tokens))

    def horizon(self) -> Horizon:
        """Until a slot is released; requests that wait hide later ones, unless a slot is free for one that comes."""
        hides_none = self._num_free_slots > 0 or not (self.waiting or self.begun)
        if self._lacks_cells or self.rejected or (self.cont_batching and (self.begun or self.partial)):
            return _NO_STEPS
        return _new_tuple(Horizon, (self.decode.free_steps() if self.kv_unified else _FOREVER, hides_none))

    def skip(self, steps: int) -> Sequence[Grant]:
        """Blocks of further steps of a quiet run; who has come by then is deferred, as a plan would find."""
        self._num_deferred = len(self.waiting)
        return super().skip(steps)

    # -- a pool that runs out ----------------------------------------------------------------------------------------

    def _has_cells(self) -> bool:
        return self.decode.num_needed <= self.kv.pool.num_free

    def _make_room(self) -> None:
        """End requests until every slot that generates has a cell, or any prompt gets on."""
        while not self._fits():
            with_slot = [row for row in self.slots if row is not None]
            if not self.faithful:
                with_slot = [max(with_slot, key=lambda row: self._taken_at[row.order])]
            for row in with_slot:
                self._fail(row)
            self._assign_slots()

    def _fits(self) -> bool:
        """True if this step can go on: where ``faithful`` all of its tokens have cells, otherwise some of them."""
        free, needed = self.kv.pool.num_free, self.decode.num_needed
        pending = bool(self.begun or self.partial) and (self.cont_batching or not self.decode.rows)
        if self.faithful and pending:
            prompts = (*self.partial.values(), *self.begun.values())
            rests = sum(row.num_tokens - row.num_computed_tokens for row in prompts)
            needed += min(rests, self.max_num_batched_tokens - len(self.decode.rows))
        elif pending and not self.decode.rows:
            needed = 1
        return needed <= free

    def _fail(self, row: Row) -> None:
        if self.begun.pop(row.id, None) is None:
            self.remove(row)
        else:
            self._release_slot(row)
        self.reject(row, "kv_capacity")

    # -- views -------------------------------------------------------------------------------------------------------

    def batch_order(self) -> list[BatchRow]:
        """Slots that generate, then prompts, both in slot order."""
        context = self.decode.num_tokens
        rows = self.running.values() if self._decode_runs else ()
        order = [BatchRow(row.id, 1, context(row) - 1, True) for row in rows if row.is_decoding]
        return order + [BatchRow(id_, count, start, emits) for id_, start, count, emits in self._chunks]

    def load(self) -> Load:
        """As everywhere; a request with a slot waits until it has KV."""
        load = super().load()
        return load._replace(waiting=load.waiting + len(self.begun)) if self.begun else load

    def queues(self) -> Queues:
        """Requests without KV, those with a slot in front, and the others in slot order."""
        return Queues(tuple(row.id for row in (*self.begun.values(), *self.waiting)), tuple(self.running))


def _slot(row: Row) -> int:
    return row.order


def _merged(first: Sequence[Grant], second: Sequence[Grant], running: dict[RequestId, Row]) -> list[Grant]:
    """Grants of both in running order."""
    return sorted((*first, *second), key=lambda grant: running[grant[0]].order)
