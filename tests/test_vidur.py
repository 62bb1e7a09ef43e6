"""Vidur's schedulers, where they differ from Sarathi-Serve's: step tables worked out by hand from its rules.

tests/decision_tables.py explains the columns. Pools are so small that the watermark, 1 % of the blocks, is none.
"""

from __future__ import annotations

from typing import Literal

import pytest

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.systems.vidur import Vidur
from tests.decision_tables import check_script
from tests.stepping import Stepper

MAX_TOKENS = 64


def vidur(
    num_blocks: int,
    tokens: int,
    scheduler: Literal["sarathi", "vllm", "orca"] = "sarathi",
    *,
    max_tokens: int = MAX_TOKENS,
    faithful: bool = False,
) -> Vidur:
    """Blocks of 4 tokens."""
    return Vidur(
        KvManager(num_blocks, 4),
        max_num_seqs=8,
        max_model_len=max_tokens,
        scheduler=scheduler,
        max_num_batched_tokens=tokens,
        faithful=faithful,
    )


def check(policy: Vidur, script: str) -> None:
    check_script(policy, script, max_model_len=policy.max_model_len)


def test_batches_are_in_the_order_of_the_walk() -> None:
    check(
        vidur(12, 6),
        """
        +A 4/4
        +B 8/2
        0 | A:4@0* B:2@0 | 9 | - | A B | - | -
        1 | A:1@4* B:5@2 | 8 | - | A B | - | -
        +C 9/1
        2 | A:1@5* B:1@7* C:4@0 | 5 | - | A B C | - | -
        3 | A:1@6* B:1@8* C:4@4 | 4 | - | C | - | done A B
        4 | C:1@8* | 9 | - | - | - | done C
        """,
    )


def test_a_half_prefilled_victim_is_fresh_at_once() -> None:
    check(
        vidur(6, 12),
        """
        +A 5/4
        +B 14/2
        0 | A:5@0* B:7@0 | 0 | - | A B | - | -
        1 | A:1@5* B:11@0 | 0 | - | A B | - | preempted B    # all of 14 is to do, and 11 tokens are left
        2 | A:1@6* B:11@0 | 0 | - | A B | - | preempted B
        3 | A:1@7* B:11@0 | 0 | - | B | - | preempted B, done A
        4 | B:3@11* | 2 | - | B | - | -
        5 | B:1@14* | 2 | - | - | - | done B
        """,
    )


def test_a_decoding_victim_may_join_the_very_step_again() -> None:
    check(
        vidur(4, 16),
        """
        +A 7/3
        +B 7/3
        0 | A:7@0* B:7@0* | 0 | - | A B | - | -
        1 | A:1@7* B:8@0* | 0 | - | A B | - | preempted B
        2 | A:1@8* | 1 | B | - | - | preempted B, done A     # 9 tokens of B want 3 blocks
        3 | B:9@0* | 1 | - | - | - | done B
        """,
    )


def test_a_step_of_prompts_is_charged_with_their_number_times_the_longest() -> None:
    check(
        vidur(20, 12, "vllm"),
        """
        +A 3/2
        +B 5/2
        +C 4/2
        0 | A:3@0* B:5@0* | 17 | C | A B | - | -      # 2 x 5 are within 12, 3 x 5 are not
        1 | C:4@0* | 16 | - | A B C | - | -
        2 | A:1@3* B:1@5* C:1@4* | 15 | - | - | - | done A B C
        """,
    )


def test_a_prompt_longer_than_a_step() -> None:
    check(vidur(20, 12, "vllm"), "+A 13/2\n 0 | idle | A=prompt_too_long:0")
    check(vidur(20, 12, "vllm", faithful=True), "+A 13/2\n 0 | Stuck")


def test_a_victim_that_has_grown_longer_than_a_step() -> None:
    check(
        vidur(4, 7, "vllm"),
        """
        +A 7/4
        +B 7/9
        0 | A:7@0* | 2 | B | A | - | -
        1 | B:7@0* | 0 | - | A B | - | -
        2 | A:1@7* | 2 | B | A | - | preempted B
        3 | A:1@8* | 1 | - | A | - | B=prompt_too_long:1
        4 | A:1@9* | 1 | - | - | - | done A
        """,
    )


def test_orca_reserves_whole_blocks_and_runs_those_that_run_first() -> None:
    check(
        vidur(9, 0, "orca", max_tokens=16),
        """
        +A 3/2
        +B 2/3
        +C 1/1
        0 | A:3@0* B:2@0* | 1 | C | A B | - | -
        1 | A:1@3* B:1@2* | 1 | C | B | - | done A
        2 | B:1@3* C:1@0* | 1 | - | - | - | done B C
        """,
    )


def test_orca_refuses_lengths_that_its_blocks_would_not_hold() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len is 18; .* a multiple of block_size = 4"):
        vidur(9, 0, "orca", max_tokens=18)


def test_a_prompt_that_leaves_no_room_is_refused_at_the_door() -> None:
    policy = vidur(40, 16)
    world = Stepper(policy, max_model_len=MAX_TOKENS)
    world.arrive((0, 64, 1), (1, 63, 1))
    assert policy.queues().waiting == (1,)
