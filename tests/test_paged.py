"""vLLM V0's default policy: step tables worked out by hand from its rules.

tests/decision_tables.py explains the columns. All tables use blocks of 4 tokens. A row asks for one free
block in every step, even when it will take none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.plan import Chunk, Horizon
from policies.core.request import Request
from policies.core.stops import stop_of
from policies.systems.paged import Paged
from tests.decision_tables import check_script

MAX_MODEL_LEN = 64
Mode = Literal["recompute", "swap", "auto"]


def paged(
    num_blocks: int,
    *,
    num_cpu_blocks: int = 0,
    watermark: float = 0.01,
    preemption_mode: Mode = "recompute",
    max_num_seqs: int = 8,
    faithful: bool = False,
) -> Paged:
    return Paged(
        KvManager(num_blocks, 4, num_cpu_blocks=num_cpu_blocks),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        watermark=watermark,
        preemption_mode=preemption_mode,
        faithful=faithful,
    )


def check(policy: Paged, script: str) -> None:
    check_script(policy, script, max_model_len=MAX_MODEL_LEN)


# -- default -------------------------------------------------------------------------------------------------


def test_prefills_run_alone_and_the_victim_preempted_last_waits_first() -> None:
    check(
        paged(4),
        """
        +A 4/4
        +B 4/4
        +C 3/2
        +D 3/2
        0 | A:4@0* B:4@0* C:3@0* D:3@0* | 0 | - | A B C D | - | -
        # A needs a 2nd block: D gives way; then B: C gives way. C, the older one, is put in front of D.
        1 | A:1@4* B:1@4* | 0 | C D | A B | - | preempted D C
        2 | A:1@5* | 2 | B C D | A | - | preempted B  # A takes no block, but asks for one
        3 | B:6@0* | 0 | C D | A B | - | -            # B comes back with what it made, A pauses
        4 | A:1@6* | 2 | B C D | - | - | preempted B, done A
        5 | B:7@0* C:4@0* D:4@0* | 0 | - | - | - | done B C D
        6 | idle
        """,
    )


def test_a_lone_request_that_fills_the_pool_is_computed_again_for_every_token() -> None:
    check(
        paged(4),
        """
        +A 13/4
        0 | A:13@0* | 0 | - | A | - | -
        1 | - | 4 | A | - | - | preempted A   # no free block to ask for, no other row to take one from
        2 | A:14@0* | 0 | - | A | - | -
        3 | - | 4 | A | - | - | preempted A
        4 | A:15@0* | 0 | - | A | - | -
        5 | - | 4 | A | - | - | preempted A
        6 | A:16@0* | 0 | - | - | - | done A
        """,
    )


SWAP_UNTIL_FULL = """
    +A 16/5
    +B 16/3
    +C 4/4
    +D 4/1
    # 10 blocks, watermark 1: D's block is the last free one.
    0 | A:16@0* B:16@0* C:4@0* | 1+4 | D | A B C | - | -
    1 | A:1@16* B:1@16* | 0+3 | D | A B | C | out C=1
"""


def test_full_swap_space_falls_back_to_recompute_and_is_counted() -> None:
    policy = paged(10, num_cpu_blocks=4, watermark=0.1, preemption_mode="swap")
    check(
        policy,
        SWAP_UNTIL_FULL
        + """
        # B holds 5 blocks, 3 are free on the CPU. No swap-in in a step that preempted.
        2 | A:1@17* | 5+3 | B D | A | C | preempted B
        # While C is swapped out nobody is prefilled. It needs 1 block, 1 more for its token, and 1 kept free.
        3 | A:1@18* C:1@4* | 3+4 | B D | A C | - | in C=1
        4 | A:1@19* C:1@5* | 3+4 | B D | C | - | done A
        5 | B:18@0* D:4@0* | 2+4 | - | C | - | done B D
        6 | C:1@6* | 8+4 | - | - | - | done C
        """,
    )
    assert policy.swap_exhausted == 1


def test_the_real_engine_dies_of_full_swap_space() -> None:
    policy = paged(10, num_cpu_blocks=4, watermark=0.1, preemption_mode="swap", faithful=True)
    check(policy, SWAP_UNTIL_FULL + "2 | EngineDied")
    assert policy.queues() == ((3,), (), (2,))  # A was walked and B popped: both are in no queue any more


def test_swap_needs_room_for_the_block_of_the_next_token_too() -> None:
    # B has filled its block: 1 block to move, 2 asked for on the CPU.
    script = """
        +A 4/9
        +B 4/9
        0 | A:4@0* B:4@0* | 0+{cpu} | - | A B | - | -
        1 | A:1@4* | 0+{left} | {waiting} | A | {swapped} | {event}
    """
    fits = paged(2, num_cpu_blocks=2, preemption_mode="swap")
    check(fits, script.format(cpu=2, left=1, waiting="-", swapped="B", event="out B=1"))
    full = paged(2, num_cpu_blocks=1, preemption_mode="swap")
    check(full, script.format(cpu=1, left=1, waiting="B", swapped="-", event="preempted B"))
    assert (fits.swap_exhausted, full.swap_exhausted) == (0, 1)


def test_a_request_that_outgrows_the_pool_ends_with_kv_capacity() -> None:
    # 10 blocks, 1 kept free: a request that needs all 10 never gets in again, swapped or not.
    check(
        paged(10, watermark=0.1),
        """
        +A 36/9
        0 | A:36@0* | 1 | - | A | - | -
        +B 4/1
        1 | A:1@36* | 0 | B | A | - | -
        2 | - | 10 | A B | - | - | preempted A
        3 | B:4@0* | 9 | - | - | - | A=kv_capacity:2, done B
        """,
    )
    check(
        paged(10, num_cpu_blocks=16, watermark=0.1, preemption_mode="swap"),
        """
        +A 36/9
        0 | A:36@0* | 1+16 | - | A | - | -
        +B 4/1
        1 | A:1@36* | 0+16 | B | A | - | -
        2 | - | 10+6 | B | - | A | out A=10
        3 | - | 10+16 | B | - | - | A=kv_capacity:2   # the prefill pass came before A's end
        4 | B:4@0* | 9+16 | - | - | - | done B
        """,
    )


def test_the_real_engine_never_swaps_such_a_request_in() -> None:
    check(
        paged(10, num_cpu_blocks=16, watermark=0.1, preemption_mode="swap", faithful=True),
        """
        +A 36/9
        0 | A:36@0* | 1+16 | - | A | - | -
        1 | A:1@36* | 0+16 | - | A | - | -
        2 | - | 10+6 | - | - | A | out A=10
        3 | Stuck
        """,
    )


def test_impossible_requests_are_dropped_when_their_turn_comes() -> None:
    check(
        paged(10, watermark=0.1),
        """
        +A 37/1
        +B 65/1
        +C 8/2
        # 37 tokens need 10 blocks, 9 may be used; 65 tokens are more than the model takes.
        0 | C:8@0* | 8 | - | C | - | A=kv_capacity:0, B=prompt_too_long:0
        +D 40/1
        1 | C:1@8* | 7 | - | - | - | D=kv_capacity:0, done C   # dropping alone is no prefill step
        +E 40/1
        2 | idle | E=kv_capacity:0
        """,
    )


def test_a_prompt_as_long_as_the_model_takes_makes_one_token() -> None:
    """It ends with the token that exceeds the length, for which nothing is computed and no block is needed. One token
    shorter it makes two: the first of them is the last that the model can read."""
    check(
        paged(32),
        """
        +A 64/5
        +B 63/5
        +C 65/5
        +D 63/1
        0 | A:64@0* | 16 | B C D | - | - | done A
        1 | B:63@0* | 16 | D | B | - | C=prompt_too_long:0
        2 | D:63@0* | 0 | - | B | - | done D
        3 | B:1@63* | 16 | - | - | - | done B
        """,
    )


def test_it_stops_by_its_length_unless_one_token_was_all_it_wanted() -> None:
    for prompt, output, stop in ((64, 5, (1, "length")), (63, 5, (2, "length")), (64, 1, (1, "stop"))):
        request = Request(0, 0.0, prompt, output)
        assert stop_of(request, output, MAX_MODEL_LEN + paged(8).tokens_past_length) == stop


def test_max_num_seqs_counts_running_requests() -> None:
    check(
        paged(20, max_num_seqs=2),
        """
        +A 4/2
        +B 4/3
        +C 4/1
        0 | A:4@0* B:4@0* | 18 | C | A B | - | -
        1 | A:1@4* B:1@4* | 16 | C | B | - | done A
        2 | C:4@0* | 17 | - | B | - | done C
        3 | B:1@5* | 18 | - | - | - | done B
        """,
    )


def test_aborts_in_every_queue() -> None:
    check(
        paged(4, num_cpu_blocks=4, preemption_mode="swap"),
        """
        +A 4/3
        +B 4/9
        +C 3/2
        +D 4/9
        +E 4/9
        0 | A:4@0* B:4@0* C:3@0* D:4@0* | 0+4 | E | A B C D | - | -
        xE                                        # waiting
        1 | A:1@4* B:1@4* | 0+2 | - | A B | D C | out D=2 C=2, aborted E
        xD                                        # swapped: its CPU block is free again
        xB                                        # running: 2 blocks
        2 | A:1@5* C:1@3* | 1+4 | - | - | - | in C=1, aborted D B, done A C
        """,
    )


# -- auto ----------------------------------------------------------------------------------------------------


class Costs:
    """A swap takes 1 s a block (of 1,000 bytes in 2 pieces), one way; computing a token again 0.6 s."""

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        raise AssertionError("not asked by this policy")

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        return num_bytes * 0.0005 + pieces * 0.25

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        assert context == 0
        return 0.6 * num_tokens

    def predict_output_len(self, request: Request) -> int:
        raise AssertionError("not asked by this policy")


def test_auto_does_what_is_cheaper_for_each_victim() -> None:
    policy = Paged(
        KvManager(4, 4, num_cpu_blocks=4),
        max_num_seqs=8,
        max_num_batched_tokens=MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        preemption_mode="auto",
        services=Costs(),
        block_bytes=1000,
        pieces_per_block=2,
    )
    check(
        policy,
        """
        +A 4/9
        +B 4/9
        +C 3/9
        +D 4/9
        0 | A:4@0* B:4@0* C:3@0* D:4@0* | 0+4 | - | A B C D | - | -
        # There and back is 2 s for a block. D: 4 tokens are 2.4 s, so swap; C: 3 are 1.8 s, so recompute.
        1 | A:1@4* B:1@4* | 0+3 | C | A B | D | preempted C, out D=1
        """,
    )
    assert policy.swap_exhausted == 0


# -- horizon and settings ------------------------------------------------------------------------------------


QUIET = """
    +A 4/30
    +B 4/30
    0 | A:4@0* B:4@0* | 4 | - | A B | - | -
    1 | A:1@4* B:1@4* | 2 | - | A B | - | -
"""


def test_horizon_ends_where_a_row_might_find_no_free_block() -> None:
    policy = paged(6)
    check(policy, QUIET)
    assert policy.horizon() == Horizon(3, True)
    check(
        paged(6),
        QUIET
        + """
        2 | A:1@5* B:1@5* | 2 | - | A B | - | -
        3 | A:1@6* B:1@6* | 2 | - | A B | - | -
        4 | A:1@7* B:1@7* | 2 | - | A B | - | -
        5 | A:1@8* B:1@8* | 0 | - | A B | - | -        # just enough, because B stands last and takes the last
        6 | A:1@9* | 3 | B | A | - | preempted B
        """,
    )


def test_a_blocked_head_hides_later_arrivals() -> None:
    policy = paged(6)
    check(
        policy,
        """
        +A 8/30
        +B 20/30
        0 | A:8@0* | 4 | B | A | - | -
        1 | A:1@8* | 3 | B | A | - | -
        """,
    )
    # A may take 2 of the 3 free blocks, which is at least 2 x 4 steps.
    assert policy.horizon() == Horizon(8, False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preemption_mode": "swop"}, "preemption_mode is 'swop'"),
        ({"preemption_mode": "auto"}, "needs a cost model"),
        ({"max_num_batched_tokens": 32}, "must be at least 64"),
    ],
)
def test_impossible_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Paged(
            KvManager(4, 4),
            **{"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64, **settings},  # type: ignore[arg-type]
        )


def test_prefix_caching_is_refused() -> None:
    with pytest.raises(ConfigError, match="enable_prefix_caching"):
        Paged(
            KvManager(4, 4, enable_prefix_caching=True),
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=64,
        )
