"""SGLang with overlap: each plan is made before the result of the one before is known.

A request that is computed again forgets the token in flight.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from policies.core.engine import Engine
from policies.core.errors import ContractError
from policies.core.plan import Finish, StepPlan, StepResult
from policies.core.request import Request
from tests.ahead_run import AheadRun, scripts
from tests.mirror_run import Guesses, Item
from tests.scripts import sizes
from tests.sglang_modes import MODES, RETRACTION, check, sglang
from tests.variants import Size


@pytest.mark.parametrize("name", MODES)
@given(size=sizes(), script=scripts())
def test_plans_made_ahead_run_every_request(name: str, size: Size, script: list[Item]) -> None:
    AheadRun(MODES[name]._replace(overlap=True), size, script, forgets=True).run()


def test_a_request_that_ends_is_run_once_more_for_nothing() -> None:
    run = AheadRun(MODES["fcfs"]._replace(overlap=True), Size(16, block_size=4), [Item(0, 5, 3, 3)], forgets=True)
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
