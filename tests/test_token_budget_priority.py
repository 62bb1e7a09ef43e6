"""vLLM V1 by priority (0.11.2): step tables worked out by hand from its rules.

tests/decision_tables.py explains the columns. All tables use blocks of 4 tokens; small priorities go first.
"""

from __future__ import annotations

import pytest

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.systems.token_budget_priority import PriorityTokenBudget
from tests.decision_tables import check_script

MAX_MODEL_LEN = 64


def by_priority(num_blocks: int, *, budget: int = 32, max_num_seqs: int = 8, threshold: int = 0) -> PriorityTokenBudget:
    return PriorityTokenBudget(
        KvManager(num_blocks + 1, 4, null_block=True),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=MAX_MODEL_LEN,
        long_prefill_token_threshold=threshold,
    )


def check(policy: PriorityTokenBudget, script: str) -> None:
    check_script(policy, script, max_model_len=MAX_MODEL_LEN)


def test_the_queue_is_in_order_of_priority_then_arrival_and_nobody_running_is_pushed_out() -> None:
    check(
        by_priority(8, max_num_seqs=2),
        """
        +A 4/3 p2
        +B 4/3 p1
        +C 4/1 p0
        0 | C:4@0* B:4@0* | 6 | A | B | - | done C
        +D 4/1 p1
        1 | B:1@4* D:4@0* | 5 | A | B | - | done D    # D came after A
        2 | B:1@5* A:4@0* | 5 | - | A | - | done B
        +E 4/1 p2
        +F 4/1 p0
        3 | A:1@4* F:4@0* | 5 | E | A | - | done F
        4 | A:1@5* E:4@0* | 5 | - | - | - | done A E
        """,
    )


def test_a_victim_that_the_step_has_scheduled_is_taken_out_of_it() -> None:
    check(
        by_priority(2),
        """
        +A 2/5 p1
        0 | A:2@0* | 1 | - | A | - | -
        +B 4/3 p0
        1 | A:1@2* B:4@0* | 0 | - | A B | - | -
        2 | B:1@4* | 0 | A | B | - | preempted A      # A came first in the walk
        3 | B:1@5* | 0 | A | - | - | done B
        4 | A:4@0* | 1 | - | A | - | -    # 2 of the prompt, 2 made
        5 | A:1@4* | 0 | - | A | - | -
        6 | A:1@5* | 0 | - | - | - | done A
        """,
    )


def test_the_budget_of_a_victim_goes_to_those_behind() -> None:
    check(
        by_priority(5, budget=4, threshold=2),
        """
        +A 12/1 p2
        0 | A:2@0 | 4 | - | A | - | -
        +B 3/9 p0
        1 | A:2@2 B:2@0 | 3 | - | A B | - | -
        +C 7/1 p1
        2 | A:2@4 B:1@2* C:1@0 | 1 | - | A B C | - | -
        3 | A:2@6 B:1@3* C:1@1 | 1 | - | A B C | - | -
        4 | B:1@4* C:2@2 | 2 | A | B C | - | preempted A    # A had taken 2 tokens and the last block
        """,
    )


def test_the_walk_ends_with_a_request_that_is_its_own_victim() -> None:
    check(
        by_priority(3),
        """
        +A 1/9 p0
        +B 3/9 p2
        0 | A:1@0* B:3@0* | 1 | - | A B | - | -
        +C 1/9 p1
        1 | A:1@1* B:1@3* C:1@0* | 0 | - | A B C | - | -
        2 | A:1@2* | 1 | B | A C | - | preempted B    # C is left out, though it needs no block
        3 | A:1@3* C:1@1* | 1 | B | A C | - | -       # B needs 2 blocks for its 5 tokens
        4 | A:1@4* C:1@2* | 0 | B | A C | - | -
        """,
    )


def test_a_victim_of_the_same_priority_is_the_one_that_came_last() -> None:
    check(
        by_priority(3),
        """
        +A 4/9
        +B 3/9
        +C 1/9
        0 | A:4@0* B:3@0* C:1@0* | 0 | - | A B C | - | -
        1 | A:1@4* B:1@3* | 0 | C | A B | - | preempted C
        2 | A:1@5* | 1 | B C | A | - | preempted B
        """,
    )


def test_an_aborted_request_leaves_the_queue() -> None:
    check(
        by_priority(4, max_num_seqs=1),
        """
        +A 4/9 p1
        0 | A:4@0* | 3 | - | A | - | -
        +B 4/1 p3
        +C 4/1 p2
        xB
        1 | A:1@4* | 2 | C | A | - | aborted B
        xA
        2 | C:4@0* | 3 | - | - | - | aborted A, done C
        """,
    )


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scheduling_policy is 'priorty'.*did you mean 'priority'"):
        PriorityTokenBudget(
            KvManager(4, 4),
            max_num_seqs=1,
            max_num_batched_tokens=8,
            max_model_len=8,
            scheduling_policy="priorty",  # type: ignore[arg-type]
        )
