"""SGLang's policy: step tables worked out by hand from its rules.

tests/decision_tables.py explains the columns. FREE counts slots that need no eviction; RUNNING is the decode batch,
which the rows of a prefill join with the next pass.
"""

from __future__ import annotations

import pytest

from policies.core.errors import ConfigError, ContractError, EngineDied
from policies.core.plan import Horizon, StepPlan, StepResult
from policies.core.request import Request
from tests.sglang_modes import RETRACTION, check, sglang

# -- admission -----------------------------------------------------------------------------------------------


def test_a_freed_place_is_used_one_pass_late() -> None:
    check(
        sglang(40, seqs=3),
        """
        +A 10/5
        +B 10/10
        +C 4/3
        +D 4/3
        # A 15 < 40; B 20 < 40 - 15; C 7 > 40 - 15 - 20: the latch is set.
        0 | A:10@0* B:10@0* | 20 | C D | - | - | -
        # The merge finds nothing running and clears it. C 7 < 20 - 0.7 x (4 + 9); D would be the fourth: set again.
        1 | C:4@0* | 16 | D | A B | - | -
        2 | A:1@10* B:1@10* C:1@4* | 13 | D | A B C | - | -
        3 | A:1@11* B:1@11* C:1@5* | 10 | D | A B | - | done C
        4 | A:1@12* B:1@12* | 14 | D | A B | - | -      # this pass finds C gone and clears the latch
        5 | D:4@0* | 10 | - | A B | - | -                # 7 < 14 - 0.697 x (1 + 6)
        6 | A:1@13* B:1@13* D:1@4* | 7 | - | B D | - | done A
        7 | B:1@14* D:1@5* | 19 | - | B | - | done D
        """,
    )


def test_one_prompt_at_a_time_is_cut_and_goes_on_first() -> None:
    check(
        sglang(40, cache=True, chunk=4),
        """
        +A 9/2
        +B 3/2
        0 | A:4@0 | 36 | B | - | - | -
        1 | A:4@4 | 32 | B | - | - | -
        2 | A:1@8* B:3@0* | 28 | - | - | - | -
        3 | A:1@9* B:1@3* | 26 | - | - | - | done A B
        4 | idle
        """,
    )


def test_requests_that_never_stop_early_are_admitted_by_replaying_their_ends() -> None:
    """At 4, A holds 8 and has 5 to make; C would have 6. Of 14 free slots C takes 4, then both take 5 each until A
    ends: 0 left, and a slot a request must stay. The estimate, 10 < 14 - 0.697 x 5, would let C in."""
    steps = """
        +A 4/9
        +B 4/3
        0 | A:4@0* B:4@0* | 13 | - | - | - | -
        +C 4/6
        1 | A:1@4* B:1@4* | 11 | C | A B | - | -
        2 | A:1@5* B:1@5* | 9 | C | A | - | done B
        3 | A:1@6* | 14 | C | A | - | -
        """
    check(sglang(21, ignore_eos=True), steps + "4 | A:1@7* | 13 | C | A | - | -")
    check(sglang(21, ignore_eos=False), steps + "4 | C:4@0* | 10 | - | A | - | -")


# -- orders --------------------------------------------------------------------------------------------------


def test_dfs_weight_goes_down_the_heavier_subtree_first_and_back() -> None:
    check(
        sglang(100, cache=True, scheduling="dfs-weight", tokens=6),
        """
        +S x:3/1
        +T y:3/1
        0 | S:3@0* | 97 | T | - | - | done S             # T has 3 tokens, no fewer than the 3 left
        +A y:3,a:2/1
        +B z:2/1
        +C x:3,c:2/1
        +D x:3,d:2/1
        +E y:3/2
        +F x:3,c:2,f:1/1
        1 | C:2@3* D:2@3* | 93 | F T A B E | - | - | hit C=3, hit D=3, done C D  # C D F at x, then the root's
        2 | F:1@5* T:3@0* | 89 | A B E | - | - | hit F=5, done F T
        # A ends at y, E (whose last token is always computed) one token above it: A comes first.
        3 | A:2@3* E:1@2* B:2@0* | 84 | - | - | - | hit A=3, hit E=2, done A B
        4 | E:1@3* | 84 | - | - | - | done E              # its table holds y's own slots, so only one is new
        """,
    )


def test_lpm_puts_off_a_prompt_that_an_earlier_one_will_cache() -> None:
    check(
        sglang(400, cache=True, scheduling="lpm", tokens=60),
        """
        +A y:40,a:2/1
        +B y:40,b:2/1
        +C z:6/1
        0 | A:42@0* C:6@0* | 352 | B | - | - | done A C
        1 | B:2@40* | 350 | - | - | - | hit B=40, done B
        """,
    )


def test_longest_output_first() -> None:
    check(
        sglang(100, scheduling="lof", tokens=5),
        """
        +A 4/1
        +B 4/3
        0 | B:4@0* | 96 | A | - | - | -
        1 | A:4@0* | 92 | - | B | - | done A
        """,
    )


# -- memory --------------------------------------------------------------------------------------------------


def test_the_least_recently_used_leaf_goes_whole() -> None:
    check(
        sglang(14, cache=True),
        """
        +A 4/2
        0 | A:4@0* | 10 | - | - | - | -
        1 | A:1@4* | 9 | - | - | - | done A       # 5 tokens stay: 4 of the prompt and below them 1
        +B 4/2
        2 | B:4@0* | 5 | - | - | - | -
        3 | B:1@4* | 4 | - | - | - | done B
        +C 5/3
        4 | C:5@0* | 4 | - | - | - | -            # 1 too few: both leaves of A go, 5 tokens, as many as asked for
        5 | C:1@5* | 3 | - | C | - | -
        """,
    )


def test_retraction_takes_the_fewest_outputs_then_the_longest_prompt() -> None:
    """All have made 7: A, with the longest prompt, then C until 20 slots are free for B alone."""
    check(
        sglang(40, conservativeness=0.0),
        RETRACTION
        + """
        8 | B:1@12* | 27 | A C | B | - | preempted A C   # ratio (7 + 20)/12, at most 1
        9 | B:1@13* | 26 | A C | B | - | -
        10 | B:1@14* | 25 | A C | B | - | -               # A: 15 + 12 is not less than 26 - 4
        11 | B:1@15* | 24 | A C | B | - | -
        12 | B:1@16* | 23 | A C | - | - | done B
        13 | - | 40 | A C | - | - | -                     # a pass that only clears the latch
        14 | A:15@0* | 25 | C | - | - | -
        """,
    )


def test_the_prompt_of_a_retracted_request_stays_in_the_tree_until_it_is_needed() -> None:
    check(
        sglang(40, cache=True, conservativeness=0.0),
        RETRACTION
        + """
        # A's 6 decoded slots, then its prompt's 8, since 40 are wanted for two; then C's 6 and, 20 being free, no more.
        8 | B:1@12* | 21 | A C | B | - | preempted A C
        9 | B:1@13* | 20 | A C | B | - | -
        """,
    )


def test_the_last_request_without_a_slot_ends_the_engine() -> None:
    """No estimate counts more than 4,096 output tokens, so this one is let in: 3 + 4,096 < 4,110."""
    for faithful in (True, False):
        policy = sglang(4_110, max_model_len=9_000, faithful=faithful)
        policy.on_arrival(Request(0, 0.0, 3, 5_000))
        for _ in range(4_108):  # the prompt and 4,107 decodes fill the pool
            plan = policy.schedule(0.0)
            assert isinstance(plan, StepPlan)
            policy.on_step_end(StepResult(plan.step, 0.0, 0.0))
        if faithful:
            with pytest.raises(EngineDied, match="no KV slot left for request 0"):
                policy.schedule(0.0)
        else:
            assert policy.schedule(0.0).rejected == ((0, "kv_capacity", 4_108),)


# -- mixed steps ---------------------------------------------------------------------------------------------


def test_decodes_ride_along_behind_the_prompts_and_stay_there() -> None:
    check(
        sglang(100, chunk=5, mixed=True),
        """
        +A 3/6
        0 | A:3@0* | 97 | - | - | - | -
        1 | A:1@3* | 96 | - | A | - | -
        +B 9/3
        +C 2/2
        2 | B:4@0 A:1@4* | 91 | C | - | - | -           # A takes one of the 5 tokens
        3 | B:4@4 A:1@5* | 86 | C | - | - | -
        4 | B:1@8* C:2@0* A:1@6* | 82 | - | - | - | -
        5 | B:1@9* C:1@2* A:1@7* | 79 | - | B | - | done C A
        """,
    )


MIXED = """
    +A 2/12
    +B 2/12
    0 | A:2@0* | 18 | B | - | - | -
    1 | B:2@0* A:1@2* | 15 | - | - | - | -
    +C 11/1
    2 | C:4@0 B:1@2* A:1@3* | 9 | - | - | - | -         # 12 < 15 - 2, and nothing for what A and B will make
    3 | C:4@4 B:1@3* A:1@4* | 3 | - | - | - | -
    """


def test_a_mixed_step_does_not_retract_it_dies() -> None:
    settings = {"chunk": 6, "mixed": True, "conservativeness": 0.0}
    check(sglang(20, **settings), MIXED + "4 | EngineDied")  # type: ignore[arg-type]
    check(
        sglang(20, **settings, faithful=False),  # type: ignore[arg-type]
        MIXED
        + """
        4 | C:3@8* | 0 | - | B A | - | done C           # guarded: A and B wait
        5 | B:1@4* A:1@5* | 9 | - | B A | - | -
        """,
    )


def test_a_chunk_without_slots_starts_over_where_the_engine_dies() -> None:
    check(
        sglang(24, chunk=5, mixed=True, conservativeness=0.0, faithful=False),
        """
        +A 1/8
        +B 1/8
        +C 1/8
        0 | A:1@0* B:1@0* | 22 | C | - | - | -
        1 | C:1@0* A:1@1* B:1@1* | 19 | - | - | - | -
        +D 13/1
        2 | D:2@0 C:1@1* A:1@2* B:1@2* | 14 | - | - | - | -   # 14 < 19 - 3; three of the 5 tokens are the decodes'
        3 | D:2@2 C:1@2* A:1@3* B:1@3* | 9 | - | - | - | -
        4 | D:2@4 C:1@3* A:1@4* B:1@4* | 4 | - | - | - | -
        5 | D:2@6 | 2 | - | C A B | - | -                     # 2 left for three decodes: they wait
        6 | D:2@8 | 0 | - | C A B | - | -
        7 | C:1@4* A:1@5* B:1@5* | 7 | D | C A B | - | preempted D
        """,
    )


# -- the door and the way out --------------------------------------------------------------------------------


def test_the_door_refuses_long_prompts_and_lowers_max_tokens() -> None:
    """One request may have 18 tokens where there are 20 slots: a prompt of 14 leaves 4, which is too few, and A makes
    at most 18 - 11."""
    policy = sglang(20, fits_requests=True)
    assert policy.refusal(Request(9, 0.0, 14, 1)) == "prompt_too_long"
    assert policy.refusal(Request(9, 0.0, 13, 1)) is None
    check(
        policy,
        """
        +A 11/50
        0 | A:11@0* | 9 | - | - | - | -
        1 | A:1@11* | 8 | - | A | - | -
        2 | A:1@12* | 7 | - | A | - | -
        3 | A:1@13* | 6 | - | A | - | -
        4 | A:1@14* | 5 | - | A | - | -
        5 | A:1@15* | 4 | - | A | - | -
        6 | A:1@16* | 3 | - | - | - | done A
        """,
    )


def test_an_abort_frees_the_place_but_not_the_tokens() -> None:
    check(
        sglang(40, cache=True, seqs=2),
        """
        +A 4/9
        +B 4/9
        +C 4/9
        0 | A:4@0* B:4@0* | 32 | C | - | - | -
        1 | A:1@4* B:1@4* | 30 | C | A B | - | -
        xA
        xC
        2 | B:1@5* | 29 | - | B | - | aborted A C
        """,
    )


def test_a_head_that_no_pool_takes() -> None:
    script = """
        +A 9/9
        +B 2/2
        """
    check(sglang(15, faithful=False), script + "0 | B:2@0* | 13 | - | - | - | A=kv_capacity:0")
    check(sglang(15), script + "0 | Stuck")  # the latch is set, and nothing that runs could clear it


def test_horizon() -> None:
    policy = sglang(40, seqs=2)

    def step() -> Horizon:
        plan = policy.schedule(0.0)
        assert isinstance(plan, StepPlan)
        horizon = policy.horizon()
        policy.on_step_end(StepResult(plan.step, 0.0, 0.0))
        return horizon

    policy.on_arrival(Request(0, 0.0, 4, 30))
    assert step() == Horizon(0, True)  # a prefill
    assert step() == Horizon(35, True)  # 35 slots, one a step
    policy.on_arrival(Request(1, 0.0, 4, 2))
    policy.on_arrival(Request(2, 0.0, 4, 2))
    assert step() == Horizon(0, True)
    assert step() == Horizon(14, False)  # 29 slots, two a step; the latch hides arrivals
    with pytest.raises(ContractError, match="booked beyond the horizon"):
        policy.skip(15)


def test_an_unknown_order() -> None:
    with pytest.raises(ConfigError, match="scheduling is 'lru'; SGLang's orders are fcfs, lpm, dfs-weight, lof"):
        sglang(40, scheduling="lru")  # type: ignore[arg-type]
