"""FastServe: a multi-level feedback queue that preempts between iterations and swaps ahead of need."""

from __future__ import annotations

from collections.abc import Iterable

from policies.core.kv import KvManager
from policies.core.plan import Finish, Horizon, Idle, StepPlan, Transfer
from policies.core.protocols import Services
from policies.core.request import Request, RequestId
from policies.core.rows import Row
from policies.systems.levels import LevelRow, Levels, find, level_rank
from policies.systems.ranked import RankedQueue
from policies.systems.token_budget_priority import PriorityTokenBudget


class FastServe(PriorityTokenBudget):
    """FastServe (Wu et al., Fast Distributed Inference Serving for Large Language Models, 2023), on the token budget,
    chunks and blocks of vLLM V1.

    ``num_levels`` queues, the first with a quantum of ``quantum_steps`` decode steps, each further one with twice as
    many. A request joins the first queue whose quantum covers its prompt (skip-join), measured in lone decode steps of
    the cost model; it goes down a queue when its quantum is used up, and up to the first one when it has not run for
    ``starvation_limit_steps``. First come, first served within a queue. A request of a higher queue that is kept out
    lets running ones of lower queues go, whose KV moves to the CPU tier.

    ``proactive_swap``: KV moves beside the steps, out as soon as a better request waits or less than ``watermark`` of
    the blocks is free, and back before the turn; otherwise a step waits for each transfer. A running request that lacks
    a block lets the last in order go at once, by a transfer that the step waits for. ``swap_exhausted`` counts those
    that are computed again because the CPU tier was full.

    What differs from the paper: service is counted in steps, not in seconds; a preempted request never stays on the GPU
    waiting for its turn, but moves out; requests in mid-prompt are not preempted for better ones.
    """

    own_end_ends_walk = False

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        num_levels: int = 6,
        quantum_steps: int = 16,
        starvation_limit_steps: int = 2_000,
        proactive_swap: bool = True,
        watermark: float = 0.02,
        enable_chunked_prefill: bool = True,
        services: Services | None = None,
        faithful: bool = False,
    ) -> None:
        super().__init__(
            kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=enable_chunked_prefill,
            faithful=faithful,
        )
        quanta = [quantum_steps << level for level in range(num_levels)]
        self.levels = Levels(quanta, starvation_limit_steps, services)
        self.proactive = proactive_swap
        self.reserve_blocks = int(watermark * kv.num_blocks) if proactive_swap else 0
        self.swap_exhausted = 0
        self.waiting: RankedQueue = RankedQueue(level_rank)
        self._away = RankedQueue(level_rank)
        self._arriving: dict[RequestId, LevelRow] = {}
        self._landed: list[LevelRow] = []
        self._given_up: set[RequestId] = set()
        self._transfers: list[Transfer] = []
        self._forced = False

    # -- levels ------------------------------------------------------------------------------------------------------

    def new_row(self, request: Request) -> Row:
        """A new request, in the queue whose quantum covers its prompt."""
        row = LevelRow(request)
        self.levels.place(row, self.decode.steps)
        self.levels.queue(row, self._step)
        return row

    def _decoding(self) -> Iterable[LevelRow]:
        """Decoding rows, each in its queue."""
        steps = self.decode.steps
        for row in self.decode.rows.values():
            assert isinstance(row, LevelRow)
            self.levels.settle(row, steps)
            yield row

    def _promote(self) -> None:
        """Those that starve go to the first queue."""
        for row in self.levels.pop_starved(self._step):
            queue = next((queue for queue in (self.waiting, self._away) if row in queue), None)
            if queue is not None:
                queue.remove(row)
            self.levels.promote(row, self.decode.steps)
            if queue is not None:
                queue.append(row)

    # -- aborts and transfers ----------------------------------------------------------------------------------------

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request, wherever it is. Blocks that a transfer writes to are free when it is done."""
        row = self.swapped.pop(request_id, None)
        if not isinstance(row, LevelRow):
            waiting = find(self.waiting, request_id)
            if waiting is not None:
                waiting.queued = -1
            return super().on_abort(request_id)
        row.queued = -1
        if request_id in self._arriving:
            self._given_up.add(request_id)
        elif row in self._landed:
            self._landed.remove(row)
            self.kv.close(request_id)
        else:
            self.kv.close_swapped(request_id)
            if row in self._away:
                self._away.remove(row)
        return row.num_tokens - row.prompt_tokens

    def on_transfer_done(self, transfer: Transfer) -> None:
        """A request's KV is away, or back."""
        if transfer.kind == "in":
            row = self._arriving.pop(transfer.id)
            if transfer.id in self._given_up:
                self._given_up.remove(transfer.id)
                self.kv.close(transfer.id)
            else:
                self._landed.append(row)
        elif transfer.id in self.swapped:
            self._away.append(self.swapped[transfer.id])

    def detach(self, row: Row) -> None:
        """Off the running list, in the queue that it has reached."""
        if row.is_decoding and isinstance(row, LevelRow):
            self.levels.settle(row, self.decode.steps)
        super().detach(row)

    # -- steps -------------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Make way for better requests, run those that run, let in the best of those that do not."""
        self._transfers = []
        if self._paused:
            self.unpause()
        elif not (self.waiting or self.swapped or self.partial) and self._is_easy() and not self._is_short():
            self._plan_preempted, self._joins = False, []
            return self.quiet_plan()
        self._new_chunks, self._joins, self._preempted, self._rejected = [], [], [], []
        self._budget = self.max_num_batched_tokens
        self._forced = False
        if self.waiting or self.swapped:
            self._promote()
        self._make_way()
        self._schedule_running()
        self._land()
        if not self._forced:
            self._let_in()
        return self._step_plan()

    def _step_plan(self) -> StepPlan | Idle:
        self._plan_preempted = bool(self._preempted)
        rows = bool(self.decode.rows or self._new_chunks)
        if not rows and not self._preempted and not self._transfers:
            return self.idle("transfers" if self.kv.in_transit else "no_requests", rejected=self._rejected)
        return self.make_plan(
            decode=rows,
            chunks=self._new_chunks,
            joins=self._joins,
            grants=self._grants,
            preempted=self._preempted,
            rejected=self._rejected,
            transfers=self._transfers,
            limited_by=self._limit() if self.waiting else "swapped" if self.swapped else "arrivals",
        )

    def horizon(self) -> Horizon:
        """Until a block is short, a running request goes down a queue, or a waiting one starves, where any of these
        matters."""
        if self._plan_preempted or self._paused or self._landed or self._joins:
            return Horizon(0, True)
        is_short, contended = self._is_short(), bool(self.waiting or self.swapped)
        if is_short and self._next_to_retreat() is not None:
            return Horizon(0, True)
        steps = self.decode.free_steps(max(0 if is_short else self.reserve_blocks, self._num_in_sight()))
        if contended or is_short:
            steps = min(steps, self.levels.steps_to_demotion(self._decoding(), self.decode.steps) - 1)
        if contended:
            steps = min(steps, self.levels.steps_to_promotion(self._step) - 1)
        return Horizon(max(steps, 0), True)

    def _num_in_sight(self) -> int:
        """Free blocks that, with those transfers under way will leave, just let in the best of those that do not run;
        none where they do not suffice. Below that others have to make way."""
        best = self._best()
        if best is None or self._num_seats() < 1:
            return 0
        wanted = self._blocks_to_enter(best) - self._num_coming()
        return wanted if wanted <= self.kv.num_free else 0

    def _is_short(self) -> bool:
        """True if fewer blocks are free, or will be, than are kept for those to come."""
        return self.kv.num_free + self._num_coming() < self.reserve_blocks

    def _num_coming(self) -> int:
        """Blocks that transfers under way will leave."""
        return sum(len(transfer.src) for transfer in self.kv.in_transit.values() if transfer.kind == "out")

    # -- preemption --------------------------------------------------------------------------------------------------

    def _make_way(self) -> None:
        """Swap out running requests of lower queues than the best of those that do not run, if that lets it in; and
        those below the first queue while blocks are short."""
        best = self._best()
        if best is not None:
            self._make_way_for(best)
        while self._is_short() and (row := self._next_to_retreat()) is not None:
            self._swap_out(row, blocking=False)

    def _best(self) -> LevelRow | None:
        """The first of those that do not run."""
        best = min((queue[0] for queue in (self.waiting, self._away) if queue), key=level_rank, default=None)
        assert best is None or isinstance(best, LevelRow)
        return best

    def _num_seats(self) -> int:
        """Requests that may run beside those that do or are on their way."""
        return self.max_num_seqs - len(self.running) - len(self._arriving) - len(self._landed)

    def _next_to_retreat(self) -> LevelRow | None:
        """The last in order of those that run, if it may go where blocks are short: it is below the first queue, does
        not run alone, and the CPU tier has room."""
        row = max(self._decoding(), key=level_rank, default=None)
        if row is None or row.level == 0 or len(self.running) < 2:
            return None
        return row if len(self.kv.tables[row.id]) <= self.kv.cpu_pool.num_free else None

    def _make_way_for(self, best: LevelRow) -> None:
        """Swap out the worst rows until ``best`` fits; nobody if it never would."""
        seats = self._num_seats()
        tokens = self.max_num_batched_tokens - len(self.decode.rows)
        free = self.kv.num_free + self._num_coming() - self.decode.num_needed - self._blocks_to_enter(best)
        if seats > 0 and tokens > 0 and free >= 0:
            return
        rows = sorted([row for row in self._decoding() if row.level > best.level], key=level_rank)
        leaving: list[LevelRow] = []
        while seats < 1 or tokens < 1 or free < 0:
            if not rows:
                return
            leaving.append(row := rows.pop())
            seats, tokens = seats + 1, tokens + 1
            free += len(self.kv.tables[row.id]) + self.decode.needs_block(row)
        for row in leaving:
            if not self._swap_out(row, blocking=not self.proactive):
                return

    def _blocks_to_enter(self, row: LevelRow) -> int:
        """Free blocks that a request wants to see before it runs: those of its tokens. If its KV only has to come back
        to others, one more for each that is on its way too, and those that are kept for new requests."""
        blocks = self.kv.blocks_for(row.num_tokens)
        on_way = len(self._arriving) + len(self._landed)
        if row.id in self.swapped and (self.running or on_way):
            blocks += 1 + on_way + self.reserve_blocks
        return blocks

    def _swap_out(self, row: LevelRow, *, blocking: bool) -> bool:
        """Move a decoding row to the CPU tier; False if that has no room."""
        if len(self.kv.tables[row.id]) > self.kv.cpu_pool.num_free:
            return False
        self.detach(row)
        self._transfers.append(self.kv.swap_out(row.id, blocking=blocking))
        self._preempted.append((row.id, "swap"))
        self.swapped[row.id] = row
        self.levels.queue(row, self._step)
        if blocking:
            self._away.append(row)
        return True

    def _preempt(self, row: Row) -> None:
        """A block is missing: the step waits until this row's blocks are free."""
        self._forced = True
        assert isinstance(row, LevelRow)
        if row.is_decoding and not self._has_grant(row):
            if self._swap_out(row, blocking=True):
                return
            self.swap_exhausted += 1
        super()._preempt(row)
        self.levels.queue(row, self._step)

    def _has_grant(self, row: Row) -> bool:
        """True for a decoding row that this step has given a block which holds nothing yet."""
        return len(self.kv.tables[row.id]) > self.kv.blocks_for(self.decode.num_tokens(row) - 1)

    def _victim(self) -> Row:
        """The last in order of those that run."""
        for _ in self._decoding():
            pass
        return max(self.running.values(), key=level_rank)

    def _outgrown(self, row: Row) -> None:
        """Alone on the running list; but others may hold blocks, back and not yet running, or on their way."""
        if self._landed or self.kv.in_transit:
            self._preempt(row)
        else:
            super()._outgrown(row)

    # -- those that do not run ---------------------------------------------------------------------------------------

    def _land(self) -> None:
        """Requests whose KV is back run again as soon as there is a block for their next token."""
        while self._landed and self._budget > 0:
            row = self._landed[0]
            if not self._resume(row):
                return
            del self._landed[0]

    def _resume(self, row: LevelRow) -> bool:
        if (row.num_tokens - 1) % self.kv.block_size == 0 and not self.kv.num_free:
            return False
        del self.swapped[row.id]
        row.queued = -1
        self.enter(row)
        self.decode.join(row)
        if self.decode.needs_block(row):
            self.kv.extend(row.id, 1)
        self._joins.append((row.id, tuple(self.kv.tables[row.id])))
        self._budget -= 1
        return True

    def _let_in(self) -> None:
        """The best of those that wait and those that are away, one after the other, until one does not fit. Nobody's KV
        comes back in a step in which another's goes."""
        goes_out = bool(self._transfers)
        while True:
            while self._away and not goes_out and self._is_before(self._away[0]) and self._fetch(self._away[0]):
                pass  # each one that is fetched makes the next one the first
            held = len(self.waiting)
            if held and not (self._away and self._is_before(self._away[0])):
                self._admit()
            if len(self.waiting) == held:
                return

    def _is_before(self, row: Row) -> bool:
        return not self.waiting or level_rank(row) < level_rank(self.waiting[0])

    def _fetch(self, row: Row) -> bool:
        """Let a request's KV come back; False if it does not fit."""
        assert isinstance(row, LevelRow)
        if self.kv.blocks_for(row.num_tokens) > self.kv.num_blocks:
            self._drop(row)
            return True
        on_way = len(self._arriving) + len(self._landed)
        if len(self.running) + on_way >= self.max_num_seqs or self._budget < 1:
            return False
        if self._blocks_to_enter(row) > self.kv.num_free:
            return False
        self._away.popleft()
        self._transfers.append(self.kv.swap_in(row.id, blocking=not self.proactive))
        if self.proactive:
            self._arriving[row.id] = row
        else:
            self._resume(row)
        return True

    def _drop(self, row: LevelRow) -> None:
        """All of the pool could not hold its next token."""
        self._away.remove(row)
        del self.swapped[row.id]
        self.kv.close_swapped(row.id)
        row.queued = -1
        self._rejected.append(Finish(row.id, "kv_capacity", row.num_tokens - row.prompt_tokens))

    def enter(self, row: Row) -> None:
        """It runs."""
        assert isinstance(row, LevelRow)
        row.queued = -1
        super().enter(row)

    def _can_open(self, row: Row, num_blocks: int, hits: object) -> bool:
        """True if the head of the queue may start: it has a seat beside those on their way, and nobody better that is
        away comes first."""
        if self._num_seats() < 1:
            return False
        if self._away and not level_rank(row) < level_rank(self._away[0]):
            return False
        return self.kv.can_open(num_blocks)

    def _refuse_head(self) -> bool:
        """Only where nobody holds a block and its first chunk does not fit."""
        kv = self.kv
        chunk = min(self.waiting[0].num_tokens, self._budget, self.chunk_limit)
        if kv.num_free < kv.num_blocks or kv.blocks_for(chunk) <= kv.num_free:
            return False
        return super()._refuse_head()
