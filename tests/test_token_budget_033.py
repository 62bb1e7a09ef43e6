"""vLLM V1 of 0.33.0: step tables worked out by hand from its rules, where they differ from those of 0.11.2.

tests/decision_tables.py explains the columns. All tables use blocks of 4 tokens; a pool of N usable blocks has the
ids 1..N.
"""

from __future__ import annotations

import pytest

from policies.core.kv import KvManager
from policies.systems.token_budget_033 import TokenBudget033
from policies.systems.token_budget_priority import SchedulingPolicy
from tests.decision_tables import check_script

MAX_MODEL_LEN = 64


def v033(
    num_blocks: int,
    *,
    budget: int = 64,
    chunking: bool = True,
    prefix: bool = False,
    gate: bool = True,
    threshold: int = 0,
    watermark: float = 0.0,
    order: SchedulingPolicy = "fcfs",
) -> TokenBudget033:
    return TokenBudget033(
        KvManager(num_blocks + 1, 4, enable_prefix_caching=prefix, null_block=True, unhashed_first=True),
        max_num_seqs=8,
        max_num_batched_tokens=budget,
        max_model_len=MAX_MODEL_LEN,
        scheduling_policy=order,
        enable_chunked_prefill=chunking,
        long_prefill_token_threshold=threshold,
        scheduler_reserve_full_isl=gate,
        watermark=watermark,
    )


def check(policy: TokenBudget033, script: str, *, show_blocks: bool = False) -> None:
    check_script(policy, script, max_model_len=MAX_MODEL_LEN, show_blocks=show_blocks)


# -- admission -----------------------------------------------------------------------------------------------


def test_a_request_waits_until_its_whole_prompt_fits() -> None:
    check(
        v033(4, budget=8),
        """
        +A 4/3
        +B 16/1
        0 | A:4@0* | 3 | B | A | - | -      # its first 4 tokens would fit, its 4 blocks do not
        1 | A:1@4* | 2 | B | A | - | -
        2 | A:1@5* | 2 | B | - | - | done A
        3 | B:8@0 | 2 | - | B | - | -
        4 | B:8@8* | 0 | - | - | - | done B
        """,
    )


def test_without_the_gate_the_first_chunk_decides() -> None:
    check(
        v033(4, budget=8, gate=False),
        """
        +A 4/3
        +B 16/1
        0 | A:4@0* B:4@0 | 2 | - | A B | - | -
        1 | A:1@4* | 2 | B | A | - | preempted B    # B asked for 2 more, 1 was left
        2 | A:1@5* B:7@0 | 0 | - | B | - | done A
        3 | B:8@7 | 0 | - | B | - | -
        4 | B:1@15* | 0 | - | - | - | done B
        """,
    )


def test_the_watermark_stays_free_while_others_run() -> None:
    check(
        v033(10, watermark=0.2),
        """
        +A 20/3
        +B 16/1
        0 | A:20@0* | 5 | B | A | - | -       # B would leave 1 block; int(0.2 * 11) = 2
        1 | A:1@20* | 4 | B | A | - | -       # running ones may take them
        2 | A:1@21* | 4 | B | - | - | done A
        +C 40/1
        3 | B:16@0* | 6 | C | - | - | done B
        4 | C:40@0* | 0 | - | - | - | done C  # nothing runs
        """,
    )


def test_without_chunks_a_long_prompt_hides_those_behind() -> None:
    check(
        v033(8, budget=8, chunking=False),
        """
        +A 6/1
        +B 4/1
        +C 1/1
        0 | A:6@0* | 6 | B C | - | - | done A
        1 | B:4@0* C:1@0* | 6 | - | - | - | done B C
        """,
    )


def test_the_threshold_does_not_cut_a_request_that_is_alone() -> None:
    check(
        v033(8, threshold=4),
        """
        +A 12/1
        0 | A:12@0* | 5 | - | - | - | done A
        +B 12/1
        +C 2/1
        1 | B:4@0 C:2@0* | 6 | - | B | - | done C
        2 | B:8@4* | 5 | - | - | - | done B
        """,
    )


# -- victims -------------------------------------------------------------------------------------------------


def test_by_priority_the_walk_goes_on_after_a_request_that_is_its_own_victim() -> None:
    check(
        v033(3, order="priority"),
        """
        +A 1/9 p0
        +B 3/9 p2
        0 | A:1@0* B:3@0* | 1 | - | A B | - | -
        +C 1/9 p1
        1 | A:1@1* B:1@3* C:1@0* | 0 | - | A B C | - | -
        2 | A:1@2* C:1@1* | 1 | B | A C | - | preempted B
        3 | A:1@3* C:1@2* | 1 | B | A C | - | -
        """,
    )


def test_first_come_first_served_the_last_of_the_list_gives_way() -> None:
    check(
        v033(2),
        """
        +A 4/2
        +B 4/2
        0 | A:4@0* B:4@0* | 0 | - | A B | - | -
        1 | A:1@4* | 0 | B | - | - | preempted B, done A
        2 | B:5@0* | 0 | - | - | - | done B
        """,
    )


# -- order of the free blocks --------------------------------------------------------------------------------


def test_freed_blocks_go_first_last_block_first() -> None:
    check(
        v033(6),
        """
        +A 8/1
        0 | A:8@0* | 4 | - | - | - | A+1,2, done A
        +B 12/1
        1 | B:12@0* | 3 | - | - | - | B+2,1,3, done B
        """,
        show_blocks=True,
    )


@pytest.mark.parametrize("content", ["sys:6", "6"])
def test_full_blocks_are_hashed_and_go_last(content: str) -> None:
    check(
        v033(6, prefix=True),
        f"""
        +A {content}/1
        0 | A:6@0* | 4 | - | - | - | A+1,2, done A        # free: 2 3 4 5 6 1
        +B 12/1
        1 | B:12@0* | 3 | - | - | - | B+2,3,4, done B     # free: 5 6 1 4 3 2
        +C 12/2
        2 | C:12@0* | 3 | - | C | - | C+5,6,1
        3 | C:1@12* | 2 | - | - | - | C+4, done C         # free: 4 3 2 1 6 5, block 4 with one token
        +D 4/1
        4 | D:4@0* | 5 | - | - | - | D+4, done D
        """,
        show_blocks=True,
    )


def test_a_hit_is_taken_out_of_the_middle() -> None:
    check(
        v033(6, prefix=True),
        """
        +A sys:6/1
        0 | A:6@0* | 4 | - | - | - | A+1,2, done A            # free: 2 3 4 5 6 1
        +B sys:6/1
        1 | B:2@4* | 4 | - | - | - | hit B=4, B+1,2, done B   # free: 2 3 4 5 6 1
        +C 20/1
        2 | C:20@0* | 1 | - | - | - | C+2,3,4,5,6, done C
        +D sys:6/1
        3 | D:2@4* | 4 | - | - | - | hit D=4, D+1,6, done D   # free: 6 5 4 3 2 1
        """,
        show_blocks=True,
    )


def test_a_running_request_that_the_gate_counts_with_its_hits() -> None:
    check(
        v033(5, prefix=True),
        """
        +A sys:12/9
        0 | A:12@0* | 2 | - | A | - | -
        +B sys:12,B:4/1
        +C C:12/1
        1 | A:1@12* B:4@12* | 0 | C | A | - | hit B=12, done B    # 4 blocks, 3 of them A's
        2 | A:1@13* | 1 | C | A | - | -
        """,
    )
