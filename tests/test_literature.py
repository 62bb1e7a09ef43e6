"""Schedulers from the literature: step tables worked out by hand from their rules.

tests/decision_tables.py explains the columns. All tables use blocks of 4 tokens; a step takes a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.request import Request
from policies.systems.andes import Andes
from policies.systems.fair import VirtualTokenCounter
from policies.systems.fastserve import FastServe
from policies.systems.length_predictor import LengthPredictor
from policies.systems.ranked_budget import RankedBudget
from sim import simulate
from tests.decision_tables import check_script
from tests.stepping import Predictions

LIMITS: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 32, "max_model_len": 64}


class PacedWorld(Predictions):
    """A step takes a second, a prompt a second a block."""

    def __init__(self, output_len: Mapping[int, int] | None = None) -> None:
        super().__init__(output_len or {})

    def step_time_s(self, *contents: object) -> float:
        """A second."""
        return 1.0

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        """A second a block."""
        return num_tokens / 4


def memory(*, num_cpu_blocks: int = 0) -> KvManager:
    return KvManager(9, 4, null_block=True, num_cpu_blocks=num_cpu_blocks)


def ranked(order: Any, lengths: Mapping[int, int] | None = None, **settings: Any) -> RankedBudget:
    return RankedBudget(memory(), order=order, services=PacedWorld(lengths), **LIMITS, **settings)


def check(policy: Any, script: str) -> None:
    check_script(policy, script, max_model_len=LIMITS["max_model_len"])


# -- orders ------------------------------------------------------------------------------------------------------------


def test_the_shortest_predicted_answer_goes_first() -> None:
    check(
        ranked("sjf", {0: 3, 1: 1, 2: 2}),
        """
        +A 4/3
        +B 4/1
        +C 4/2
        0 | B:4@0* | 7 | C A | - | - | done B
        1 | C:4@0* | 7 | A | C | - | -
        2 | C:1@4* | 6 | A | - | - | done C
        3 | A:4@0* | 7 | - | A | - | -
        4 | A:1@4* | 6 | - | A | - | -
        5 | A:1@5* | 6 | - | - | - | done A
        """,
    )


@pytest.mark.parametrize(("ageing", "first", "second"), [(0.0, "B", "A"), (2.0, "A", "B")])
def test_a_second_of_waiting_is_worth_tokens(ageing: float, first: str, second: str) -> None:
    check(
        ranked("sjf", {0: 2, 1: 6, 2: 3}, ageing_per_s=ageing),
        f"""
        +X 4/2
        +A 4/1            # predicted 6
        0 | X:4@0* | 7 | A | X | - | -
        1 | X:1@4* | 6 | A | - | - | done X
        +B 4/1            # predicted 3, two seconds later: worth 3 + 2 x 2 = 7 by then
        2 | {first}:4@0* | 7 | {second} | - | - | done {first}
        3 | {second}:4@0* | 7 | - | - | - | done {second}
        """,
    )


def test_a_shorter_rest_takes_the_seat_once_and_starts_in_the_next_step() -> None:
    check(
        ranked("srtf", {0: 5, 1: 1, 2: 1}, evict_running=True, preemption_cap=1),
        """
        +A 4/5
        0 | A:4@0* | 7 | - | A | - | -
        +B 4/1
        1 | - | 8 | B A | - | - | preempted A     # 1 token to come against 4
        2 | B:4@0* | 7 | A | - | - | done B
        3 | A:5@0* | 6 | - | A | - | -            # the prompt and the token made
        +C 4/1
        4 | A:1@5* | 6 | C | A | - | -            # 1 against 3, but A has given way once
        5 | A:1@6* | 6 | C | A | - | -
        6 | A:1@7* | 6 | C | - | - | done A
        7 | C:4@0* | 7 | - | - | - | done C
        """,
    )


def test_nobody_is_evicted_in_vain() -> None:
    policy = ranked("priority", evict_running=True)
    policy.max_num_seqs = 3
    check(
        policy,
        """
        +A 12/3 p0
        +B 4/3 p2
        0 | A:12@0* B:4@0* | 4 | - | A B | - | -
        +C 20/1 p1
        1 | A:1@12* B:1@4* | 2 | C | A B | - | -      # B's block and the free ones are 4 of the 5 that C needs
        2 | A:1@13* B:1@5* | 2 | C | - | - | done A B
        3 | C:20@0* | 3 | - | - | - | done C
        """,
    )


def test_the_earliest_deadline_goes_first() -> None:
    check(
        ranked("edf"),
        """
        +X 4/2 t1
        +A 4/1 t9
        +B 4/1 t3
        0 | X:4@0* | 7 | B A | X | - | -
        1 | X:1@4* | 6 | B A | - | - | done X
        2 | B:4@0* | 7 | A | - | - | done B
        3 | A:4@0* | 7 | - | - | - | done A
        """,
    )


@pytest.mark.parametrize(("order", "first", "second"), [("edf", "B", "A"), ("least-laxity", "A", "B")])
def test_a_long_prompt_has_less_time_to_spare(order: str, first: str, second: str) -> None:
    free = {"A": 5, "B": 7}
    check(
        ranked(order),
        f"""
        +A 12/1 t8        # must start at 8 - 3 = 5
        +B 4/1 t7         # must start at 7 - 1 = 6
        0 | {first}:{12 if first == "A" else 4}@0* | {free[first]} | {second} | - | - | done {first}
        1 | {second}:{12 if second == "A" else 4}@0* | {free[second]} | - | - | - | done {second}
        """,
    )


def test_an_order_that_is_none() -> None:
    with pytest.raises(ConfigError, match="did you mean 'srtf'"):
        ranked("srft")


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_predictions_depend_on_seed_and_request_alone_and_their_median_is_right() -> None:
    requests = [Request(number, 0.0, 10, 1_000) for number in range(4_000)]
    lengths = dict.fromkeys(range(4_000), 10_000)

    def predicted(seed: int, **settings: Any) -> list[int]:
        predictor = LengthPredictor(Predictions(lengths), seed=seed, **settings)
        return [predictor.predict(request) for request in requests]

    noisy = predicted(1, sigma=0.5)
    assert noisy == predicted(1, sigma=0.5)
    assert noisy != predicted(2, sigma=0.5)
    assert sorted(noisy)[2_000] == pytest.approx(10_000, rel=0.03)
    logs = [log(length / 10_000) for length in noisy]
    assert fmean(logs) == pytest.approx(0.0, abs=0.03)
    assert stdev(logs) == pytest.approx(0.5, rel=0.04)
    assert set(predicted(1)) == {10_000}
    assert set(predicted(1, source="max_tokens")) == {1_000}


def test_a_driver_that_knows_no_lengths_says_so() -> None:
    with pytest.raises(ConfigError, match="length_predictor = 'oracle': needs a driver that knows lengths"):
        LengthPredictor(None)
    assert LengthPredictor(None, source="max_tokens").predict(Request(0, 0.0, 5, 7)) == 7
    with pytest.raises(ConfigError, match="did you mean 'oracle'"):
        LengthPredictor(None, source="oracel")  # type: ignore[arg-type]


# -- clients -----------------------------------------------------------------------------------------------------------


def test_the_client_with_the_least_service_is_next_and_nobody_saves_up_credit() -> None:
    policy = VirtualTokenCounter(memory(), **LIMITS)
    check(
        policy,
        """
        +A 4/2 @ann
        +B 4/2 @ann
        +C 4/2 @bob
        0 | A:4@0* | 7 | C B | A | - | -
        1 | A:1@4* | 6 | C B | - | - | done A      # ann has had 4 + 2 x 2 = 8
        2 | C:4@0* | 7 | B | C | - | -
        3 | C:1@4* | 6 | B | - | - | done C        # bob too
        +D 4/1 @bob
        4 | B:4@0* | 7 | D | B | - | -             # equal ones by name
        +E 4/1 @zoe                                # starts at bob's 8, not at 0
        5 | B:1@4* | 6 | D E | - | - | done B
        6 | D:4@0* | 7 | E | - | - | done D
        7 | E:4@0* | 7 | - | - | - | done E
        """,
    )
    assert [policy.counter(name) for name in ("ann", "bob", "zoe")] == [16.0, 14.0, 14.0]


# -- levels ------------------------------------------------------------------------------------------------------------


def levels(*, proactive: bool, **settings: Any) -> FastServe:
    return FastServe(
        memory(num_cpu_blocks=8),
        num_levels=3,
        quantum_steps=2,
        proactive_swap=proactive,
        services=PacedWorld(),
        **LIMITS,
        **settings,
    )


def test_a_used_up_quantum_makes_way_for_a_new_request() -> None:
    check(
        levels(proactive=False),
        """
        +A 4/6
        0 | A:4@0* | 7+8 | - | A | - | -
        1 | A:1@4* | 6+8 | - | A | - | -      # two steps used: down a queue
        +B 4/1
        2 | B:4@0* | 7+6 | - | - | A | out A=2, done B
        3 | A:1@5* | 6+8 | - | A | - | in A=2
        4 | A:1@6* | 6+8 | - | A | - | -
        5 | A:1@7* | 6+8 | - | A | - | -
        6 | A:1@8* | 5+8 | - | - | - | done A
        """,
    )


def test_transfers_beside_the_steps_end_before_the_next_one() -> None:
    check(
        levels(proactive=True),
        """
        +A 4/4
        0 | A:4@0* | 7+8 | - | A | - | -
        1 | A:1@4* | 6+8 | - | A | - | -
        +B 4/1
        2 | B:4@0* | 5+6 | - | - | A | out A=2, done B    # A's two blocks are on their way
        3 | - | 6+6 | - | - | A | in A=2
        4 | A:1@5* | 6+8 | - | A | - | -
        5 | A:1@6* | 6+8 | - | - | - | done A
        """,
    )


def test_a_long_prompt_joins_the_queue_that_covers_it() -> None:
    check(
        levels(proactive=False),
        """
        +L 16/1           # four steps: the second queue
        +S 4/1
        0 | S:4@0* | 7+8 | L | - | - | done S
        1 | L:16@0* | 4+8 | - | - | - | done L
        """,
    )


def test_who_starves_goes_to_the_first_queue() -> None:
    check(
        levels(proactive=False, starvation_limit_steps=3),
        """
        +L 16/1
        +A 4/1
        +B 4/1
        +C 4/1
        0 | A:4@0* | 7+8 | B C L | - | - | done A
        1 | B:4@0* | 7+8 | C L | - | - | done B
        +D 4/1
        +E 4/1
        2 | C:4@0* | 7+8 | D E L | - | - | done C
        3 | L:16@0* | 4+8 | D E | - | - | done L     # three steps of waiting; no decode step has passed, so by number
        4 | D:4@0* | 7+8 | E | - | - | done D
        5 | E:4@0* | 7+8 | - | - | - | done E
        """,
    )


# -- quality of experience ---------------------------------------------------------------------------------------------


def test_the_greater_gain_per_block_takes_the_seat() -> None:
    """At second 1, with 5 s ahead: A has made what is due, and would gain 12.5 of 17.5 with 2 blocks; B, whose first
    token is due at second 2, all of 12 with 2 blocks. A has given way once then and stays."""
    policy = Andes(
        memory(), ttft_target_s=1.0, tpot_target_s=1.0, qoe_horizon_s=5.0, replan_steps=2, preemption_cap=1,
        services=Predictions({}), **LIMITS,
    )  # fmt: skip
    check(
        policy,
        """
        +A 4/3
        0 | A:4@0* | 7 | - | A | - | -
        +B 4/3
        1 | - | 8 | B A | - | - | preempted A
        2 | B:4@0* | 7 | A | B | - | -
        3 | B:1@4* | 6 | A | B | - | -
        4 | B:1@5* | 6 | A | - | - | done B
        5 | A:5@0* | 6 | - | A | - | -
        +C 4/1
        6 | A:1@5* | 6 | C | - | - | done A
        7 | C:4@0* | 7 | - | - | - | done C
        """,
    )


# -- limits ------------------------------------------------------------------------------------------------------------


def test_deadlines_come_from_the_trace_else_from_the_slo_section(tmp_path: Path) -> None:
    """One seat. Without limits all have the same, so they go as they came; those of [slo] are for who has none."""
    trace = tmp_path / "trace.csv"
    rows = ["arrival_s,prompt_tokens,output_tokens,slo_ttft_s", "0,8,40,0.1", "0,8,4,9", "0,8,4,", "0,8,4,3"]
    trace.write_text("\n".join(rows) + "\n")

    def order(*settings: str) -> list[int]:
        keys = ["engine.max_num_seqs=1", "engine.ttft_target_s=5", *settings]
        result = simulate(trace=str(trace), policy="edf", overrides=keys, out=tmp_path / f"run{len(settings)}")
        return list(result.requests.sort_values("first_scheduled_s")["id"])

    assert order() == [0, 3, 2, 1]
    assert order("slo.ttft_s=20") == [0, 3, 1, 2]
