"""TensorRT-LLM: step tables worked out by hand. The columns are explained in tests/decision_tables.py.

Blocks have 4 tokens. The line of requests is alphabetical.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.request import Request
from policies.presets import build_policy, preset, resolve
from policies.systems.tensorrt import Capacity, Chunking, TensorRtLlm
from policies.systems.tensorrt_chunks import equal_progress, first_come_first_served
from tests.decision_tables import check_script
from tests.stepping import Stepper


def trtllm(
    blocks: int,
    rule: Capacity = "guaranteed_no_evict",
    *,
    tokens: int = 100,
    chunks: Chunking | None = None,
    max_num_seqs: int = 8,
    faithful: bool = False,
) -> TensorRtLlm:
    """A pool of that many blocks of four tokens; prompts are cut if a rule for that is given."""
    return TensorRtLlm(
        KvManager(blocks, 4),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=tokens,
        max_model_len=60,
        capacity_scheduler_policy=rule,
        enable_chunked_prefill=chunks is not None,
        context_chunking_policy=chunks or "first_come_first_served",
        faithful=faithful,
    )


def check(policy: TensorRtLlm, script: str) -> None:
    check_script(policy, script, max_model_len=60)


def test_no_evict_starts_who_is_sure_to_run_to_the_end() -> None:
    check(
        trtllm(8),
        """
        +A 5/6
        +B 6/8
        +C 3/5
        +D 1/1
        0 | A:5@0* B:6@0* | 4 | C D | A B | - | -        # to their ends: 3 + 4 of 8 blocks; C needs 2, and hides D
        1 | A:1@5* B:1@6* | 4 | C D | A B | - | -        # four blocks are free, and spoken for but one
        2 | A:1@6* B:1@7* | 4 | C D | A B | - | -
        3 | A:1@7* B:1@8* | 3 | C D | A B | - | -
        4 | A:1@8* B:1@9* | 2 | C D | A B | - | -
        5 | A:1@9* B:1@10* | 2 | C D | B | - | done A
        6 | C:3@0* D:1@0* B:1@11* | 3 | - | B C | - | done D   # 4 beside B: C takes 2, D 1; contexts come first
        7 | B:1@12* C:1@3* | 3 | - | C | - | done B
        8 | C:1@4* | 6 | - | C | - | -
        """,
    )


def test_max_utilization_pauses_the_last_started_request_and_leaves_out_all_behind_it() -> None:
    check(
        trtllm(6, "max_utilization"),
        """
        +A 5/9
        +B 6/9
        +C 4/9
        0 | A:5@0* B:6@0* C:4@0* | 1 | - | A B C | - | -
        1 | A:1@5* B:1@6* C:1@4* | 0 | - | A B C | - | -       # C fills its first block
        +D 1/1
        2 | A:1@6* B:1@7* C:1@5* | 0 | D | A B C | - | -       # nobody who has started stands behind D
        3 | A:1@7* B:1@8* | 1 | C D | A B | - | preempted C    # B needs one: C gives two; D would fit, but is behind C
        4 | A:1@8* B:1@9* | 0 | C D | A B | - | -
        5 | A:1@9* B:1@10* | 0 | C D | A B | - | -
        6 | A:1@10* B:1@11* | 0 | C D | A B | - | -
        7 | A:1@11* | 3 | B C D | A | - | preempted B          # B itself is the last that has started
        8 | A:1@12* | 2 | B C D | - | - | done A               # B, 13 tokens, needs 4; C would fit into 2
        9 | B:13@0* C:7@0* | 0 | D | B C | - | -               # prompt and what was made, in one pass
        10 | B:1@13* C:1@7* | 0 | D | C | - | done B
        11 | D:1@0* C:1@8* | 2 | - | C | - | done D
        """,
    )


def test_no_more_requests_than_places_and_the_places_of_those_that_ended() -> None:
    for rule in ("guaranteed_no_evict", "max_utilization"):
        check(
            trtllm(20, rule, max_num_seqs=2),
            """
            +A 3/1
            +B 3/2
            +C 3/1
            0 | A:3@0* B:3@0* | 18 | C | B | - | done A
            1 | C:3@0* B:1@3* | 18 | - | - | - | done C B
            """,
        )


@pytest.mark.parametrize("rule", ["guaranteed_no_evict", "max_utilization", "static_batch"])
def test_a_prompt_that_is_too_much_for_the_step_stops_all_behind_it(rule: Capacity) -> None:
    check(
        trtllm(20, rule, tokens=12),
        """
        +A 5/1
        +B 6/1
        +C 3/1
        +D 1/1
        0 | A:5@0* B:6@0* | 16 | C D | - | - | done A B      # 11 of 12 tokens; D would fit
        1 | C:3@0* D:1@0* | 18 | - | - | - | done C D
        """,
    )


def test_static_takes_nobody_in_while_anybody_generates() -> None:
    check(
        trtllm(20, "static_batch", tokens=12),
        """
        +A 5/2
        +B 6/4
        +C 3/2
        0 | A:5@0* B:6@0* | 16 | C | A B | - | -
        1 | A:1@5* B:1@6* | 16 | C | B | - | done A
        2 | B:1@7* | 18 | C | B | - | -
        3 | B:1@8* | 17 | C | - | - | done B
        4 | C:3@0* | 19 | - | C | - | -
        5 | C:1@3* | 19 | - | - | - | done C
        """,
    )


def test_static_keeps_a_prompt_that_was_cut_waiting_with_its_blocks() -> None:
    check(
        trtllm(20, "static_batch", tokens=12, chunks="first_come_first_served"),
        """
        +A 6/3
        +B 7/2
        0 | B:4@0 A:6@0* | 16 | - | A B | - | -        # B gets 4 of the 6 left, and the blocks of its whole prompt
        1 | A:1@6* | 16 | - | A B | - | -
        2 | A:1@7* | 16 | - | B | - | done A
        3 | B:3@4* | 18 | - | B | - | -
        4 | B:1@7* | 18 | - | - | - | done B
        """,
    )


def test_first_come_first_served_leaves_out_whom_a_whole_block_does_not_fit_and_tries_the_next() -> None:
    check(
        trtllm(40, tokens=12, chunks="first_come_first_served"),
        """
        +A 3/9
        0 | A:3@0* | 39 | - | A | - | -
        +B 8/2
        +C 6/2
        +D 2/2
        1 | B:8@0* D:2@0* A:1@3* | 36 | C | A B D | - | -      # 11 left: B 8, C 3 of 6 is no block, D is whole
        2 | C:6@0* A:1@4* B:1@8* D:1@2* | 32 | - | A C | - | done B D
        """,
    )


def test_equal_progress_gives_a_block_by_turns() -> None:
    check(
        trtllm(40, tokens=12, chunks="equal_progress"),
        """
        +A 3/9
        0 | A:3@0* | 39 | - | A | - | -
        +B 8/2
        +C 6/2
        +D 2/2
        1 | B:4@0 C:4@0 D:2@0* A:1@3* | 34 | - | A B C D | - | -   # 4 + 4 + 2 of 11; neither 4 nor 2 more fit into 1
        2 | B:4@4* C:2@4* A:1@4* D:1@2* | 33 | - | A B C | - | done D
        """,
    )


def test_unfinished_contexts_stand_before_last_chunks() -> None:
    check(
        trtllm(40, tokens=12, chunks="first_come_first_served"),
        """
        +A 3/2
        +B 20/2
        0 | B:8@0 A:3@0* | 34 | - | A B | - | -        # 9 left: 8; the five blocks of B's prompt at once
        1 | B:8@8 A:1@3* | 34 | - | B | - | done A     # 11 left for 12 tokens
        2 | B:4@16* | 35 | - | B | - | -
        """,
    )


def test_a_later_request_that_started_is_paused_for_an_earlier_one_that_has_not() -> None:
    check(
        trtllm(5, "max_utilization", tokens=11, chunks="first_come_first_served"),
        """
        +A 8/2
        +B 6/2
        +C 2/9
        0 | A:8@0* C:2@0* | 2 | B | A C | - | -        # all have room; 3 tokens are left for B, no whole block
        1 | B:6@0* A:1@8* | 0 | C | B | - | preempted C, done A   # A takes a block, B needs two: C gives its one
        2 | C:3@0* B:1@6* | 2 | - | C | - | done B
        """,
    )


def test_a_request_that_outgrows_the_pool_alone_ends_or_waits_for_ever() -> None:
    script = """
        +A 5/9
        +B 1/1
        0 | A:5@0* B:1@0* | 0 | - | A | - | done B
        1 | A:1@5* | 1 | - | A | - | -
        2 | A:1@6* | 1 | - | A | - | -
        3 | A:1@7* | 1 | - | A | - | -
        4 | A:1@8* | 0 | - | A | - | -
        5 | A:1@9* | 0 | - | A | - | -
        6 | A:1@10* | 0 | - | A | - | -
        7 | A:1@11* | 0 | - | A | - | -
        8 | - | 3 | A | - | - | preempted A            # the only one pauses itself: 13 tokens, a pool of 12
        """
    check(trtllm(3, "max_utilization"), script + "9 | idle | A=kv_capacity:8")
    check(trtllm(3, "max_utilization", faithful=True), script + "9 | Stuck")


def test_a_request_that_no_evict_can_never_place_ends_once_nothing_runs_or_hides_everybody() -> None:
    arrivals = "+A 2/2\n+L 9/4\n+B 2/1\n"
    first = "0 | A:2@0* | 2 | L B | A | - | -\n1 | A:1@2* | 2 | L B | - | - | done A\n"  # L: 13 tokens, 4 blocks of 3
    check(trtllm(3), arrivals + first + "2 | B:2@0* | 2 | - | - | - | L=kv_capacity:0, done B")
    check(trtllm(3, faithful=True), arrivals + first + "2 | Stuck")


def test_a_paused_request_that_has_outgrown_a_step_ends_once_nothing_runs() -> None:
    script = """
        +A 5/6
        +B 5/6
        0 | A:5@0* B:5@0* | 0 | - | A B | - | -
        1 | A:1@5* B:1@5* | 0 | - | A B | - | -
        2 | A:1@6* B:1@6* | 0 | - | A B | - | -
        3 | A:1@7* B:1@7* | 0 | - | A B | - | -
        4 | A:1@8* | 1 | B | A | - | preempted B       # B: 9 tokens by now
        5 | A:1@9* | 1 | B | - | - | done A
        """
    check(trtllm(4, "max_utilization", tokens=10), script + "6 | B:9@0* | 1 | - | B | - | -")
    refused = trtllm(4, "max_utilization", tokens=8)
    world = Stepper(refused, max_model_len=60)
    world.arrive((1, 4, 9), (2, 4, 9), (3, 9, 1))
    assert "2=kv_capacity" in " ".join(world.run())
    assert refused.kv.num_free == 4


def test_prompts_too_long_for_a_step_are_refused_unless_they_are_cut() -> None:
    cases: list[tuple[Chunking | None, str | None]] = [(None, "prompt_too_long"), ("equal_progress", None)]
    for chunks, reason in cases:
        world = Stepper(trtllm(40, tokens=12, chunks=chunks), max_model_len=60)
        ends = [world.engine.add(Request(number, 0.0, number, 1), 0.0) for number in (12, 13, 60)]
        assert [end and end.reason for end in ends] == [None, reason, "prompt_too_long"]


def test_a_blocked_head_hides_arrivals_and_one_without_tokens_does_not() -> None:
    world = Stepper(trtllm(8), max_model_len=60)
    world.arrive((1, 5, 15), (2, 6, 8))
    world.step()
    world.engine.plan(1.0)
    assert world.policy.horizon() == (1 << 40, False)
    chunked = Stepper(trtllm(90, tokens=11, chunks="first_come_first_served", max_num_seqs=9), max_model_len=60)
    chunked.arrive(*((number, 1, 30) for number in range(8)))
    chunked.step()
    chunked.engine.plan(1.0)
    assert chunked.policy.horizon() == (1 << 40, True)
    chunked.arrive((8, 9, 1))
    chunked.engine.plan(1.0)  # 3 tokens are left: none for this one, but a prompt of 3 would run
    assert chunked.policy.horizon() == (0, True)


# -- chunk sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rests", "capacity", "first", "equal"),
    [
        ((8, 6, 2), 11, [8, 0, 2], [4, 4, 2]),
        ((20, 20), 12, [12, 0], [8, 4]),
        ((3, 20, 20), 15, [3, 12, 0], [3, 8, 4]),
        ((5, 5, 5), 3, [0, 0, 0], [0, 0, 0]),
        ((9, 1), 1, [0, 1], [0, 1]),
        ((9, 9), 18, [9, 9], [9, 9]),
    ],
)
def test_chunk_sizes(rests: tuple[int, ...], capacity: int, first: list[int], equal: list[int]) -> None:
    assert first_come_first_served(rests, capacity, 4) == first
    assert equal_progress(rests, capacity, 4) == equal


@given(
    rests=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    capacity=st.integers(0, 150),
    unit=st.sampled_from((1, 4, 7)),
)
def test_equal_progress_is_what_turns_one_by_one_give(rests: list[int], capacity: int, unit: int) -> None:
    sizes, left, given_out = [0] * len(rests), capacity, True
    while given_out and left:
        given_out = False
        for place, rest in enumerate(rests):
            step = min(unit, rest - sizes[place])
            if 0 < step <= left:
                sizes[place] += step
                left -= step
                given_out = True
    assert equal_progress(rests, capacity, unit) == sizes


# -- settings ----------------------------------------------------------------------------------------------------


def test_each_preset_has_its_capacity_rule_and_every_key_can_be_changed() -> None:
    rules = {"trtllm-no-evict": (False, False), "trtllm-max-utilization": (True, False), "trtllm-static": (False, True)}
    for name, (evicts, is_static) in rules.items():
        parameters = resolve(preset(name), {}, max_model_len=4_096)
        policy, _ = build_policy(parameters, num_gpu_blocks=200, kv_bytes_per_token=1)
        assert isinstance(policy, TensorRtLlm)
        assert (policy.evicts, policy.is_static, policy.enable_chunked_prefill) == (evicts, is_static, False)
        assert (policy.max_num_seqs, policy.max_num_batched_tokens, policy.kv.block_size) == (2_048, 8_192, 32)
    changes = {"capacity_scheduler_policy": "max_utilization", "enable_chunked_prefill": True}
    changed = resolve(preset("trtllm-no-evict"), changes, max_model_len=4_096)
    policy, _ = build_policy(changed, num_gpu_blocks=200, kv_bytes_per_token=1)
    assert isinstance(policy, TensorRtLlm)
    assert (policy.evicts, policy.enable_chunked_prefill) == (True, True)


def test_settings_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="is 'no_evict'; give one of guaranteed_no_evict, max_utilization,"):
        trtllm(8, "no_evict")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="context_chunking_policy is 'fair'; give one of first_come_first_served"):
        trtllm(8, chunks="fair")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_num_batched_tokens is 3; chunks are multiples of block_size = 4"):
        trtllm(8, tokens=3, chunks="equal_progress")
