"""An account of what a policy's plans say they compute, kept from the plans and results alone, and the rules for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policies.core.plan import BatchRow, Chunk, Decode, Finish, Grant, Horizon, Idle, Queues, StepPlan, StepResult
from policies.core.request import Request, RequestId
from policies.kit.entry import Entry
from policies.kit.forms import ENDS, shown
from policies.kit.rules import Rule, RuleBroken

Tables = Mapping[RequestId, Sequence[int]]
"""Block tables by request."""

_MAX_EMPTY_PLANS = 2
"""Plans in a row that compute nothing and end nobody: some systems only preempt or drop in a step."""

_MAX_FRUITLESS_WAKES = 10_000
"""Times in a row that a policy may ask to be called again, and then plan nothing, while nothing else happens."""

_GRANTS = "pass grants=self.decode.grant() to make_plan"


class Ledger:
    """Holds each plan against the ones before it; RuleBroken names rule and request, what is wrong, and the remedy.

    ``step`` counts the steps booked. A step costs O(rows of the batch).
    """

    def __init__(self, block_size: int, *, caches_prefixes: bool) -> None:
        self.step = 0
        self._block_size, self._caches_prefixes = block_size, caches_prefixes
        self._live: dict[RequestId, Entry] = {}
        self._ended: dict[RequestId, Entry] = {}
        self._in_batch: dict[RequestId, Entry] = {}
        self._order: list[BatchRow] = []
        self._chunks: dict[RequestId, Chunk] = {}
        self._begun = 0
        self._empty_plans = self._fruitless_wakes = 0
        self._quiet_until = 0
        self._promise: tuple[int, Horizon] = (0, Horizon(0, True))

    @property
    def num_live(self) -> int:
        """Requests that came and have not ended."""
        return len(self._live)

    # -- what comes in -----------------------------------------------------------------------------------------------

    def arrive(self, request: Request) -> None:
        """A request was handed over."""
        self._fruitless_wakes = 0
        self._live[request.id] = Entry(request, may_share=self._caches_prefixes and bool(request.segments))
        if self._promise[1].arrivals_matter:
            self._quiet_until = 0

    def abort(self, request_id: RequestId, num_output_tokens: int) -> None:
        """A request was taken away; the policy says what it had produced."""
        self._quiet_until = 0
        entry = self._live.get(request_id)
        if entry is not None:
            self._end(request_id, entry)
            self._check_output(request_id, entry, num_output_tokens, "on_abort returns")

    def transfer_done(self) -> None:
        """Blocks came free."""
        self._quiet_until = self._fruitless_wakes = 0

    def _end(self, request_id: RequestId, entry: Entry) -> None:
        del self._live[request_id]
        self._ended[request_id] = entry
        self._empty_plans = self._fruitless_wakes = 0  # fewer wait

    def _check_output(self, request_id: RequestId, entry: Entry, said: int, where: str) -> None:
        made = entry.known - entry.prompt_tokens
        if said != made:
            raise RuleBroken(
                Rule.TOKENS, f"{where} {said} output tokens for request {request_id}, which has made {made}"
            )

    # -- plans -------------------------------------------------------------------------------------------------------

    def idle(self, idle: Idle, tables: Tables, now_s: float) -> None:
        """Nothing runs."""
        if idle.wake_at_s is not None and not idle.wake_at_s > now_s:
            raise RuleBroken(
                Rule.PROGRESS, f"idle until {idle.wake_at_s} s, which is not after now, {now_s} s; plan now"
            )
        if self._quiet_until > self.step and not idle.rejected:
            self._break_promise("nothing runs")
        self._leave(idle.leaves, tables, {})
        self._reject(idle.rejected)
        self._check_ended(tables, ())
        self._order, self._chunks, self._begun = [], {}, 0
        self._fruitless_wakes += idle.wake_at_s is not None and bool(self._live)
        if self._fruitless_wakes > _MAX_FRUITLESS_WAKES:
            raise RuleBroken(
                Rule.PROGRESS,
                f"request {next(iter(self._live))} waits, and {_MAX_FRUITLESS_WAKES:,} times in a row the policy asks"
                " to be called again (wake_at_s) and then plans nothing; plan a step when the time has come",
            )

    def check_queued(self, queues: Queues) -> None:
        """Nothing runs and nothing is waited for: who has not ended is in a queue, or is lost."""
        for request_id in self._live.keys() - {*queues.waiting, *queues.running, *queues.swapped}:
            raise RuleBroken(
                Rule.PLACE,
                f"request {request_id} has not ended and is in no queue; put its row back, and call"
                " super().on_arrival(request) in an on_arrival of your own",
            )

    def plan(self, plan: StepPlan, order: list[BatchRow], tables: Tables, swapped: Tables) -> None:
        """A step is about to run, its rows in ``order``; ``swapped`` are the tables outside the GPU."""
        if self._quiet_until > self.step:
            self._check_promise(plan)
        self._order, self._begun, self._fruitless_wakes = order, 1, 0
        self._chunks = {chunk.id: chunk for chunk in plan.chunks}
        self._leave(plan.leaves, tables, swapped)
        for request_id, mode in plan.preempted:
            if request_id not in plan.leaves:
                raise RuleBroken(
                    Rule.LEAVES, f"request {request_id} is preempted and does not leave the batch; self.detach(row) it"
                )
            if mode == "recompute" and request_id in self._live:
                self._live[request_id].computed, self._live[request_id].decodes = 0, False
        self._join(plan.joins, tables)
        self._grant(plan.grants, tables)
        self._reject(plan.rejected)
        _check_once("batch_order has", order)
        _check_once("chunks hold", plan.chunks)
        for row in order:
            self._check_row(row, tables)
        self._check_ended(tables, {row.id for row in order})
        self._check_all_are_rows(plan, {row.id for row in order})
        self._check_charge(plan, order)

    def _leave(self, leaves: Sequence[RequestId], tables: Tables, swapped: Tables) -> None:
        for request_id in leaves:
            entry = self._live.get(request_id) or self._ended.get(request_id)
            if entry is None or entry.held is None:
                raise RuleBroken(Rule.LEAVES, f"request {request_id} leaves the batch and never joined it")
            entry.held = None
            del self._in_batch[request_id]
            entry.may_share = self._caches_prefixes  # a row that was preempted may find what it left in the cache
            if request_id not in tables and request_id not in swapped:
                entry.computed, entry.decodes = 0, False

    def _join(self, joins: Sequence[Grant], tables: Tables) -> None:
        for request_id, blocks in joins:
            entry = self._entry(request_id, "joins")
            if entry.held is not None:
                raise RuleBroken(
                    Rule.TOLD, f"request {request_id} joins and is in the batch; later blocks go into grants"
                )
            if not isinstance(blocks, tuple):
                raise RuleBroken(Rule.TOLD, f"request {request_id} joins with {blocks!r}; give what kv.open returned")
            entry.held = 0
            self._hold(request_id, entry, blocks, tables)
            self._in_batch[request_id] = entry
            chunk = self._chunks.get(request_id)
            if chunk is not None and entry.may_share and not entry.computed:
                entry.computed = chunk.start

    def _grant(self, grants: Sequence[Grant], tables: Tables) -> None:
        for request_id, blocks in grants:
            entry = self._live.get(request_id) or self._ended.get(request_id)
            if entry is None or entry.held is None:
                raise RuleBroken(
                    Rule.TOLD, f"request {request_id} is granted blocks and never joined; put them in its join"
                )
            self._hold(request_id, entry, blocks, tables)

    def _hold(self, request_id: RequestId, entry: Entry, blocks: Sequence[int], tables: Tables) -> None:
        """A plan told of further blocks: they are those of the table."""
        before = entry.held or 0
        entry.held = before + len(blocks)
        table = tables.get(request_id)
        if table is None or not isinstance(blocks, tuple):
            return
        true = tuple(table[before : entry.held])
        if len(true) == len(blocks) and true != blocks:
            raise RuleBroken(
                Rule.TOLD,
                f"the plan gives request {request_id} the blocks {shown(blocks)}, its table has {shown(true)} there;"
                " give what kv.open and kv.extend return",
            )

    def _reject(self, rejected: Sequence[Finish]) -> None:
        for request_id, reason, num_output_tokens in rejected:
            entry = self._entry(request_id, "is rejected")
            if reason not in ENDS:
                known = ", ".join(ENDS)
                raise RuleBroken(Rule.CODE, f"request {request_id} is rejected for '{reason}'; give one of {known}")
            self._end(request_id, entry)
            self._check_output(request_id, entry, num_output_tokens, "rejected states")

    def _entry(self, request_id: RequestId, does: str) -> Entry:
        entry = self._live.get(request_id)
        if entry is None:
            what = "has ended" if request_id in self._ended else "is not among the unfinished ones"
            raise RuleBroken(Rule.PLACE, f"request {request_id} {does} and {what}")
        return entry

    # -- rows --------------------------------------------------------------------------------------------------------

    def _check_row(self, row: BatchRow, tables: Tables) -> None:
        request_id, num_tokens, context, emits = row
        if request_id in self._ended and not emits:
            return  # holds its slot until its batch ends
        entry = self._entry(request_id, "computes")
        table = tables.get(request_id)
        if table is None:
            raise RuleBroken(
                Rule.ROOM, f"request {request_id} computes without a KV table; call self.admit(row) (or kv.open)"
            )
        chunk = self._chunks.get(request_id)
        self._check_cover(request_id, len(table), context + num_tokens, is_decode=chunk is None)
        if entry.held is None:
            raise RuleBroken(
                Rule.TOLD,
                f"request {request_id} computes and never joined; put (row.id, blocks) into joins of make_plan",
            )
        if entry.held != len(table):
            raise RuleBroken(
                Rule.TOLD,
                f"the plans told of {entry.held} blocks of request {request_id}, its table has {len(table)};"
                " put its blocks at entry into joins and all later ones into grants",
            )
        if chunk is not None:
            entry.check_chunk(chunk)
        elif context != entry.computed or entry.computed + 1 != entry.known:
            raise RuleBroken(
                Rule.CHUNKS,
                f"request {request_id} decodes on {context} cached tokens, {entry.computed} of {entry.known}"
                " are computed; a row decodes once its prompt is complete",
            )

    def _check_cover(self, request_id: RequestId, blocks: int, tokens: int, *, is_decode: bool) -> None:
        room = blocks * self._block_size
        if tokens <= room:
            return
        has = f"{blocks} block{'s' * (blocks != 1)} ({room} tokens)"
        if is_decode:
            raise RuleBroken(
                Rule.ROOM, f"request {request_id} decodes its {_ordinal(tokens)} token with {has}; {_GRANTS}"
            )
        raise RuleBroken(
            Rule.ROOM,
            f"request {request_id} prefills up to its {_ordinal(tokens)} token with {has};"
            " open its table with kv.blocks_for(row.num_tokens) blocks",
        )

    def _check_ended(self, tables: Tables, computing: set[RequestId] | tuple[()]) -> None:
        """Those that ended report that they leave and free their blocks, unless they hold a slot of their batch."""
        for request_id, entry in list(self._ended.items()):
            if request_id in computing:
                continue
            if request_id in tables:
                raise RuleBroken(
                    Rule.LEAVES, f"request {request_id} has ended and keeps its blocks; call self.remove(row)"
                )
            if entry.held is not None:
                raise RuleBroken(
                    Rule.LEAVES, f"request {request_id} left the batch and is not in leaves; use make_plan, idle"
                )
            del self._ended[request_id]

    def _check_all_are_rows(self, plan: StepPlan, computing: set[RequestId]) -> None:
        """What the plan tells the backend to compute is in the batch."""
        for request_id in self._chunks.keys() - computing:
            raise RuleBroken(
                Rule.PLACE, f"request {request_id} has a chunk and is not in the batch; call self.admit(row)"
            )
        if plan.decode is Decode.ALL:
            for request_id in self._in_batch.keys() - computing:
                entry = self._live.get(request_id)
                if entry is not None and entry.decodes:
                    raise RuleBroken(
                        Rule.PLACE,
                        f"all rows decode, and request {request_id} is not in batch_order; use make_plan, and"
                        " self.pause(row) to leave a row out",
                    )

    def _check_charge(self, plan: StepPlan, order: list[BatchRow]) -> None:
        decodes = [row.context for row in order if row.id not in self._chunks]
        for name, said, least in (
            ("num_seqs", plan.num_seqs, len(decodes)),
            ("num_tokens", plan.num_tokens, sum(row.num_tokens for row in order)),
            ("sum_context", plan.sum_context, sum(decodes)),
            ("max_context", plan.max_context, max(decodes, default=0)),
        ):
            if said < least:
                raise RuleBroken(
                    Rule.CHARGE, f"the plan states {name} = {said} and its rows have {least}; make it by make_plan"
                )
        self._empty_plans = 0 if plan.num_tokens else self._empty_plans + 1
        if self._empty_plans > _MAX_EMPTY_PLANS or (not plan.num_tokens and plan.decode is Decode.ALL):
            raise RuleBroken(Rule.PROGRESS, "the plan computes nothing; return self.idle('no_requests') instead")

    # -- promises ----------------------------------------------------------------------------------------------------

    def promise(self, horizon: Horizon) -> None:
        """What the policy says of the steps after a quiet plan."""
        until = self.step + 1 + horizon.steps
        if until >= self._quiet_until:
            self._quiet_until, self._promise = until, (self.step, horizon)

    def _check_promise(self, plan: StepPlan) -> None:
        did = {
            "a request joined": plan.joins,
            "a row left": plan.leaves,
            "a row was preempted": plan.preempted,
            "a request was rejected": plan.rejected,
            "blocks were moved": plan.transfers,
            "a chunk was planned": plan.chunks,
            "rows paused": plan.decode is not Decode.ALL,
        }
        for what, changed in did.items():
            if changed:
                self._break_promise(what)

    def _break_promise(self, what: str) -> None:
        step, (steps, matter) = self._promise
        raise RuleBroken(
            Rule.HORIZON,
            f"at step {step} horizon promised {steps} steps without a decision"
            f"{'' if matter else ', whatever arrives'}, and now {what}; Horizon(0, True) is always right",
        )

    # -- results -----------------------------------------------------------------------------------------------------

    def skip(self, steps: int, grants: Sequence[Grant], tables: Tables) -> None:
        """More steps of the last plan have begun."""
        self._begun += steps
        self._grant(grants, tables)
        for row in self._order:
            entry = self._live.get(row.id)
            if entry is not None and row.emits:
                tokens = entry.computed + self._begun
                self._check_cover(row.id, len(tables[row.id]), tokens, is_decode=True)

    def book(self, result: StepResult) -> None:
        """Steps have run."""
        self.step += result.steps
        self._begun -= result.steps
        for request_id, num_tokens, _, emits in self._order:
            entry = self._live.get(request_id)
            if entry is not None:
                entry.computed += num_tokens if request_id in self._chunks else result.steps
                if emits:
                    entry.decodes = True
                    entry.known += result.emitted.get(request_id, result.steps)
        for finish in result.finished:
            self._quiet_until = 0
            if finish.id in self._live:
                self._end(finish.id, self._live[finish.id])


def _check_once(what: str, rows: Sequence[BatchRow] | Sequence[Chunk]) -> None:
    if len({row[0] for row in rows}) != len(rows):
        ids = [row.id for row in rows]
        doubled = next(request_id for request_id in ids if ids.count(request_id) > 1)
        raise RuleBroken(Rule.PLACE, f"{what} request {doubled} twice in one step; a request has one place in a step")


def _ordinal(number: int) -> str:
    """``161st``."""
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"
