"""Drives one policy from a script, the mirror backend beside it, and compares the two after every plan.

Time is the number of steps so far. ``chooser`` jumps at random within what the policy's horizon allows; without it
every step is planned, and what each horizon promised is held against the plans that follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil
from random import Random
from typing import NamedTuple

from policies.core.engine import Engine
from policies.core.errors import RunError
from policies.core.plan import Finish, Grant, Idle, StepPlan
from policies.core.protocols import Policy
from policies.core.request import Request, Segments
from policies.core.stops import StopCalendar, stop_of
from policies.kit.compare import (
    check_all_free,
    check_count,
    check_memory,
    check_output,
    check_places,
    check_sharing,
    check_tables,
    check_views,
)
from policies.kit.mirror import MirrorBackend
from policies.kit.rules import Rule, RuleBroken
from policies.kit.script import Item, content_of

_ABORT, _ARRIVAL = 0, 1
_NO_PROMISE = (-1, False)


class Seen(NamedTuple):
    """What a boundary looks like: equal in both modes wherever both stop."""

    waiting: tuple[int, ...]
    running: tuple[int, ...]
    swapped: tuple[int, ...]
    tables: dict[int, tuple[int, ...]]
    free: tuple[int, ...]


class Log(NamedTuple):
    """A run: the state at each boundary, the grants of each step, each request's end with its time, the step of its
    first computed token and of each one it gave, and how often what is hard to get right came up."""

    seen: dict[int, Seen]
    grants: dict[int, tuple[Grant, ...]]
    jumps: dict[int, tuple[int, tuple[Grant, ...]]]
    ends: dict[int, tuple[int, Finish]]
    started: dict[int, int]
    tokens: dict[int, list[int]]
    met: Counter[str]


class ScriptRun:
    """One run of a script; ``run`` does it and returns the log. RuleBroken says what the policy did wrong.

    ``max_steps`` ends a run that makes no progress.
    """

    max_steps = 1 << 40

    def __init__(
        self,
        policy: Policy,
        items: Sequence[Item],
        *,
        max_model_len: int,
        deliver_at_batch_end: bool = False,
        chooser: Random | None = None,
    ) -> None:
        self.policy, self.items = policy, items
        self.engine = Engine(policy, deliver_at_batch_end=deliver_at_batch_end)
        self.mirror = MirrorBackend(policy.kv.block_size)
        self.calendar = StopCalendar()
        self.log = Log({}, {}, {}, {}, {}, {}, Counter())
        self.time = 0
        self.stepwise = chooser is None
        self._chooser = chooser
        self._max_total_tokens = max_model_len + policy.tokens_past_length
        self._deliver_at_batch_end = deliver_at_batch_end
        self._live: set[int] = set()
        self._segments: dict[int, Segments] = {}
        self._children: dict[int, list[int]] = {}
        self._events: list[tuple[int, int, int]] = []
        self._promised = _NO_PROMISE
        for number, item in enumerate(items):
            if item.waits_for is None:
                heappush(self._events, (item.step, _ARRIVAL, number))
            else:
                self._children.setdefault(item.waits_for, []).append(number)

    def run(self) -> Log:
        """Until everybody has an end."""
        while True:
            self._look()
            self._take_in()
            plan = self._plan()
            for finish in plan.rejected:
                if finish.id not in self._live:
                    raise RuleBroken(Rule.TOKENS, f"request {finish.id} is rejected and is not among the unfinished")
                check_count(finish, self.mirror.end(finish.id))
                self.calendar.remove(finish.id)
                self._end(finish)
            ticket = self.mirror.submit(plan)
            self._check()
            if isinstance(plan, Idle):
                wakes = [] if plan.wake_at_s is None else [ceil(plan.wake_at_s)]
                if not wakes and not self._events:
                    break
                self._promised = _NO_PROMISE
                self.time = min([*wakes, *(step for step, _, _ in self._events)])
                continue
            self.check_plan(plan)
            self._note(plan)
            self.calendar.apply(plan)
            self._run_plan(plan, ticket)
        self._check_end()
        return self.log

    def _plan(self) -> StepPlan | Idle:
        if self.time > self.max_steps:
            first = min(self._live)
            raise RuleBroken(Rule.PROGRESS, f"request {first} has no end after {self.time:,} steps")
        try:
            return self.engine.plan(float(self.time))
        except RunError as error:
            raise RuleBroken(Rule.PROGRESS, str(error)) from error

    # -- what comes in -----------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        while self._events and self._events[0][0] <= self.time:
            _, kind, number = heappop(self._events)
            if kind == _ARRIVAL:
                self._arrive(number)
            elif number not in self.log.ends:
                self._abort(number)

    def _abort(self, number: int) -> None:
        produced = self.mirror.end(number)
        self.calendar.remove(number)
        queues = zip(("waiting", "running", "swapped"), self.policy.queues(), strict=True)
        self.log.met.update(f"abort {name}" for name, queue in queues if number in queue)
        finish = self.engine.abort(number, float(self.time))
        check_count(finish, produced)
        self._end(finish)
        self._promised = _NO_PROMISE

    @property
    def promised_until(self) -> int:
        """The last step within what horizon promised."""
        return self._promised[0]

    def ended(self) -> None:
        """A request has its end; for what counts steps without progress."""

    def _arrive(self, number: int) -> None:
        item = self.items[number]
        produced = {key: finish.num_output_tokens for key, (_, finish) in self.log.ends.items()}
        segments = self._segments[number] = content_of(self.items, number, self._segments, produced)
        prompt = sum(length for _, length in segments)
        shares = item.parent is not None or item.group is not None
        request = Request(
            number, float(self.time), prompt, item.max_tokens, segments=segments if shares else ()
        )
        stop = stop_of(request, item.output_tokens, self._max_total_tokens)
        refused = self.engine.add(request, float(self.time))
        if refused is not None:
            self._end(refused)
            return
        self.mirror.add(request, stop)
        self.calendar.add(number, stop)
        self._live.add(number)
        if item.patience is not None:
            heappush(self._events, (self.time + item.patience, _ABORT, number))
        if self._promised[1]:
            self._promised = _NO_PROMISE

    def _end(self, finish: Finish) -> None:
        if finish.id in self.log.ends:
            raise RuleBroken(Rule.TOKENS, f"request {finish.id} ends twice")
        self.log.ends[finish.id] = (self.time, finish)
        self._live.discard(finish.id)
        self.ended()
        for child in self._children.pop(finish.id, ()):
            heappush(self._events, (max(self.time + 1, self.items[child].step), _ARRIVAL, child))

    # -- steps -------------------------------------------------------------------------------------------------------

    def _run_plan(self, plan: StepPlan, ticket: int) -> None:
        if plan.num_seqs and self.policy.num_scheduler_steps > 1:
            self._run_group(plan, ticket)
            return
        steps = 1
        if plan.is_quiet:
            horizon, matter = self.policy.horizon()
            if self._chooser is not None:
                steps = self._chooser.randint(1, self._longest_jump(horizon, matter))
            elif self.time + horizon > self._promised[0]:
                self._promised = (self.time + horizon, matter)
        else:
            self._promised = _NO_PROMISE
        self.log.grants[self.time] = tuple(plan.grants)
        while steps:
            piece = 1
            if self._chooser is not None:
                known = self._events[0][0] - self.time if self._events else steps
                piece = self._chooser.randint(1, min(steps, known))
            self._run_piece(plan, ticket, piece)
            ticket += piece
            steps -= piece
            if steps:
                self._take_in()
                self._jumped(1, self.engine.carry_on(float(self.time)))
                self.log.met["carry_on"] += 1

    def _run_group(self, plan: StepPlan, ticket: int) -> None:
        """All steps of a plan, cut at random and where a row stops; what comes in waits."""
        self._promised = _NO_PROMISE
        self.log.grants[self.time] = tuple(plan.grants)
        end = self.time + self.policy.num_scheduler_steps
        while True:
            piece = 1
            if self._chooser is not None:
                piece = self._chooser.randint(1, min(end - self.time, self.calendar.steps_to_stop()))
            self._run_piece(plan, ticket, piece)
            ticket += piece
            if self.time == end:
                return
            self.log.grants.setdefault(self.time, ())
            self._jumped(1, self.engine.carry_on(float(self.time)))

    def _note(self, plan: StepPlan) -> None:
        met = self.log.met
        met.update(mode for _, mode in plan.preempted)
        met.update(transfer.kind for transfer in plan.transfers)
        met.update(finish.reason for finish in plan.rejected)
        joined = {key for key, _ in plan.joins}
        met["hits"] += sum(chunk.start > 0 for chunk in plan.chunks if chunk.id in joined)
        met["full"] += not self.policy.kv.num_free
        for chunk in plan.chunks:
            self.log.started.setdefault(chunk.id, self.time)

    def _longest_jump(self, horizon: int, arrivals_matter: bool) -> int:
        limit = min(horizon + 1, self.calendar.steps_to_stop())
        for time, kind, _ in self._events:
            if arrivals_matter or kind == _ABORT:
                limit = min(limit, time - self.time)
        return max(1, limit)

    def _run_piece(self, plan: StepPlan, ticket: int, steps: int) -> None:
        if steps > 1:
            self._jumped(steps - 1, self.engine.skip(steps - 1), after=1)
        result = self.mirror.collect(ticket, steps)
        due = self.calendar.complete(plan, steps)
        assert sorted(due) == sorted(result.finished), "the calendar of stops differs from the mirror's count"
        self.time += steps
        if result.finished:
            self._promised = _NO_PROMISE
        for finish in self.engine.complete(result):
            self._end(finish)
        self._live.difference_update(finish.id for finish in result.finished)
        for transfer in list(self.policy.kv.in_transit.values()):
            self.mirror.copy(transfer)
            self.engine.transfer_done(transfer)
        check_memory(self.policy.kv)

    def _jumped(self, steps: int, grants: Sequence[Grant], after: int = 0) -> None:
        self.log.jumps[self.time + after] = (steps, tuple(grants))
        self.log.met["skip"] += after
        self.mirror.extend(grants)

    # -- checks ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        kv, queues = self.policy.kv, self.policy.queues()
        tables = {key: tuple(table) for key, table in kv.tables.items()}
        self.log.seen[self.time] = Seen(*queues, tables, tuple(kv.pool.free_blocks()))

    def _check(self) -> None:
        policy, mirror = self.policy, self.mirror
        check_tables("KV", mirror.tables, policy.kv.tables)
        check_tables("CPU", mirror.cpu_tables, policy.kv.cpu_tables)
        check_memory(policy.kv)
        check_places(policy.queues(), mirror, self._live, ended_may_stay=self._deliver_at_batch_end)
        check_sharing(mirror.tables, may_share=policy.kv.caches_prefixes)

    def check_plan(self, plan: StepPlan) -> None:
        """What the step is charged with, and that load and queues say what there is."""
        check_views(plan, self.policy, self.mirror)

    def _check_end(self) -> None:
        for number in range(len(self.items)):
            if number not in self.log.ends:
                raise RuleBroken(Rule.PROGRESS, f"request {number} never ends")
        for number, (_, finish) in self.log.ends.items():
            row = self.mirror.rows.get(number)
            if row is not None:
                self.log.tokens[number] = row.token_steps
                check_output(finish, row)
        check_all_free(self.policy.kv)
