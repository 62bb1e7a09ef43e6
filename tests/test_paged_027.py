"""vLLM 0.2.7: step tables worked out by hand from its rules, where they differ from those of 0.6.3.

tests/decision_tables.py explains the columns. All tables use blocks of 4 tokens and no watermark.
"""

from __future__ import annotations

from policies.core.engine import Engine
from policies.core.kv import KvManager
from policies.core.plan import StepPlan, StepResult
from policies.core.request import Request
from policies.systems.paged_027 import Paged027
from tests.decision_tables import check_script

MAX_MODEL_LEN = 16


def v027(
    num_blocks: int, *, max_paddings: int = 256, max_num_seqs: int = 8, num_cpu_blocks: int = 0
) -> Paged027:
    return Paged027(
        KvManager(num_blocks, 4, num_cpu_blocks=num_cpu_blocks),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        max_paddings=max_paddings,
        watermark=0.0,
        preemption_mode="swap" if num_cpu_blocks else "recompute",
        faithful=True,
    )


def check(policy: Paged027, script: str) -> None:
    check_script(policy, script, max_model_len=MAX_MODEL_LEN)


# -- prompts -------------------------------------------------------------------------------------------------


def test_the_budget_counts_every_prompt_as_long_as_the_longest() -> None:
    check(
        v027(10),
        """
        +A 6/1
        +B 3/1
        +C 1/1
        0 | A:6@0* B:3@0* | 7 | C | - | - | done A B    # 2 * 6 = 12; 3 * 6 > 16
        1 | C:1@0* | 9 | - | - | - | done C
        """,
    )


def test_a_longer_prompt_pads_those_before_it() -> None:
    check(
        v027(10),
        """
        +A 1/1
        +B 2/1
        +C 6/1
        0 | A:1@0* B:2@0* | 8 | C | - | - | done A B    # 3 * 6 > 16
        1 | C:6@0* | 8 | - | - | - | done C
        """,
    )


def test_padding_has_a_limit_of_its_own() -> None:
    check(
        v027(10, max_paddings=2),
        """
        +A 6/1
        +B 3/1
        +C 1/1
        0 | A:6@0* | 8 | B C | - | - | done A           # 3 tokens of padding
        1 | B:3@0* C:1@0* | 8 | - | - | - | done B C    # 2
        """,
    )


def test_the_plan_is_charged_with_the_padding() -> None:
    engine = Engine(v027(10))
    for number, prompt in enumerate((6, 3)):
        engine.add(Request(number, 0.0, prompt, 1), 0.0)
    plan = engine.plan(0.0)
    assert isinstance(plan, StepPlan)
    assert plan.num_tokens == 12


def test_a_pass_that_only_drops_is_a_step_in_which_decodes_wait() -> None:
    check(
        v027(10),
        """
        +A 4/3
        0 | A:4@0* | 9 | - | A | - | -
        +B 17/1
        1 | - | 9 | - | A | - | B=prompt_too_long:0
        2 | A:1@4* | 8 | - | A | - | -
        3 | A:1@5* | 8 | - | - | - | done A
        """,
    )


# -- memory --------------------------------------------------------------------------------------------------


def test_a_decode_asks_for_a_block_even_if_it_has_room() -> None:
    check(
        v027(2),
        """
        +A 2/4
        +B 2/3
        0 | A:2@0* B:2@0* | 0 | - | A B | - | -
        1 | A:1@2* | 1 | B | A | - | preempted B    # nobody needs one
        2 | B:3@0* | 0 | - | A B | - | -
        3 | A:1@3* | 1 | B | A | - | preempted B
        4 | B:4@0* | 0 | - | A | - | done B
        5 | A:1@4* | 0 | - | - | - | done A
        """,
    )


def test_a_swapped_request_returns_when_one_block_more_than_it_held_is_free() -> None:
    check(
        v027(4, num_cpu_blocks=4),
        """
        +A 4/4
        +B 4/4
        0 | A:4@0* B:4@0* | 2+4 | - | A B | - | -
        1 | A:1@4* B:1@4* | 0+4 | - | A B | - | -
        2 | A:1@5* | 2+2 | - | A | B | out B=2
        3 | A:1@6* | 2+2 | - | - | B | done A       # it would fit, but asks for 3
        4 | B:1@5* | 2+4 | - | B | - | in B=2
        5 | B:1@6* | 2+4 | - | - | - | done B
        """,
    )


def test_a_swap_out_asks_for_the_blocks_that_are_held() -> None:
    check(
        v027(4, num_cpu_blocks=2),
        """
        +A 4/4
        +B 8/4
        0 | A:4@0* B:8@0* | 1+2 | - | A B | - | -
        1 | A:1@4* | 2+0 | - | A | B | out B=2      # its next token needs a third block
        2 | A:1@5* | 2+0 | - | A | B | -
        3 | A:1@6* | 2+0 | - | - | B | done A
        4 | B:1@8* | 1+2 | - | B | - | in B=2
        5 | B:1@9* | 1+2 | - | B | - | -
        6 | B:1@10* | 1+2 | - | - | - | done B
        """,
    )


def test_swapped_requests_are_in_order_of_arrival() -> None:
    check(
        v027(3, num_cpu_blocks=4),
        """
        +A 4/3
        +B 4/3
        +C 4/3
        0 | A:4@0* B:4@0* C:4@0* | 0+4 | - | A B C | - | -
        1 | A:1@4* | 1+2 | - | A | B C | out C=2 B=2     # 2 in all: C for A's block, then B, which saw none
        2 | A:1@5* | 1+2 | - | - | B C | done A
        3 | B:1@4* | 1+3 | - | B | C | in B=1            # 2 blocks; C would ask for 2 more
        4 | B:1@5* | 1+3 | - | - | C | done B
        5 | C:1@4* | 1+4 | - | C | - | in C=1
        6 | C:1@5* | 1+4 | - | - | - | done C
        """,
    )


def test_running_requests_stand_in_order_of_arrival_whatever_their_numbers() -> None:
    policy = v027(10)
    for number, arrival_s in ((2, 0.0), (1, 1.0)):
        policy.on_arrival(Request(number, arrival_s, 3, 4))
        plan = policy.schedule(arrival_s)
        assert isinstance(plan, StepPlan)
        policy.on_step_end(StepResult(plan.step, arrival_s, arrival_s + 0.5))
    assert isinstance(policy.schedule(2.0), StepPlan)  # a decode step sorts
    assert policy.queues().running == (2, 1)
