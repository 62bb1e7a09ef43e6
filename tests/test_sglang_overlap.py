"""SGLang with overlap: each plan is made before the result of the one before is known.

The mirror runs a plan when it is submitted and tells its tokens one plan later; until then the policy cannot know who
has ended. A request that is computed again forgets the token in flight.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.engine import Engine
from policies.core.errors import ContractError
from policies.core.plan import Finish, Idle, StepPlan, StepResult
from policies.core.request import Request, Segments
from policies.core.stops import StopCalendar, stop_of
from policies.kit.mirror import MirrorBackend
from tests.mirror_run import Guesses, Item
from tests.scripts import sizes
from tests.sglang_modes import MODES, RETRACTION, Mode, check, sglang
from tests.variants import Size


class AheadMirror(MirrorBackend):
    """Runs each plan at once. ``told`` holds, for the plans whose results are due, who gets a token and who ends."""

    def __init__(self) -> None:
        super().__init__(1)
        self.told: deque[tuple[StepPlan, dict[int, int], list[Finish]]] = deque()

    def submit(self, plan: StepPlan | Idle) -> int:
        """Apply a plan and run it."""
        if isinstance(plan, Idle):
            return super().submit(plan)
        for request_id, _ in plan.preempted:
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

    def __init__(self, mode: Mode, size: Size, script: list[Item]) -> None:
        self.size, self.items = size, script
        self.policy = mode.build(size, Guesses(script))
        self.engine = Engine(self.policy)
        self.mirror = AheadMirror()
        self.calendar = StopCalendar()
        self.ends: dict[int, Finish] = {}
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
        assert self.mirror.tables == self.policy.kv.tables
        self.policy.kv.check()
        if isinstance(plan, StepPlan):
            self.calendar.apply(plan)
        if self.mirror.told and (isinstance(plan, Idle) or len(self.mirror.told) == self.policy.max_in_flight):
            self._deliver(now)

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


@pytest.mark.parametrize("name", MODES)
@given(size=sizes(), script=scripts())
def test_plans_made_ahead_run_every_request(name: str, size: Size, script: list[Item]) -> None:
    AheadRun(MODES[name]._replace(overlap=True), size, script).run()


def test_a_request_that_ends_is_run_once_more_for_nothing() -> None:
    run = AheadRun(MODES["fcfs"]._replace(overlap=True), Size(16, block_size=4), [Item(0, 5, 3, 3)])
    run.run()
    assert run.ends[0] == Finish(0, "stop", 3)
    assert run.wasted == 1


def test_results_come_in_the_order_of_the_plans() -> None:
    policy = MODES["fcfs"]._replace(overlap=True).build(Size(16, block_size=4), Guesses([]))
    engine = Engine(policy)
    engine.add(Request(0, 0.0, 5, 9), 0.0)
    plans = [engine.plan(0.0), engine.plan(0.0)]
    assert [plan.step for plan in plans if isinstance(plan, StepPlan)] == [0, 1]
    assert engine.complete(StepResult(0, 0.0, 1.0)) == ()
    assert engine.complete(StepResult(1, 1.0, 2.0, finished=(Finish(0, "stop", 2),))) == (Finish(0, "stop", 2),)
    with pytest.raises(ContractError, match="result of step 2 without a plan"):
        engine.complete(StepResult(2, 2.0, 3.0))


def test_with_overlap_a_request_that_ends_runs_once_more_and_its_slot_comes_back_late() -> None:
    check(
        sglang(30, cache=True, seqs=2, overlap=True),
        """
        +A 4/3
        +B 4/6
        0 | A:4@0* B:4@0* | 22 | - | - | - | -
        1 | A:1@4* B:1@4* | 20 | - | A B | - | -
        2 | A:1@5* B:1@5* | 18 | - | A B | - | -
        3 | A:1@6* B:1@6* | 16 | - | B | - | done A      # the result of 2; A runs for nothing, its slot stays taken
        +C 20/2
        4 | B:1@7* | 15 | C | B | - | -                  # A still counts as the second request: the latch
        5 | B:1@8* | 15 | C | B | - | -                  # one taken, A's came back; 22 >= 16 + 6 - 0.696 x (6 - 4)
        6 | B:1@9* | 14 | C | - | - | done B             # and once more for B
        7 | - | 14 | C | - | - | -
        8 | C:20@0* | 10 | - | - | - | -                 # 15 free, 20 asked for: all 15 cached tokens go
        9 | C:1@20* | 9 | - | C | - | -
        """,
    )


def test_with_overlap_a_retracted_request_makes_the_token_in_flight_again() -> None:
    """Each has made 7, of which 6 are known: A comes back as a prompt of 8 + 6."""
    check(
        sglang(40, conservativeness=0.0, overlap=True),
        RETRACTION
        + """
        8 | B:1@12* | 27 | A C | B | - | preempted A C
        9 | B:1@13* | 26 | A C | B | - | -
        10 | B:1@14* | 25 | A C | B | - | -
        11 | B:1@15* | 24 | A C | B | - | -
        12 | B:1@16* | 23 | A C | B | - | -
        13 | B:1@17* | 22 | A C | - | - | done B
        14 | - | 39 | A C | - | - | -                     # one slot of B is still written
        15 | A:14@0* | 26 | C | - | - | -
        """,
    )
