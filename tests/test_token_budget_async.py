"""vLLM V1 0.33.0 with two steps in flight: step tables worked out by hand from its rules.

tests/decision_tables.py explains the columns. A line holds a plan and what the plan before it brought. All tables use
blocks of 4 tokens.
"""

from __future__ import annotations

import pytest
from hypothesis import given

from policies.core.kv import KvManager
from policies.core.plan import Decode, Finish, StepPlan, StepResult
from policies.core.request import Request
from policies.systems.token_budget_async import AsyncTokenBudget
from policies.systems.token_budget_priority import SchedulingPolicy
from tests.ahead_run import AheadRun, scripts
from tests.decision_tables import check_script
from tests.mirror_run import Item
from tests.scripts import sizes
from tests.variants import AHEAD, Size

MAX_MODEL_LEN = 64


def ahead(
    num_blocks: int, *, budget: int = 32, prefix: bool = False, order: SchedulingPolicy = "fcfs"
) -> AsyncTokenBudget:
    return AsyncTokenBudget(
        KvManager(num_blocks + 1, 4, enable_prefix_caching=prefix, null_block=True, unhashed_first=True),
        max_num_seqs=8,
        max_num_batched_tokens=budget,
        max_model_len=MAX_MODEL_LEN,
        scheduling_policy=order,
    )


def check(policy: AsyncTokenBudget, script: str) -> None:
    check_script(policy, script, max_model_len=MAX_MODEL_LEN)


def test_a_row_goes_on_before_its_token_is_known_but_not_beyond_its_last() -> None:
    check(
        ahead(8),
        """
        +A 4/3
        0 | A:4@0* | 7 | - | A | - | -
        1 | A:1@4* | 6 | - | A | - | -
        2 | A:1@5* | 6 | - | A | - | -
        3 | - | 6 | - | - | - | done A      # the third token was in flight
        """,
    )


def test_prompts_in_chunks_make_their_first_token_with_the_last_one() -> None:
    check(
        ahead(8, budget=6),
        """
        +A 8/2
        0 | A:6@0 | 6 | - | A | - | -
        1 | A:2@6* | 6 | - | A | - | -
        2 | A:1@8* | 5 | - | A | - | -
        3 | - | 5 | - | - | - | done A
        """,
    )


def test_blocks_of_a_finished_request_come_back_one_plan_late() -> None:
    check(
        ahead(1),
        """
        +A 4/1
        +B 4/1
        0 | A:4@0* | 0 | B | A | - | -
        1 | - | 0 | B | - | - | done A
        2 | B:4@0* | 0 | - | B | - | -
        3 | - | 0 | - | - | - | done B
        """,
    )


def test_a_preempted_request_still_gets_the_token_in_flight() -> None:
    check(
        ahead(2),
        """
        +A 4/3
        +B 4/4
        0 | A:4@0* B:4@0* | 0 | - | A B | - | -
        1 | A:1@4* | 0 | B | A | - | preempted B
        2 | A:1@5* | 0 | B | A | - | -
        3 | - | 0 | B | - | - | done A
        4 | B:5@0* | 0 | - | B | - | -      # 4 of the prompt and the token that came after it was preempted
        5 | B:1@5* | 0 | - | B | - | -
        6 | B:1@6* | 0 | - | B | - | -
        7 | - | 0 | - | - | - | done B
        """,
    )


def test_a_preempted_request_may_end_while_it_waits() -> None:
    check(
        ahead(2),
        """
        +A 4/3
        +B 4/1
        0 | A:4@0* B:4@0* | 0 | - | A B | - | -
        1 | A:1@4* | 0 | - | A | - | preempted B, done B
        2 | A:1@5* | 0 | - | A | - | -
        3 | - | 0 | - | - | - | done A
        """,
    )


def test_by_priority_a_victim_that_the_plan_holds_is_taken_out_of_it() -> None:
    check(
        ahead(2, order="priority"),
        """
        +A 2/5 p1
        0 | A:2@0* | 1 | - | A | - | -
        +B 4/3 p0
        1 | A:1@2* B:4@0* | 0 | - | A B | - | -
        2 | B:1@4* | 0 | A | B | - | preempted A    # its second token, in flight, comes in this step
        3 | B:1@5* | 0 | A | B | - | -
        4 | - | 0 | A | - | - | done B
        5 | A:4@0* | 1 | - | A | - | -
        6 | A:1@4* | 0 | - | A | - | -
        7 | A:1@5* | 0 | - | A | - | -
        8 | - | 0 | - | - | - | done A
        """,
    )


def test_what_is_in_flight_of_an_aborted_request_is_dropped() -> None:
    check(
        ahead(8),
        """
        +A 4/9
        0 | A:4@0* | 7 | - | A | - | -
        xA
        +B 4/1
        1 | B:4@0* | 7 | - | B | - | aborted A
        2 | - | 7 | - | - | - | done B
        """,
    )


def test_prefixes_can_be_hit_as_soon_as_they_are_planned() -> None:
    """As recorded from vLLM 0.33.0 with blocks of 16 tokens."""
    check(
        ahead(9, prefix=True),
        """
        +A sys:8,A:1/9
        0 | A:9@0* | 6 | - | A | - | -
        +B sys:8,B:1/9
        1 | A:1@9* B:1@8* | 5 | - | A B | - | hit B=8
        +C sys:8,C:1/9
        2 | A:1@10* B:1@9* C:1@8* | 4 | - | A B C | - | hit C=8
        """,
    )


def test_a_quiet_run_lasts_until_a_row_is_complete_with_what_is_in_flight() -> None:
    policy = ahead(8)
    policy.on_arrival(Request(0, 0.0, 4, 6))
    policy.schedule(0.0)
    plan = policy.schedule(0.0)
    assert isinstance(plan, StepPlan)
    assert (plan.decode, list(plan.grants)) == (Decode.ALL, [(0, (2,))])
    assert policy.horizon() == (4, True)  # this plan makes the second of six tokens
    assert list(policy.skip(4)) == [(0, (3,))]
    policy.on_step_end(StepResult(0, 0.0, 1.0))
    assert policy.schedule(0.0).leaves == ()
    policy.on_step_end(StepResult(1, 1.0, 6.0, steps=5, finished=(Finish(0, "stop", 6),)))
    last = policy.schedule(0.0)
    assert (last.leaves, policy.kv.num_free) == ((0,), 8)


@pytest.mark.parametrize("name", [name for name, variant in AHEAD.items() if variant.preset == "vllm-0.33-async"])
@given(size=sizes(), script=scripts())
def test_plans_made_ahead_run_every_request(name: str, size: Size, script: list[Item]) -> None:
    AheadRun(AHEAD[name], size, script, forgets=False).run()
