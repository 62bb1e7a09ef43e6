"""Priorities of vLLM V0 (0.6.3): step tables worked out by hand from its rules.

tests/decision_tables.py explains the columns. All tables use blocks of 4 tokens and no watermark; small priorities go
first.
"""

from __future__ import annotations

from policies.core.kv import KvManager
from policies.systems.paged_priority import PagedPriority
from tests.decision_tables import check_script

MAX_MODEL_LEN = 64


def by_priority(num_blocks: int, *, max_num_seqs: int = 8, num_cpu_blocks: int = 0) -> PagedPriority:
    return PagedPriority(
        KvManager(num_blocks, 4, num_cpu_blocks=num_cpu_blocks),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        watermark=0.0,
        preemption_mode="swap" if num_cpu_blocks else "recompute",
        faithful=True,
    )


def check(policy: PagedPriority, script: str) -> None:
    check_script(policy, script, max_model_len=MAX_MODEL_LEN)


def test_a_better_request_pushes_a_worse_one_out_and_starts_in_the_next_step() -> None:
    check(
        by_priority(4),
        """
        +A 8/3 p1
        0 | A:8@0* | 2 | - | A | - | -
        +B 9/2 p0
        1 | - | 4 | B A | - | - | preempted A
        2 | B:9@0* | 1 | A | B | - | -
        3 | B:1@9* | 1 | A | - | - | done B
        4 | A:9@0* | 1 | - | A | - | -
        5 | A:1@9* | 1 | - | - | - | done A
        """,
    )


def test_nobody_is_pushed_out_for_one_that_fits_or_is_no_better() -> None:
    check(
        by_priority(4, max_num_seqs=2),
        """
        +A 4/9 p1
        0 | A:4@0* | 3 | - | A | - | -
        +B 4/9 p0
        1 | B:4@0* | 2 | - | A B | - | -
        +C 4/1 p1
        2 | B:1@4* A:1@4* | 0 | C | B A | - | -    # in order of rank; C came after A
        """,
    )


def test_only_as_many_as_needed_the_worst_first() -> None:
    check(
        by_priority(9, max_num_seqs=3),
        """
        +A 4/9 p2
        +B 4/9 p1
        +C 4/9 p3
        0 | A:4@0* B:4@0* C:4@0* | 6 | - | A B C | - | -
        +D 4/1 p0
        1 | B:1@4* A:1@4* | 5 | D C | B A | - | preempted C
        2 | D:4@0* | 4 | C | B A | - | done D
        3 | C:5@0* | 3 | - | B A C | - | -
        """,
    )


def test_the_queue_is_sorted_only_by_a_pass_that_starts_nobody() -> None:
    check(
        by_priority(8, max_num_seqs=1),
        """
        +A 4/1 p1
        0 | A:4@0* | 7 | - | - | - | done A
        +C 4/2 p2
        +D 4/1 p0
        1 | C:4@0* | 7 | D | C | - | -              # the present order
        2 | - | 8 | D C | - | - | preempted C
        3 | D:4@0* | 7 | C | - | - | done D
        4 | C:5@0* | 6 | - | - | - | done C
        """,
    )


def test_an_arrival_behind_another_head_pushes_out_one_step_later() -> None:
    check(
        by_priority(8, max_num_seqs=1),
        """
        +A 4/9 p2
        0 | A:4@0* | 7 | - | A | - | -
        +X 4/1 p3
        +B 4/1 p0
        1 | A:1@4* | 6 | B X | A | - | -            # X, the head, is worse than A
        2 | - | 8 | B A X | - | - | preempted A
        3 | B:4@0* | 7 | A X | - | - | done B
        4 | A:6@0* | 6 | X | A | - | -
        """,
    )


def test_the_walk_takes_the_worst_not_the_latest() -> None:
    check(
        by_priority(3),
        """
        +A 4/9 p2
        +B 4/9 p0
        0 | A:4@0* B:4@0* | 1 | - | A B | - | -
        1 | B:1@4* | 1 | A | B | - | preempted A
        """,
    )


def test_while_one_is_swapped_out_nobody_starts_but_the_worst_still_give_way() -> None:
    check(
        by_priority(3, num_cpu_blocks=4),
        """
        +A 4/3 p1
        +B 4/9 p2
        0 | A:4@0* B:4@0* | 1+4 | - | A B | - | -
        1 | A:1@4* | 1+3 | - | A | B | out B=1
        +C 12/1 p0
        2 | B:1@4* | 1+4 | C A | B | - | preempted A, in B=1
        3 | - | 3+4 | C A B | - | - | preempted B
        4 | C:12@0* | 0+4 | A B | - | - | done C
        """,
    )
