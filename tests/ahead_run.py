"""Drives a policy that plans ahead: each plan is made before the result of the one before is known.

The mirror runs a plan when it is submitted and tells its tokens one plan later; until then the policy cannot know who
has ended.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from hypothesis import strategies as st

from policies.core.engine import Engine
from policies.core.plan import Finish, Idle, StepPlan, StepResult
from policies.core.protocols import Policy, Services
from policies.core.request import Request, Segments
from policies.core.stops import StopCalendar, stop_of
from policies.kit.mirror import MirrorBackend
from tests.mirror_run import Guesses, Item
from tests.variants import Size


class Builder(Protocol):
    """A policy with its modes."""

    def build(self, size: Size, services: Services) -> Policy:
        """The policy with memory of that size."""


class AheadMirror(MirrorBackend):
    """Runs each plan at once. ``told`` holds, for the plans whose results are due, who gets a token and who ends.

    ``forgets``: a request that is computed again makes the token in flight again; elsewhere it keeps it.
    """

    def __init__(self, block_size: int, *, forgets: bool) -> None:
        super().__init__(block_size)
        self._forgets = forgets
        self.told: deque[tuple[StepPlan, dict[int, int], list[Finish]]] = deque()

    def submit(self, plan: StepPlan | Idle) -> int:
        """Apply a plan and run it."""
        if isinstance(plan, Idle):
            return super().submit(plan)
        for request_id, _ in plan.preempted if self._forgets else ():
            self.forget(request_id)
        ticket = super().submit(plan)
        before = {key: row.known for key, row in self.rows.items()}
        finished = self._step(plan)
        made = {key: row.known - before[key] for key, row in self.rows.items() if row.known > before[key]}
        self.told.append((plan, made, finished))
        return ticket

    def forget(self, request_id: int) -> None:
        """Take back the tokens of a request that nobody knows yet."""
        row = self.rows[request_id]
        for _, made, finished in self.told:
            row.known -= made.pop(request_id, 0)
            for finish in list(finished):
                if finish.id == request_id:
                    finished.remove(finish)
                    row.ended = False


class AheadRun:
    """One run of a script with two plans in flight; time is the number of passes."""

    def __init__(self, mode: Builder, size: Size, script: list[Item], *, forgets: bool) -> None:
        self.size, self.items = size, script
        self.policy = mode.build(size, Guesses(script))
        self.engine = Engine(self.policy)
        self.mirror = AheadMirror(self.policy.kv.block_size, forgets=forgets)
        self.calendar = StopCalendar()
        self.ends: dict[int, Finish] = {}
        self.leaving: set[int] = set()
        self.wasted = 0

    def run(self) -> None:
        """Until everybody has an end and nothing is in flight."""
        arrivals = deque(enumerate(self.items))
        aborts: list[tuple[int, int]] = []
        time = 0
        while arrivals or self.engine.num_unfinished or self.mirror.told:
            while arrivals and arrivals[0][1].step <= time:
                number, item = arrivals.popleft()
                self._arrive(number, item)
                if item.patience is not None:
                    aborts.append((time + item.patience, number))
            for due, number in aborts:
                if due == time and number not in self.ends:
                    self._abort(number)
            assert time < 3_000, "the run does not end"
            self._pass(float(time))
            time += 1
        kv = self.policy.kv
        assert self.ends.keys() == set(range(len(self.items)))
        assert not kv.tables
        assert kv.num_free == kv.num_blocks

    def _arrive(self, number: int, item: Item) -> None:
        segments: Segments = ()
        if item.group is not None:
            segments = ((f"group:{item.group}", item.shared), (f"user:{number}", item.prompt_tokens))
        prompt = sum(length for _, length in segments) or item.prompt_tokens
        request = Request(number, 0.0, prompt, item.max_tokens, segments=segments)
        refused = self.engine.add(request, 0.0)
        if refused is not None:
            self.ends[number] = refused
            return
        stop = stop_of(request, item.output_tokens, self.size.max_model_len)
        self.mirror.add(request, stop)
        self.calendar.add(number, stop)

    def _abort(self, number: int) -> None:
        self.mirror.forget(number)
        self.calendar.remove(number)
        assert self.engine.abort(number, 0.0) == Finish(number, "abort", self.mirror.end(number))
        self.ends[number] = Finish(number, "abort", 0)

    def _pass(self, now: float) -> None:
        """What an engine that overlaps does: plan, start, then look at the result of the plan before."""
        plan = self.engine.plan(now)
        for finish in plan.rejected:
            self.mirror.forget(finish.id)
            assert self.mirror.end(finish.id) == finish.num_output_tokens
            self.calendar.remove(finish.id)
            self.ends[finish.id] = finish
        self.mirror.submit(plan)
        self._check_tables(plan)
        self.policy.kv.check()
        if isinstance(plan, StepPlan):
            self.calendar.apply(plan)
        if self.mirror.told and (isinstance(plan, Idle) or len(self.mirror.told) == self.policy.max_in_flight):
            self._deliver(now)

    def _check_tables(self, plan: StepPlan | Idle) -> None:
        """Who is preempted gives its blocks back at once, and leaves the batch when its tokens in flight have come."""
        if isinstance(plan, StepPlan):
            self.leaving.update(request_id for request_id, _ in plan.preempted)
        self.leaving.difference_update(plan.leaves)
        held = {key: table for key, table in self.mirror.tables.items() if key not in self.leaving}
        assert held == self.policy.kv.tables

    def _deliver(self, now: float) -> None:
        done, made, finished = self.mirror.told.popleft()
        later = [plan for plan, _, _ in self.mirror.told]
        due = self.calendar.complete(done, 1, later)
        assert sorted(due) == sorted(finished), "the calendar of stops differs from the mirror's count"
        self.wasted += done.num_seqs + sum(chunk.emits for chunk in done.chunks) - len(made)
        for finish in self.engine.complete(StepResult(done.step, now, now + 1, finished=tuple(finished))):
            self.ends[finish.id] = finish
        self.policy.kv.check()


@st.composite
def scripts(draw: st.DrawFn) -> list[Item]:
    """Requests in order of arrival, some with a shared prefix, some given up."""
    script, step = [], 0
    for _ in range(draw(st.integers(1, 9))):
        step += draw(st.sampled_from((0, 0, 1, 2, 9)))
        output = draw(st.integers(1, 20))
        script.append(
            Item(
                step,
                draw(st.integers(1, 20)),
                output,
                draw(st.sampled_from((output, output + 5))),
                draw(st.one_of(st.none(), st.none(), st.integers(1, 20))),
                draw(st.sampled_from((None, 0, 1))),
                draw(st.integers(1, 12)),
            )
        )
    return script
