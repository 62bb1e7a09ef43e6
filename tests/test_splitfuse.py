"""Dynamic SplitFuse: step tables worked out by hand. The columns are explained in tests/decision_tables.py.

WAITING is MII's buffer after the plan for the next step, so a request may stand in it and in RUNNING: the rest
of a split prompt, or a generation that is left out.
"""

from __future__ import annotations

import pytest

from policies.conformance.decisions import DecisionWriter, Line
from policies.core.engine import Engine
from policies.core.errors import EngineDied
from policies.core.kv import KvManager
from policies.core.plan import Horizon, Idle, StepResult
from policies.core.request import Request
from policies.core.stops import StopCalendar, stop_of
from policies.systems.splitfuse import SplitFuse
from tests.decision_tables import check_script

MAX_MODEL_LEN = 40


def splitfuse(*, blocks: int, tokens: int = 8, seqs: int = 4, faithful: bool = False) -> SplitFuse:
    """An engine with blocks of four tokens."""
    return SplitFuse(
        KvManager(blocks, 4),
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=MAX_MODEL_LEN,
        faithful=faithful,
    )


def test_prompts_are_split_and_run_one_step_after_they_are_found() -> None:
    check_script(
        splitfuse(blocks=6),
        """
        +A 10/3
        0 | -           | 6 | A | -   | - | -          # plans 8 of the 10 tokens
        1 | A:8@0       | 4 | - | A   | - | -
        2 | A:2@8*      | 3 | - | A   | - | -
        +B 9/1
        3 | A:1@10*     | 3 | B | A   | - | -          # 3 blocks for all of B; 7 tokens are left beside A
        4 | A:1@11* B:7@0 | 1 | - | B | - | done A
        5 | B:2@7*      | 0 | - | -   | - | done B     # plans the flush of A
        6 | idle                                       # nobody is there: the loop flushes both
        +C 24/1
        7 | -           | 6 | C | -   | - | -
        """,
        max_model_len=MAX_MODEL_LEN,
    )


def test_blocks_come_back_two_calls_after_the_last_token() -> None:
    check_script(
        splitfuse(blocks=8),
        """
        +A 4/2
        +B 6/6
        0 | -             | 8 | B | -   | - | -
        1 | A:4@0* B:4@0  | 6 | - | A B | - | -
        2 | A:1@4* B:2@4* | 4 | - | B   | - | done A
        3 | B:1@6*        | 4 | - | B   | - | -         # its client queued the flush, this plan picks it up
        4 | B:1@7*        | 6 | - | B   | - | flushed A
        """,
        max_model_len=MAX_MODEL_LEN,
    )


def test_generations_left_out_come_first_in_the_next_plan() -> None:
    check_script(
        splitfuse(blocks=4),
        """
        +A 6/8
        +B 4/8
        0  | -             | 4 | B   | -   | - | -
        1  | A:6@0* B:2@0  | 1 | -   | A B | - | -
        2  | A:1@6* B:2@2* | 1 | -   | A B | - | -
        3  | A:1@7* B:1@4* | 0 | A   | A B | - | -            # both of A's blocks are full, none is free
        4  | B:1@5*        | 0 | A   | A B | - | -
        5  | B:1@6*        | 0 | A   | A B | - | -
        6  | B:1@7*        | 0 | A B | A   | - | preempted B  # B needs one too; it is the last that holds KV
        7  | -             | 2 | B   | A   | - | flushed B    # 9 tokens of B need 3 blocks, A takes one of 2
        8  | A:1@8*        | 1 | B   | A   | - | -
        9  | A:1@9*        | 1 | B   | A   | - | -
        10 | A:1@10*       | 1 | B   | A   | - | -
        11 | A:1@11*       | 1 | B   | A   | - | -
        12 | A:1@12*       | 0 | B   | -   | - | done A
        13 | -             | 0 | B   | -   | - | -
        14 | -             | 4 | B   | -   | - | flushed A    # plans 8 of B's 9 tokens
        15 | B:8@0         | 2 | -   | B   | - | -
        16 | B:1@8*        | 1 | -   | B   | - | -            # the sixth token, not made twice
        17 | B:1@9*        | 1 | -   | B   | - | -
        18 | B:1@10*       | 1 | -   | -   | - | done B
        """,
        max_model_len=MAX_MODEL_LEN,
    )


def test_a_victim_goes_to_the_end_of_the_buffer_and_a_rest_of_one_token_is_passed_over() -> None:
    check_script(
        splitfuse(blocks=5, tokens=9),
        """
        +G 7/4
        0 | -             | 5 | -   | -   | - | -
        +A 9/1
        +C 2/1
        1 | G:7@0*        | 3 | A C | G   | - | -              # 8 tokens are left; all 9 of A fit into 3 blocks
        2 | G:1@7* A:8@0  | 1 | A C | G A | - | -              # G takes the last block: passed over, C blocked
        3 | G:1@8*        | 0 | A C | G A | - | -
        4 | G:1@9*        | 0 | C A | -   | - | preempted A, done G
        5 | -             | 2 | A   | -   | - | flushed A      # plans C and the flush of G
        6 | C:2@0*        | 4 | -   | -   | - | flushed G, done C
        7 | A:9@0*        | 1 | -   | -   | - | done A
        8 | idle
        """,
        max_model_len=MAX_MODEL_LEN,
    )


ONE_LEFT = """
        +A 4/6
        +B 4/6
        0 | -             | 4 | -   | -   | - | -
        1 | A:4@0* B:4@0* | 2 | -   | A B | - | -
        2 | A:1@4* B:1@4* | 0 | -   | A B | - | -
        3 | A:1@5* B:1@5* | 0 | -   | A B | - | -
        4 | A:1@6* B:1@6* | 0 | -   | A B | - | -
        5 | A:1@7* B:1@7* | 0 | A B | A   | - | preempted B
        6 | -             | 2 | B   | A   | - | flushed B
        7 | A:1@8*        | 1 | B   | -   | - | done A         # nothing is left that holds KV and could be reset
"""


def test_the_guarded_engine_waits_for_the_flush_of_the_last_holder() -> None:
    check_script(
        splitfuse(blocks=4),
        ONE_LEFT
        + """
        8  | -      | 1 | B | - | - | -
        9  | -      | 4 | B | - | - | flushed A
        10 | B:8@0  | 2 | - | B | - | -
        11 | B:1@8* | 1 | - | - | - | done B
        """,
        max_model_len=MAX_MODEL_LEN,
    )


def test_the_faithful_engine_dies_of_it() -> None:
    check_script(splitfuse(blocks=4, faithful=True), ONE_LEFT + "8 | EngineDied", max_model_len=MAX_MODEL_LEN)


def test_a_log_says_that_the_engine_died_in_the_call_that_found_nothing_to_plan() -> None:
    lines: list[Line] = []
    policy = splitfuse(blocks=1, faithful=True)
    writer = DecisionWriter(policy, lines.append, config={})
    engine = Engine(policy, observer=writer)
    engine.add(Request(0, 0.0, 5, 1), 0.0)
    engine.plan(0.0)
    engine.complete(StepResult(0, 0.0, 0.0))
    with pytest.raises(EngineDied, match="nothing can be scheduled and none of 1 requests holds KV") as died:
        engine.plan(0.0)
    writer.die(died.value)
    writer.close()
    steps = [line for line in lines if line["type"] == "step"]
    assert [(line["t"], line["error"], line["planned"]) for line in steps] == [(0, str(died.value), [])]


def test_a_prompt_that_the_pool_cannot_hold_ends_when_its_turn_comes() -> None:
    check_script(
        splitfuse(blocks=3),
        """
        +A 4/3
        +X 13/1
        +B 4/1
        0 | -             | 3 | X B | - | - | -                # plans A; X needs 4 blocks and blocks B
        1 | A:4@0*        | 2 | -   | A | - | X=kv_capacity:0
        2 | A:1@4* B:4@0* | 0 | -   | A | - | done B
        3 | A:1@5*        | 0 | -   | - | - | done A
        """,
        max_model_len=MAX_MODEL_LEN,
    )


def test_one_sequence_too_many() -> None:
    script = """
        +A 4/2
        +B 4/2
        0 | - | 4 | {} | - | - | -
        """
    ends = "1 | A:4@0* | 3 | B | A | - | -\n2 | A:1@4* | 2 | - | - | - | done A\n3 | B:4@0* | 1 | - | B | - | -"
    check_script(splitfuse(blocks=4, seqs=1), script.format("B") + ends, max_model_len=MAX_MODEL_LEN)
    check_script(
        splitfuse(blocks=4, seqs=1, faithful=True),
        script.format("-") + "1 | EngineDied",  # 0 + 0 scheduled are not more than 1, nor are 1 + 0
        max_model_len=MAX_MODEL_LEN,
    )


def test_aborts_are_flushed_like_ends() -> None:
    check_script(
        splitfuse(blocks=6),
        """
        +A 4/9
        +B 12/1
        +C 3/1
        0 | -             | 6 | B C | -   | - | -
        1 | A:4@0* B:4@0  | 4 | B C | A B | - | -
        xB                                          # 7 of its tokens were planned
        xC
        2 | A:1@4*        | 3 | -   | A   | - | aborted B C
        xA
        +D 1/1
        3 | -             | 4 | -   | -   | - | flushed B, aborted A
        4 | D:1@0*        | 5 | -   | -   | - | flushed A, done D
        """,
        max_model_len=MAX_MODEL_LEN,
    )


# -- horizon -------------------------------------------------------------------------------------------------


class _Run:
    """An engine whose requests are known; ``step`` runs one step and returns the horizon that its plan gave."""

    def __init__(self, policy: SplitFuse, *lengths: tuple[int, int]) -> None:
        self.policy, self.engine, self.calendar = policy, Engine(policy), StopCalendar()
        for number, (prompt, output) in enumerate(lengths):
            self.arrive(number, prompt, output)

    def arrive(self, number: int, prompt: int, output: int) -> None:
        request = Request(number, 0.0, prompt, output)
        self.engine.add(request, 0.0)
        self.calendar.add(number, stop_of(request, output, MAX_MODEL_LEN))

    def step(self) -> Horizon:
        plan = self.engine.plan(0.0)
        assert not isinstance(plan, Idle)
        horizon = self.policy.horizon()
        self.calendar.apply(plan)
        self.engine.complete(StepResult(plan.step, 0.0, 0.0, finished=self.calendar.complete(plan, 1)))
        return horizon


def test_the_horizon_ends_where_blocks_might_not_suffice() -> None:
    run = _Run(splitfuse(blocks=4), (4, 20), (4, 20))
    horizons = [run.step() for _ in range(5)]
    # Both take their second block with the first token; the next would be needed four steps later.
    assert horizons == [(0, True), (0, True), (3, True), (2, True), (1, True)]


def test_a_flush_to_come_and_a_request_not_looked_at_yet_end_the_horizon() -> None:
    run = _Run(splitfuse(blocks=20), (4, 2), (4, 20))
    assert [run.step().steps for _ in range(4)] == [0, 0, 32, 0]  # the first ended: a flush is to come
    assert run.step().steps > 0
    run.arrive(2, 30, 1)
    assert run.step() == (0, True)


def test_a_blocked_prompt_hides_later_arrivals() -> None:
    run = _Run(splitfuse(blocks=6), (4, 30), (4, 3), (20, 1))
    while 1 in run.policy.running or run.engine.num_unfinished == 3:
        run.step()
    for _ in range(2):  # until the flush is seen
        assert run.step().steps == 0
    first = run.step()
    assert first.steps > 0
    assert not first.arrivals_matter
    run.arrive(3, 1, 1)
    assert run.step() == first
