"""Drives one policy from a script, the mirror backend beside it, and compares the two after every plan.

Time is the number of steps so far. ``chooser`` jumps at random within what the policy's horizon allows;
without it every step is planned, and what each horizon promised is held against the plans that follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil
from random import Random
from typing import NamedTuple

from policies.core.engine import Engine
from policies.core.plan import Finish, Grant, Idle, StepPlan
from policies.core.protocols import Policy
from policies.core.request import Request, Segments, output_segment
from policies.core.stops import StopCalendar, stop_of
from policies.kit.mirror import MirrorBackend
from policies.systems.paged_027 import Paged027
from policies.systems.static import Static
from tests.variants import Size, Variant

_ABORT, _ARRIVAL = 0, 1
_MAX_EMPTY_PLANS = 2
_NO_PROMISE = (-1, False)


class Item(NamedTuple):
    """One request of a script. ``group`` shares a prefix of ``shared`` tokens; a ``parent`` (an earlier item)
    is the turn before, whose whole conversation the prompt repeats; ``guess`` is the predicted output."""

    step: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    patience: int | None = None
    group: int | None = None
    shared: int = 0
    parent: int | None = None
    guess: int | None = None


class Seen(NamedTuple):
    """What a boundary looks like: equal in both modes wherever both stop."""

    waiting: tuple[int, ...]
    running: tuple[int, ...]
    swapped: tuple[int, ...]
    tables: dict[int, tuple[int, ...]]
    free: tuple[int, ...]


class Log(NamedTuple):
    """A run: the state at each boundary, the grants of each step, each request's end with its time, and how often
    what is hard to get right came up."""

    seen: dict[int, Seen]
    grants: dict[int, tuple[Grant, ...]]
    jumps: dict[int, tuple[int, tuple[Grant, ...]]]
    ends: dict[int, tuple[int, Finish]]
    met: Counter[str]


class Guesses:
    """Services of a script: predicted lengths may be wrong; swapping is cheaper for long requests only."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items

    def step_time_s(self, *args: object) -> float:
        """No time."""
        return 0.0

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """A large fixed part."""
        return 4.0 + pieces

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        """A second a token."""
        return float(num_tokens)

    def predict_output_len(self, request: Request) -> int:
        """The scripted guess."""
        item = self._items[request.id]
        return item.guess or item.output_tokens


class MirrorRun:
    """One run of a script; ``run`` does it and returns the log."""

    def __init__(
        self, variant: Variant, size: Size, items: Sequence[Item], chooser: Random | None = None
    ) -> None:
        self.variant, self.size, self.items = variant, size, items
        self.policy: Policy = variant.build(size, Guesses(items))
        self.engine = Engine(self.policy, deliver_at_batch_end=variant.deliver_at_batch_end)
        self.mirror = MirrorBackend(self.policy.kv.block_size)
        self.calendar = StopCalendar()
        self.log = Log({}, {}, {}, {}, Counter())
        self._chooser = chooser
        self._time = 0
        self._live: set[int] = set()
        self._segments: dict[int, Segments] = {}
        self._children: dict[int, list[int]] = {}
        self._events: list[tuple[int, int, int]] = []
        self._promised = _NO_PROMISE
        self._empty_plans = 0
        for number, item in enumerate(items):
            if item.parent is None:
                heappush(self._events, (item.step, _ARRIVAL, number))
            else:
                self._children.setdefault(item.parent, []).append(number)

    def run(self) -> Log:
        """Until everybody has an end."""
        while True:
            self._look()
            self._take_in()
            plan = self.engine.plan(float(self._time))
            for finish in plan.rejected:
                assert self.mirror.end(finish.id) == finish.num_output_tokens
                self.calendar.remove(finish.id)
                self._end(finish)
            ticket = self.mirror.submit(plan)
            self._check()
            if isinstance(plan, Idle):
                wakes = [] if plan.wake_at_s is None else [ceil(plan.wake_at_s)]
                if not wakes and not self._events:
                    break
                self._promised = _NO_PROMISE
                self._time = min([*wakes, *(step for step, _, _ in self._events)])
                continue
            self._check_plan(plan)
            self._count(plan)
            self.calendar.apply(plan)
            self._run_plan(plan, ticket)
        self._check_end()
        return self.log

    # -- what comes in ---------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        while self._events and self._events[0][0] <= self._time:
            _, kind, number = heappop(self._events)
            if kind == _ARRIVAL:
                self._arrive(number)
            elif number not in self.log.ends:
                produced = self.mirror.end(number)
                self.calendar.remove(number)
                queues = zip(("waiting", "running", "swapped"), self.policy.queues(), strict=True)
                self.log.met.update(f"abort {name}" for name, queue in queues if number in queue)
                finish = self.engine.abort(number, float(self._time))
                assert finish == Finish(number, "abort", produced)
                self._end(finish)
                self._promised = _NO_PROMISE
                self._empty_plans = 0  # what went away may have been all that the next step was to run

    def _arrive(self, number: int) -> None:
        item = self.items[number]
        segments, prompt = self._content(number)
        request = Request(number, float(self._time), prompt, item.max_tokens, segments=segments)
        max_total_tokens = self.size.max_model_len + self.policy.tokens_past_length
        stop = stop_of(request, item.output_tokens, max_total_tokens)
        refused = self.engine.add(request, float(self._time))
        if refused is not None:
            assert refused.reason == "prompt_too_long"
            self._end(refused)
            return
        self.mirror.add(request, stop)
        self.calendar.add(number, stop)
        self._live.add(number)
        if item.patience is not None:
            heappush(self._events, (self._time + item.patience, _ABORT, number))
        if self._promised[1]:
            self._promised = _NO_PROMISE

    def _content(self, number: int) -> tuple[Segments, int]:
        item = self.items[number]
        own: Segments = ((f"user:{number}", item.prompt_tokens),)
        if item.parent is not None:
            answer = self.log.ends[item.parent][1].num_output_tokens
            said = ((output_segment(item.parent), answer),) if answer else ()
            own = (*self._segments[item.parent], *said, *own)
        elif item.group is not None:
            own = ((f"group:{item.group}", item.shared), *own)
        self._segments[number] = own
        has_content = item.parent is not None or item.group is not None
        return own if has_content else (), sum(length for _, length in own)

    def _end(self, finish: Finish) -> None:
        assert finish.id not in self.log.ends, f"request {finish.id} ends twice"
        self.log.ends[finish.id] = (self._time, finish)
        self._live.discard(finish.id)
        for child in self._children.pop(finish.id, ()):
            heappush(self._events, (max(self._time + 1, self.items[child].step), _ARRIVAL, child))

    # -- steps -----------------------------------------------------------------------------------------------

    def _run_plan(self, plan: StepPlan, ticket: int) -> None:
        steps = 1
        if plan.is_quiet:
            horizon, matter = self.policy.horizon()
            if self._chooser is not None:
                steps = self._chooser.randint(1, self._longest_jump(horizon, matter))
            elif self._time + horizon > self._promised[0]:
                self._promised = (self._time + horizon, matter)
        else:
            self._promised = _NO_PROMISE
        self.log.grants[self._time] = plan.grants
        while steps:
            piece = 1
            if self._chooser is not None:
                known = self._events[0][0] - self._time if self._events else steps
                piece = self._chooser.randint(1, min(steps, known))
            self._run_piece(plan, ticket, piece)
            ticket += piece
            steps -= piece
            if steps:
                self._take_in()
                self._jumped(1, self.engine.carry_on(float(self._time)))
                self.log.met["carry_on"] += 1

    def _count(self, plan: StepPlan) -> None:
        met = self.log.met
        met.update(mode for _, mode in plan.preempted)
        met.update(transfer.kind for transfer in plan.transfers)
        met.update(finish.reason for finish in plan.rejected)
        joined = {key for key, _ in plan.joins}
        met["hits"] += sum(chunk.start > 0 for chunk in plan.chunks if chunk.id in joined)

    def _longest_jump(self, horizon: int, arrivals_matter: bool) -> int:
        limit = min(horizon + 1, self.calendar.steps_to_stop())
        for time, kind, _ in self._events:
            if arrivals_matter or kind == _ABORT:
                limit = min(limit, time - self._time)
        return max(1, limit)

    def _run_piece(self, plan: StepPlan, ticket: int, steps: int) -> None:
        if steps > 1:
            self._jumped(steps - 1, self.engine.skip(steps - 1), after=1)
        result = self.mirror.collect(ticket, steps)
        due = self.calendar.complete(plan, steps)
        assert sorted(due) == sorted(result.finished), "the calendar of stops differs from the mirror's count"
        self._time += steps
        if result.finished:
            self._promised = _NO_PROMISE
        for finish in self.engine.complete(result):
            self._end(finish)
        self._live.difference_update(finish.id for finish in result.finished)
        self.policy.kv.check()

    def _jumped(self, steps: int, grants: Sequence[Grant], after: int = 0) -> None:
        self.log.jumps[self._time + after] = (steps, tuple(grants))
        self.log.met["skip"] += after
        self.mirror.extend(grants)

    # -- checks ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        kv, queues = self.policy.kv, self.policy.queues()
        tables = {key: tuple(table) for key, table in kv.tables.items()}
        self.log.seen[self._time] = Seen(*queues, tables, tuple(kv.pool.free_blocks()))

    def _check(self) -> None:
        """Right after a plan: tables equal, blocks conserved, each request in one place."""
        policy, mirror = self.policy, self.mirror
        assert mirror.tables == policy.kv.tables
        assert mirror.cpu_tables == policy.kv.cpu_tables
        policy.kv.check()
        waiting, running, swapped = policy.queues()
        held = Counter((*waiting, *running, *swapped))
        assert max(held.values(), default=1) == 1, "a request is in two queues"
        assert held.keys() >= self._live, "a request is in no queue"
        assert all(mirror.rows[key].ended for key in held.keys() - self._live)
        assert self.variant.deliver_at_batch_end or held.keys() == self._live
        assert mirror.tables.keys() == set(running)
        assert mirror.cpu_tables.keys() == set(swapped)
        self._check_sharing()

    def _check_sharing(self) -> None:
        places = Counter(block for table in self.mirror.tables.values() for block in table)
        shared = {block for block, count in places.items() if count > 1}
        assert self.variant.caches_prefixes or not shared
        for block in shared:
            where = {table.index(block) for table in self.mirror.tables.values() if block in table}
            assert len(where) == 1, "a shared block stands at two places"

    def _check_plan(self, plan: StepPlan) -> None:
        """What the step is charged with, its limits, and that each row has exactly the blocks of its tokens."""
        rows, decodes = self.mirror.rows, self.mirror.decodes()
        contexts = [rows[key].computed for key in decodes]
        assert plan.num_seqs == len(decodes)
        assert plan.sum_context == sum(contexts)
        assert plan.max_context == max(contexts, default=0)
        prompts = [chunk.num_tokens for chunk in plan.chunks]
        pads = isinstance(self.policy, Static | Paged027) and prompts
        assert plan.num_tokens == (len(prompts) * max(prompts) if pads else len(decodes) + sum(prompts))
        assert plan.num_tokens <= getattr(self.policy, "max_num_batched_tokens", plan.num_tokens)
        assert len(decodes) + len(prompts) <= self.size.max_num_seqs
        self._empty_plans = 0 if plan.num_tokens else self._empty_plans + 1
        assert self._empty_plans <= _MAX_EMPTY_PLANS, "requests wait and no plan computes anything"
        places = [self.log.seen[self._time].running.index(key) for key, _ in plan.grants]
        assert places == sorted(places), "grants are not in running order"
        if self._chooser is None and self._time <= self._promised[0]:
            self._check_promise(plan)
        self._check_blocks(plan, set(decodes))
        self._check_load(decodes)

    def _check_promise(self, plan: StepPlan) -> None:
        changes = (plan.joins, plan.leaves, plan.preempted, plan.rejected, plan.transfers, plan.chunks)
        assert plan.is_quiet, "not quiet within the horizon"
        assert not any(changes), "a decision within the horizon"

    def _check_blocks(self, plan: StepPlan, decodes: set[int]) -> None:
        ends = {chunk.id: chunk.start + chunk.num_tokens for chunk in plan.chunks}
        for key, table in self.mirror.tables.items():
            row = self.mirror.rows[key]
            tokens = row.computed + 1 if key in decodes else ends.get(key, row.computed)
            if self.variant.blocks == "prompts" and key not in self.mirror.decoding:
                tokens = row.known
            needed = -(-tokens // self.mirror.block_size)
            if self.variant.blocks == "slots":
                assert row.ended or len(table) >= needed
            else:
                assert len(table) == needed, f"request {key} has {len(table)} blocks for {tokens} tokens"

    def _check_load(self, decodes: Sequence[int]) -> None:
        load, mirror = self.policy.load(), self.mirror
        queues = self.policy.queues()
        assert (load.waiting, load.running, load.swapped) == tuple(map(len, queues))
        assert load.free_blocks == self.policy.kv.num_free
        if decodes:
            assert load.emitting == sum(not mirror.rows[key].ended for key in decodes)

    def _check_end(self) -> None:
        kv = self.policy.kv
        assert self.engine.num_unfinished == 0
        assert self.log.ends.keys() == set(range(len(self.items)))
        for number, (_, finish) in self.log.ends.items():
            row = self.mirror.rows.get(number)
            if row is not None:
                assert finish.num_output_tokens == row.produced
                full = row.produced == row.stop.num_output_tokens
                assert full or finish.reason in ("abort", "kv_capacity", "prompt_too_long")
        assert kv.num_free == kv.num_blocks
        assert kv.cpu_pool.num_free == kv.cpu_pool.num_blocks
        assert not self.mirror.tables
        assert not self.mirror.cpu_tables
