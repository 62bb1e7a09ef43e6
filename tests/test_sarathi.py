"""Sarathi-Serve's schedulers: step tables worked out by hand from its rules.

tests/decision_tables.py explains the columns. Pools are so small that the watermark, 1 % of the blocks, is none.
"""

from __future__ import annotations

import re

import pytest

from policies.core.errors import ConfigError, EngineDied
from policies.core.kv import KvManager
from policies.systems.sarathi import Sarathi, Scheduler, chunk_schedule
from tests.decision_tables import check_script
from tests.stepping import Stepper

MAX_MODEL_LEN = 64


def serve(num_blocks: int, tokens: int, scheduler: Scheduler = "sarathi", *, faithful: bool = False) -> Sarathi:
    """Blocks of 4 tokens."""
    return Sarathi(
        KvManager(num_blocks, 4),
        max_num_seqs=8,
        max_model_len=MAX_MODEL_LEN,
        scheduler=scheduler,
        max_num_batched_tokens=tokens,
        faithful=faithful,
    )


def check(policy: Sarathi, script: str) -> None:
    check_script(policy, script, max_model_len=policy.max_model_len)


# -- chunks beside decodes -----------------------------------------------------------------------------------


def test_decodes_are_counted_first_and_prompts_lead_the_batch() -> None:
    check(
        serve(12, 6),
        """
        +A 4/4
        +B 8/2
        0 | A:4@0* B:2@0 | 9 | - | A B | - | -          # blocks of the whole prompt at once
        1 | B:5@2 A:1@4* | 8 | - | A B | - | -
        +C 9/1
        2 | B:1@7* C:4@0 A:1@5* | 5 | - | A B C | - | - # A 1, B 1, and 4 are left of 6
        3 | C:4@4 A:1@6* B:1@8* | 4 | - | C | - | done A B
        4 | C:1@8* | 9 | - | - | - | done C
        """,
    )


def test_a_half_prefilled_victim_may_join_the_very_step_again_with_only_the_rest_it_had() -> None:
    check(
        serve(6, 12),
        """
        +A 5/4
        +B 14/2
        0 | A:5@0* B:7@0 | 0 | - | A B | - | -
        # A asks for a free block that it will not take, so B gives way, and finds its 4 blocks free again. 11 tokens
        # are left in the step; B, who has to compute all 14, gets 7, since it is still judged by its old rest.
        1 | B:7@0 A:1@5* | 0 | - | A B | - | preempted B
        2 | B:7@0 A:1@6* | 0 | - | A B | - | preempted B
        3 | B:7@0 A:1@7* | 0 | - | B | - | preempted B, done A
        4 | B:7@7* | 2 | - | B | - | -
        5 | B:1@14* | 2 | - | - | - | done B
        """,
    )


def test_a_decoding_victim_has_no_rest_and_closes_the_queue_for_that_step() -> None:
    check(
        serve(4, 16),
        """
        +A 7/3
        +B 7/2
        0 | A:7@0* B:7@0* | 0 | - | A B | - | -
        +C 1/1
        1 | A:1@7* | 2 | B C | A | - | preempted B      # B and C would fit
        2 | A:1@8* | 1 | B C | - | - | done A
        3 | B:8@0* C:1@0* | 1 | - | - | - | done B C
        """,
    )


# -- alone in a full pool ------------------------------------------------------------------------------------

ALONE = """
    +A 7/4
    0 | A:7@0* | 0 | - | A | - | -
    1 | - | 2 | A | - | - | preempted A     # it asks for a block that it would not take
"""


@pytest.mark.parametrize("scheduler", ["sarathi", "simple_chunking", "vllm"])
def test_a_request_that_gave_way_to_itself_is_computed_again_until_the_pool_cannot_hold_it(
    scheduler: Scheduler,
) -> None:
    check(
        serve(2, MAX_MODEL_LEN, scheduler),
        ALONE
        + """
        2 | A:8@0* | 0 | - | A | - | -
        3 | - | 2 | A | - | - | preempted A
        4 | idle | A=kv_capacity:2
        """,
    )


@pytest.mark.parametrize("scheduler", ["sarathi", "simple_chunking"])
def test_the_real_engine_forgets_to_reset_a_victim_of_an_empty_step(scheduler: Scheduler) -> None:
    check(serve(2, MAX_MODEL_LEN, scheduler, faithful=True), ALONE + "2 | Stuck")


TOO_LARGE = """
    +A 4/2
    +B 30/1
    +C 1/1
"""


def test_a_prompt_that_the_pool_can_never_hold_ends() -> None:
    check(
        serve(6, 16),
        TOO_LARGE
        + """
        0 | A:4@0* C:1@0* | 4 | - | A | - | B=kv_capacity:0, done C
        1 | A:1@4* | 4 | - | - | - | done A
        """,
    )


def test_the_real_engine_and_all_behind_it_wait_for_ever() -> None:
    check(
        serve(6, 16, faithful=True),
        TOO_LARGE
        + """
        0 | A:4@0* | 5 | B C | A | - | -
        1 | A:1@4* | 4 | B C | - | - | done A
        2 | Stuck
        """,
    )


def test_prompts_too_long_for_the_model_are_dropped_when_their_turn_comes() -> None:
    check(
        serve(20, 8),
        """
        +A 12/1
        +B 8/1
        +L 64/1
        0 | A:8@0 | 17 | B L | A | - | -
        1 | A:4@8* B:4@0 | 15 | - | B | - | L=prompt_too_long:0, done A
        2 | B:4@4* | 18 | - | - | - | done B
        """,
    )
    check(
        serve(20, MAX_MODEL_LEN, "vllm"),
        """
        +A 12/2
        0 | A:12@0* | 17 | - | A | - | -
        +L 64/1
        1 | - | 17 | - | A | - | L=prompt_too_long:0      # a pass that only drops computes nothing
        2 | A:1@12* | 16 | - | - | - | done A
        """,
    )


# -- dynamic chunks ------------------------------------------------------------------------------------------


def dynamic(
    low: int, high: int, max_tokens: int, stages: int, *, num_blocks: int = 40, faithful: bool = False
) -> Sarathi:
    return Sarathi(
        KvManager(num_blocks, 16),
        max_num_seqs=64,
        max_model_len=400,
        max_num_batched_tokens=high,
        low_chunk_size=low,
        chunk_schedule_max_tokens=max_tokens,
        chunk_schedule_stages=stages,
        faithful=faithful,
    )


def test_chunk_schedules() -> None:
    assert chunk_schedule(32, 96, 3) == (96, 64, 32)
    assert chunk_schedule(128, 512, 4) == (512, 384, 256, 128)
    assert chunk_schedule(32, 512, 4) == (512, 352, 192, 32)
    assert chunk_schedule(32, 96, 5) == (96, 64, 64, 64, 32)  # 80 is 2.5 x 32 and 48 is 1.5 x 32: the even 64
    assert chunk_schedule(64, 64, 2) == (64, 64)
    assert chunk_schedule(32, 96, 1) == (32,)


def test_chunks_shrink_as_a_prompt_proceeds_and_each_prompt_is_held_to_its_own_size() -> None:
    check(
        dynamic(32, 96, 288, 3),  # 96 tokens at first, 64 from 96 on, 32 from 192 on
        """
        +A 300/1
        0 | A:96@0 | 21 | - | A | - | -
        +B 40/3
        1 | A:64@96 B:32@0 | 18 | - | A B | - | -     # 96 - 64 are left for B
        2 | A:64@160 B:8@32* | 18 | - | A B | - | -
        3 | A:31@224 B:1@40* | 18 | - | B A | - | -   # decodes stand first, whoever came first
        4 | A:31@255 B:1@41* | 18 | - | A | - | done B
        5 | A:14@286* | 21 | - | - | - | done A
        """,
    )


BEYOND = """
    +A 200/1
    0 | A:64@0 | 27 | - | A | - | -
    1 | A:64@64 | 27 | - | A | - | -
    2 | A:32@128 | 27 | - | A | - | -
    3 | A:32@160 | 27 | - | A | - | -
"""


def test_the_last_size_holds_beyond_the_schedule_where_the_real_engine_dies() -> None:
    check(dynamic(32, 64, 192, 2), BEYOND + "4 | A:8@192* | 27 | - | - | - | done A")
    check(dynamic(32, 64, 192, 2, faithful=True), BEYOND + "4 | EngineDied")


def crowd(policy: Sarathi) -> Stepper:
    """40 requests that decode, and then request 40, whose second chunk is of at most 32 tokens."""
    world = Stepper(policy, max_model_len=400)
    world.arrive(*((number, 1, 3) for number in range(40)))
    world.step()
    world.arrive((40, 70, 1))
    return world


def test_a_chunk_size_more_than_used_up_leaves_the_prompt_out() -> None:
    world = crowd(dynamic(32, 96, 70, 2, num_blocks=60))  # 96 tokens at first, 32 from 35 on
    assert [re.findall(r"\(?\b40:\S*?\+\d+\)?", line) for line in world.steps(3)] == [
        ["(40:0+56)"],  # 96 - 40 decodes
        [],
        ["40:56+14"],  # the decodes have ended
    ]


def test_the_real_engine_dies_of_a_negative_chunk() -> None:
    world = crowd(dynamic(32, 96, 70, 2, num_blocks=60, faithful=True))
    world.step()
    with pytest.raises(EngineDied, match="request 40 would get a chunk of -8 tokens"):
        world.step()


def test_impossible_schedules() -> None:
    for settings, message in (
        ((33, 96, 288, 3), "low_chunk_size is 33; dynamic chunks need a multiple of 32, at least 32"),
        ((0, 96, 288, 3), "low_chunk_size is 0"),
        ((32, 100, 288, 3), "max_num_batched_tokens is 100"),
        ((32, 96, 0, 3), "chunk_schedule_max_tokens is 0; .* a multiple of 1, at least 1"),
        ((32, 96, 288, -1), "chunk_schedule_stages is -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            dynamic(*settings)
    with pytest.raises(ConfigError, match="chunk_schedule_stages is 2; vllm has no dynamic chunks"):
        Sarathi(
            KvManager(9, 4),
            max_num_seqs=8,
            max_model_len=64,
            scheduler="vllm",
            max_num_batched_tokens=64,
            chunk_schedule_stages=2,
        )
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 0; sarathi needs at least 1"):
        serve(9, 0)


# -- turns ---------------------------------------------------------------------------------------------------


def test_chunks_and_decodes_take_turns() -> None:
    check(
        serve(20, 6, "simple_chunking"),
        """
        +A 4/3
        +B 8/2
        0 | A:4@0* B:2@0 | 17 | - | A B | - | -
        1 | A:1@4* | 16 | - | A B | - | -               # the decodes' turn
        +C 2/1
        2 | B:6@2* | 16 | C | A B | - | -               # half-prefilled prompts alone
        3 | A:1@5* B:1@8* | 15 | C | - | - | done A B
        4 | C:2@0* | 19 | - | - | - | done C
        +D 8/2
        5 | - | 20 | D | - | - | -                      # the decodes' turn, and there is none
        6 | D:6@0 | 18 | - | D | - | -
        7 | - | 18 | - | D | - | -
        8 | D:2@6* | 18 | - | D | - | -
        9 | D:1@8* | 17 | - | - | - | done D
        +E 4/4
        10 | E:4@0* | 19 | - | E | - | -
        11 | E:1@4* | 18 | - | E | - | -
        12 | E:1@5* | 18 | - | E | - | -                # no prompt to compute: the turn passes at once
        13 | E:1@6* | 18 | - | - | - | done E
        """,
    )


def test_a_queue_that_was_not_tried_in_the_decodes_turn_is_tried_in_the_next_step() -> None:
    policy = serve(20, 6, "simple_chunking")
    world = Stepper(policy, max_model_len=MAX_MODEL_LEN)
    world.arrive((0, 4, 9))
    world.step()
    world.arrive((1, 4, 9))
    world.step()
    assert policy.horizon().steps == 0
    world.step()
    world.step()
    assert policy.horizon().steps > 0


# -- whole prompts -------------------------------------------------------------------------------------------


def test_orca_reserves_the_models_length_and_puts_prompts_first() -> None:
    check(
        Sarathi(KvManager(9, 4), max_num_seqs=8, max_model_len=14, scheduler="orca"),
        """
        +A 3/2
        +B 2/3
        +C 1/1
        0 | A:3@0* B:2@0* | 1 | C | A B | - | -         # 4 blocks hold 14 tokens
        1 | A:1@3* B:1@2* | 1 | C | B | - | done A
        2 | C:1@0* B:1@3* | 1 | - | - | - | done C B
        """,
    )


def test_nobody_joins_a_static_batch() -> None:
    check(
        Sarathi(KvManager(9, 4), max_num_seqs=8, max_model_len=14, scheduler="faster_transformer"),
        """
        +A 3/2
        +B 2/3
        +C 1/1
        0 | A:3@0* B:2@0* | 1 | C | A B | - | -
        1 | A:1@3* B:1@2* | 1 | C | B | - | done A
        2 | B:1@3* | 5 | C | - | - | done B
        3 | C:1@0* | 5 | - | - | - | done C
        """,
    )


def test_vllm_sums_the_prompts_of_a_step_up_to_the_models_length() -> None:
    check(
        serve(40, 1000, "vllm"),
        """
        +A 40/1
        +B 24/1
        +C 1/1
        0 | A:40@0* B:24@0* | 24 | C | - | - | done A B
        1 | C:1@0* | 39 | - | - | - | done C
        """,
    )


# -- quiet runs ----------------------------------------------------------------------------------------------


def test_a_blocked_queue_hides_arrivals_and_an_empty_one_does_not() -> None:
    for waiting, arrivals_matter in ((0, True), (1, False)):
        policy = serve(20, 16)
        world = Stepper(policy, max_model_len=MAX_MODEL_LEN)
        world.arrive(*((number, 1, 9) for number in range(policy.max_num_seqs + waiting)))
        world.steps(2)
        # 12 blocks are free: one for each of the 8 rows and one to see, enough for any 4 steps.
        assert policy.horizon() == (4, arrivals_matter)
