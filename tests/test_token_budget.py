"""vLLM V1's policy: step tables worked out by hand from its rules.

tests/decision_tables.py explains the columns. All tables use blocks of 4 tokens. Block 0 is the null block,
so a pool of N usable blocks has the ids 1..N.
"""

from __future__ import annotations

import pytest

from policies.core.kv import KvManager
from policies.systems.token_budget import TokenBudget
from tests.decision_tables import check_script

MAX_MODEL_LEN = 64


def token_budget(
    num_blocks: int,
    *,
    budget: int = 32,
    max_num_seqs: int = 8,
    prefix: bool = False,
    chunking: bool = True,
    threshold: int = 0,
    faithful: bool = False,
) -> TokenBudget:
    return TokenBudget(
        KvManager(num_blocks + 1, 4, enable_prefix_caching=prefix, null_block=True),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=MAX_MODEL_LEN,
        enable_chunked_prefill=chunking,
        long_prefill_token_threshold=threshold,
        faithful=faithful,
    )


def check(policy: TokenBudget, script: str, *, show_blocks: bool = False) -> None:
    check_script(policy, script, max_model_len=MAX_MODEL_LEN, show_blocks=show_blocks)


# -- aborts --------------------------------------------------------------------------------------------------


def test_aborts_of_a_waiting_a_half_prefilled_and_a_running_request() -> None:
    check(
        token_budget(8, budget=8),
        """
        +A 4/9
        +B 12/2
        +C 4/1
        0 | A:4@0* B:4@0 | 6 | C | A B | - | -    # blocks of the chunk only
        xC                                        # waiting
        xB                                        # 4 of 12 tokens computed, 1 block held
        1 | A:1@4* | 6 | - | A | - | aborted C B
        xA                                        # running, 2 blocks
        +D 4/1
        2 | D:4@0* | 7 | - | - | - | aborted A, done D
        """,
    )


def test_abort_of_a_preempted_request() -> None:
    check(
        token_budget(2),
        """
        +A 4/3
        +B 4/3
        0 | A:4@0* B:4@0* | 0 | - | A B | - | -
        1 | A:1@4* | 0 | B | A | - | preempted B
        xB
        2 | A:1@5* | 0 | - | - | - | aborted B, done A
        """,
    )


# -- preemption under small chunks ---------------------------------------------------------------------------


def test_a_half_prefilled_request_without_a_block_for_its_next_chunk_starts_over() -> None:
    check(
        token_budget(5, budget=6),
        """
        +A 4/8
        +B 16/1
        0 | A:4@0* B:2@0 | 3 | - | A B | - | -
        1 | A:1@4* B:5@2 | 1 | - | A B | - | -     # one new block each
        2 | A:1@5* B:5@7 | 0 | - | A B | - | -
        3 | A:1@6* | 3 | B | A | - | preempted B   # it stands last, so it is its own victim
        4 | A:1@7* B:5@0 | 1 | - | A B | - | -
        5 | A:1@8* | 2 | B | A | - | preempted B   # A took the last block
        6 | A:1@9* B:5@0 | 0 | - | A B | - | -
        7 | A:1@10* | 2 | B | - | - | preempted B, done A
        8 | B:6@0 | 3 | - | B | - | -
        9 | B:6@6 | 2 | - | B | - | -
        10 | B:4@12* | 1 | - | - | - | done B
        """,
    )


def test_a_decode_takes_the_block_of_a_half_prefilled_request_behind_it() -> None:
    check(
        token_budget(2, budget=8),
        """
        +A 4/2
        +B 8/1
        0 | A:4@0* B:4@0 | 0 | - | A B | - | -
        1 | A:1@4* | 0 | B | - | - | preempted B, done A
        2 | B:8@0* | 0 | - | - | - | done B
        """,
    )


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    check(
        token_budget(3),
        """
        +A 4/2
        +B 4/3
        +C 4/3
        0 | A:4@0* B:4@0* C:4@0* | 0 | - | A B C | - | -
        +D 1/1
        1 | A:1@4* | 1 | B C D | - | - | preempted C B, done A   # C for A; B for itself, being last
        2 | B:5@0* | 1 | C D | B | - | -        # C needs 2 blocks; D, which would fit, waits behind
        3 | B:1@5* | 1 | C D | - | - | done B
        4 | C:5@0* D:1@0* | 0 | - | C | - | done D
        5 | C:1@5* | 1 | - | - | - | done C
        """,
    )


def test_a_token_budget_below_the_decodes_serves_the_first_rows() -> None:
    policy = token_budget(8, budget=3)
    check(
        policy,
        """
        +A 1/9
        +B 1/9
        +C 1/9
        0 | A:1@0* B:1@0* C:1@0* | 5 | - | A B C | - | -
        """,
    )
    policy.max_num_batched_tokens = 2
    policy.schedule(1.0)
    assert [row.id for row in policy.batch_order()] == [0, 1]


def test_threshold_cuts_chunks_and_lets_later_prompts_in() -> None:
    check(
        token_budget(8, budget=16, threshold=4),
        """
        +A 10/1
        +B 6/1
        0 | A:4@0 B:4@0 | 6 | - | A B | - | -
        1 | A:4@4 B:2@4* | 4 | - | A | - | done B
        2 | A:2@8* | 5 | - | - | - | done A
        """,
    )


def test_without_chunking_a_prompt_beyond_the_budget_is_passed_over_and_keeps_its_place() -> None:
    check(
        token_budget(8, budget=8, chunking=False),
        """
        +A 6/2
        +B 4/1
        +C 2/1
        0 | A:6@0* C:2@0* | 5 | B | A | - | done C
        1 | A:1@6* B:4@0* | 5 | - | - | - | done A B
        """,
    )


# -- prefix cache --------------------------------------------------------------------------------------------

CONTENT = pytest.mark.parametrize("b", ["b:8", "8"], ids=["segments", "private"])
"""A request that shares nothing finds its own blocks again, whether or not its content has a name."""


@CONTENT
def test_a_resumed_request_hits_its_surviving_blocks(b: str) -> None:
    check(
        token_budget(5, prefix=True),
        f"""
        +A a:8/2
        +B {b}/2
        0 | A:8@0* B:8@0* | 1 | - | A B | - | A+1,2, B+3,4
        1 | A:1@8* | 2 | B | - | - | A+5, preempted B, done A
        # Free queue: 4 3 (B), 5 2 1 (A). 8 of B's 9 tokens are in 3 and 4; the last is always computed.
        2 | B:1@8* | 2 | - | - | - | hit B=8, B+3,4,5, done B
        """,
        show_blocks=True,
    )


@CONTENT
def test_a_resumed_request_lost_the_tail_of_its_blocks(b: str) -> None:
    check(
        token_budget(5, prefix=True),
        f"""
        +A a:8/6
        +B {b}/2
        0 | A:8@0* B:8@0* | 1 | - | A B | - | A+1,2, B+3,4
        1 | A:1@8* | 2 | B | A | - | A+5, preempted B
        # B hits 3 and 4 and needs one more; hits in the free queue count as needed: 3 of 2.
        2 | A:1@9* | 2 | B | A | - | -
        3 | A:1@10* | 2 | B | A | - | -
        4 | A:1@11* | 2 | B | A | - | -
        5 | A:1@12* | 1 | B | - | - | A+4, done A     # the tail of B was freed first and goes first
        # Free queue: 3 (B), 4 5 2 1 (A).
        6 | B:5@4* | 2 | - | - | - | hit B=4, B+3,4,5, done B
        """,
        show_blocks=True,
    )


@CONTENT
def test_a_half_prefilled_victim_hits_the_chunks_it_had_computed(b: str) -> None:
    prompt = b.replace("8", "16")
    check(
        token_budget(5, budget=6, prefix=True),
        f"""
        +A a:4/5
        +B {prompt}/1
        0 | A:4@0* B:2@0 | 3 | - | A B | - | A+1, B+2
        1 | A:1@4* B:5@2 | 1 | - | A B | - | A+3, B+4
        2 | A:1@5* B:5@7 | 0 | - | A B | - | B+5
        3 | A:1@6* | 3 | B | A | - | preempted B
        4 | A:1@7* | 3 | B | - | - | done A          # 3 hits in the free queue and 1 new block: 4 of 3
        5 | B:4@12* | 1 | - | - | - | hit B=12, B+2,4,5,3, done B
        """,
        show_blocks=True,
    )


def test_output_computed_before_a_preemption_is_hit_too() -> None:
    check(
        token_budget(5, prefix=True),
        """
        +A 4/7
        +B 3/8
        0 | A:4@0* B:3@0* | 3 | - | A B | - | A+1, B+2
        1 | A:1@4* B:1@3* | 2 | - | A B | - | A+3
        2 | A:1@5* B:1@4* | 1 | - | A B | - | B+4
        3 | A:1@6* B:1@5* | 1 | - | A B | - | -
        4 | A:1@7* B:1@6* | 1 | - | A B | - | -
        5 | A:1@8* B:1@7* | 0 | - | A B | - | A+5
        6 | A:1@9* | 2 | B | - | - | preempted B, done A
        # B knows 3 + 6 tokens; 8 of them lie in 2 and 4, of which 5 are output.
        7 | B:1@8* | 2 | - | B | - | hit B=8, B+2,4,5
        8 | B:1@9* | 2 | - | - | - | done B
        """,
        show_blocks=True,
    )


def test_a_request_hits_blocks_that_another_one_fills_in_the_same_step() -> None:
    check(
        token_budget(8, prefix=True),
        """
        +A sys:8,a:2/2
        +B sys:8,b:3/2
        0 | A:10@0* B:3@8* | 4 | - | A B | - | hit B=8, A+1,2,3, B+1,2,4
        1 | A:1@10* B:1@11* | 4 | - | - | - | done A B
        """,
        show_blocks=True,
    )


def test_a_shared_block_is_free_when_the_last_holder_is_gone() -> None:
    check(
        token_budget(4, prefix=True),
        """
        +A sys:4,a:2/3
        +B sys:4,b:2/3
        0 | A:6@0* B:2@4* | 1 | - | A B | - | hit B=4, A+1,2, B+1,3
        xA
        1 | B:1@6* | 2 | - | B | - | aborted A       # 1 is B's too
        xB
        +C sys:4,c:1/1
        2 | C:1@4* | 2 | - | - | - | hit C=4, C+1,4, aborted B, done C
        """,
        show_blocks=True,
    )


# -- endings -------------------------------------------------------------------------------------------------


def test_a_request_that_outgrows_the_pool_ends_with_kv_capacity() -> None:
    check(
        token_budget(2),
        """
        +A 7/9
        0 | A:7@0* | 0 | - | A | - | -
        +B 4/1
        1 | A:1@7* | 0 | B | A | - | -
        2 | B:4@0* | 1 | - | - | - | A=kv_capacity:2, done B
        """,
    )


OUTGROWN_BEFORE_ANOTHER = """
    +A 24/1
    +B 2/9
    0 | A:8@0 B:2@0* | 2 | - | A B | - | -
    1 | A:8@8 B:1@2* | 0 | - | A B | - | -
"""


def test_a_request_that_takes_others_down_with_it_does_not_stop_them() -> None:
    # A needs 6 of 5 blocks; it preempts B before that is clear.
    check(
        token_budget(5, budget=16, threshold=8),
        OUTGROWN_BEFORE_ANOTHER
        + """
        2 | - | 5 | B | - | - | preempted B, A=kv_capacity:0
        3 | B:4@0* | 4 | - | B | - | -
        """,
    )


def test_the_real_engine_starts_such_a_request_over_for_ever() -> None:
    check(
        token_budget(5, budget=16, threshold=8, faithful=True),
        OUTGROWN_BEFORE_ANOTHER
        + """
        2 | - | 5 | A B | - | - | preempted B A
        3 | A:8@0 B:4@0* | 2 | - | A B | - | -
        4 | A:8@8 | 1 | B | A | - | preempted B
        5 | Stuck
        """,
    )


def test_a_prompt_without_room_for_output_is_refused_at_the_door() -> None:
    check(
        token_budget(40),
        """
        +A 64/1
        +B 63/9
        0 | B:32@0 | 32 | - | B | - | -
        1 | B:31@32* | 24 | - | - | - | done B
        2 | idle
        """,
    )
