"""vLLM V0's chunked prefill: step tables worked out by hand from its rules.

tests/decision_tables.py explains the columns. All tables use blocks of 4 tokens.
"""

from __future__ import annotations

from policies.core.kv import KvManager
from policies.core.plan import StepPlan
from policies.systems.paged_chunked import PagedChunked
from tests.decision_tables import check_script

MAX_MODEL_LEN = 64


def chunked(num_blocks: int, *, budget: int, num_cpu_blocks: int = 0, faithful: bool = False) -> PagedChunked:
    return PagedChunked(
        KvManager(num_blocks, 4, num_cpu_blocks=num_cpu_blocks),
        max_num_seqs=8,
        max_num_batched_tokens=budget,
        max_model_len=MAX_MODEL_LEN,
        preemption_mode="swap" if num_cpu_blocks else "recompute",
        faithful=faithful,
    )


def check(policy: PagedChunked, script: str) -> None:
    check_script(policy, script, max_model_len=MAX_MODEL_LEN)


def test_chunks_ride_along_and_an_abort_of_a_half_prefilled_request_frees_its_whole_prompt() -> None:
    check(
        chunked(10, budget=6),
        """
        +A 4/4
        +B 8/2
        0 | A:4@0* B:2@0 | 7 | - | A B | - | -     # blocks of the whole prompt at admission
        1 | B:5@2 A:1@4* | 6 | - | A B | - | -
        2 | B:1@7* A:1@5* | 6 | - | A B | - | -    # the last token of a prompt is still a prefill
        +C 12/2
        3 | C:4@0 A:1@6* B:1@8* | 2 | - | C | - | done A B
        xC
        +D 4/1
        4 | D:4@0* | 9 | - | - | - | aborted C, done D
        """,
    )


def test_swapped_requests_come_back_in_front_and_pick_other_victims() -> None:
    check(
        chunked(6, budget=10, num_cpu_blocks=8),
        """
        +A 4/5
        +B 16/2
        0 | A:4@0* B:6@0 | 1+8 | - | A B | - | -
        # A takes the last block. B holds exactly its prompt's blocks and asks for none.
        1 | B:9@6 A:1@4* | 0+8 | - | A B | - | -
        2 | A:1@5* | 4+4 | - | A | B | out B=4
        3 | B:1@15* A:1@6* | 0+8 | - | B A | - | in B=4   # B finishes its prompt and now stands before A
        4 | B:1@16* | 1+6 | - | - | A | out A=2, done B
        5 | A:1@7* | 4+8 | - | - | - | in A=2, done A
        """,
    )


def test_decodes_swapped_in_are_last_in_the_batch_and_first_in_the_queue() -> None:
    check(
        chunked(4, budget=16, num_cpu_blocks=4),
        """
        +A 4/5
        +B 3/4
        +C 4/3
        0 | A:4@0* B:3@0* C:4@0* | 1+4 | - | A B C | - | -
        1 | A:1@4* B:1@3* | 1+3 | - | A B | C | out C=1
        2 | A:1@5* B:1@4* | 0+3 | - | A B | C | -
        3 | A:1@6* | 2+1 | - | A | C B | out B=2
        4 | A:1@7* C:1@4* | 0+2 | - | C | B | in C=1, done A
        5 | C:1@5* B:1@5* | 0+4 | - | - | - | in B=2, done C B
        """,
    )


HALF_PREFILLED_VICTIM = """
    +A 4/5
    +B 16/2
    0 | A:4@0* B:2@0 | 1+8 | - | A B | - | -
    1 | B:5@2 A:1@4* | 0+8 | - | A B | - | -
"""


def test_a_half_prefilled_victim_that_could_never_be_swapped_in_is_computed_again() -> None:
    # 9 tokens of B are missing; swapped out, it would need them in one step of 6.
    policy = chunked(6, budget=6, num_cpu_blocks=8)
    check(
        policy,
        HALF_PREFILLED_VICTIM
        + """
        2 | A:1@5* | 4+8 | B | A | - | preempted B
        3 | B:5@0 A:1@6* | 0+8 | - | A B | - | -
        4 | A:1@7* | 4+8 | B | - | - | preempted B, done A
        5 | B:6@0 | 2+8 | - | B | - | -
        6 | B:6@6 | 2+8 | - | B | - | -
        7 | B:4@12* | 2+8 | - | B | - | -
        8 | B:1@16* | 1+8 | - | - | - | done B
        """,
    )
    assert policy.swap_exhausted == 0


def test_the_real_engine_hangs_on_a_half_prefilled_victim() -> None:
    check(
        chunked(6, budget=6, num_cpu_blocks=8, faithful=True),
        HALF_PREFILLED_VICTIM
        + """
        2 | A:1@5* | 4+4 | - | A | B | out B=4
        3 | A:1@6* | 4+4 | - | A | B | -
        4 | A:1@7* | 4+4 | - | - | B | done A
        5 | Stuck
        """,
    )


ALONE_IN_A_FULL_POOL = """
    +A 10/2
    0 | A:4@0 | 0 | - | A | - | -
"""


def test_a_prompt_that_fills_the_pool_is_let_through() -> None:
    # Its third block has room, so A asks for one more block that it will not take.
    check(
        chunked(3, budget=4),
        ALONE_IN_A_FULL_POOL
        + """
        1 | A:4@4 | 0 | - | A | - | -
        2 | A:2@8* | 0 | - | A | - | -
        3 | - | 3 | A | - | - | preempted A      # a decode asks too, but computing it again makes a token
        4 | A:4@0 | 0 | - | A | - | -
        5 | A:4@4 | 0 | - | A | - | -
        6 | A:3@8* | 0 | - | - | - | done A
        """,
    )


def test_the_real_engine_starts_it_over_for_ever() -> None:
    check(
        chunked(3, budget=4, faithful=True),
        ALONE_IN_A_FULL_POOL
        + """
        1 | - | 3 | A | - | - | preempted A
        2 | A:4@0 | 0 | - | A | - | -
        3 | Stuck
        """,
    )


def test_rows_left_out_move_to_the_front() -> None:
    policy = chunked(20, budget=3)
    check(
        policy,
        """
        +A 1/9
        +B 1/9
        +C 1/9
        0 | A:1@0* B:1@0* C:1@0* | 17 | - | A B C | - | -
        """,
    )
    policy.max_num_batched_tokens = 2
    rows = []
    for _ in range(3):
        assert isinstance(policy.schedule(0.0), StepPlan)
        rows.append(([row.id for row in policy.batch_order()], list(policy.queues().running)))
    assert rows == [([0, 1], [2, 0, 1]), ([2, 0], [1, 2, 0]), ([1, 2], [0, 1, 2])]
