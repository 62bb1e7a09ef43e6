"""Several decode steps on one plan (vLLM 0.6.3): step tables worked out by hand from its rules, and times of delivery.

tests/decision_tables.py explains the columns; a line is a plan, with one step of its rows. All tables use blocks of 4
tokens, no watermark and 3 steps a plan.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.systems.multi_step import MultiStep
from sim.world.groups import GroupCosts
from tests.command import batchscope, chat
from tests.decision_tables import check_script
from tests.mirror_run import Item, MirrorRun
from tests.scripts import items, sizes
from tests.token_watch import recorded_gaps, recorded_token_times
from tests.variants import VARIANTS, Size, Variant
from tests.worlds import SHIPPED, Case, KnottyCosts, Run, run_case, workload_of
from traces.workload.rows import TraceRow

MAX_MODEL_LEN = 64
THREE = Variant("three", "vllm-0.6-multi-step", "prompts", {"num_scheduler_steps": 3})
SINGLE = Variant("single", "vllm-0.6-multi-step", "prompts", {"num_scheduler_steps": 1})


def multi_step(num_blocks: int, *, num_cpu_blocks: int = 0, steps: int = 3) -> MultiStep:
    return MultiStep(
        KvManager(num_blocks, 4, num_cpu_blocks=num_cpu_blocks),
        num_scheduler_steps=steps,
        max_num_seqs=8,
        max_num_batched_tokens=MAX_MODEL_LEN,
        max_model_len=MAX_MODEL_LEN,
        watermark=0.0,
        preemption_mode="swap" if num_cpu_blocks else "recompute",
        faithful=True,
    )


def check(policy: MultiStep, script: str, *, show_blocks: bool = False) -> None:
    check_script(policy, script, max_model_len=MAX_MODEL_LEN, show_blocks=show_blocks)


# -- step tables -------------------------------------------------------------------------------------------------------


def test_blocks_of_three_steps_are_taken_at_once_and_a_row_that_stops_keeps_its_own() -> None:
    check(
        multi_step(8),
        """
        +A 4/6
        +B 3/2
        0 | A:4@0* B:3@0* | 6 | - | A B | - | A+0, B+1
        # A stores tokens 5 to 7 and B 4 to 6: a 2nd block for each. B stops after the first step of the three.
        1 | A:1@4* B:1@3* | 4 | - | A | - | A+2, B+3, done B
        +C 4/1
        2 | C:4@0* | 5 | - | A | - | C+4, done C      # one step: a prefill plan takes no blocks ahead
        3 | A:1@7* | 5 | - | - | - | A+5, done A      # tokens 8 to 10; A stops after the second step
        4 | idle
        """,
        show_blocks=True,
    )


def test_a_row_asks_for_the_blocks_of_its_last_plan_too() -> None:
    check(
        multi_step(4),
        """
        +A 4/9
        +B 4/9
        0 | A:4@0* B:4@0* | 2 | - | A B | - | -
        1 | A:1@4* B:1@4* | 0 | - | A B | - | -           # tokens 5 to 7
        # A stores tokens 8 to 10 and asks for 2 blocks, since 6 to 8 are new to the scheduler: B gives way.
        2 | A:1@7* | 1 | B | A | - | preempted B
        # A stores tokens 11 to 13 and needs one block, which is free; it asks for 2, since 9 to 11 are new.
        3 | - | 4 | A B | - | - | preempted A
        4 | A:11@0* | 1 | B | A | - | -
        5 | - | 4 | A B | - | - | preempted A             # tokens 12 to 14, 12 new: the 3rd block and a 4th
        6 | A:12@0* | 1 | B | - | - | done A
        7 | B:8@0* | 2 | - | B | - | -
        8 | B:1@8* | 1 | - | B | - | -                    # tokens 9 to 11
        9 | - | 4 | B | - | - | preempted B
        10 | B:12@0* | 1 | - | - | - | done B
        """,
    )


def test_a_swapped_row_comes_back_when_a_whole_plan_fits() -> None:
    check(
        multi_step(4, num_cpu_blocks=4),
        """
        +A 4/6
        +B 4/5
        0 | A:4@0* B:4@0* | 2+4 | - | A B | - | -
        1 | A:1@4* B:1@4* | 0+4 | - | A B | - | -
        2 | A:1@7* | 1+2 | - | - | B | out B=2, done A
        3 | B:1@7* | 1+4 | - | - | - | in B=2, done B     # 2 blocks return, for tokens 8 to 10 there is a 3rd
        """,
    )


@given(size=sizes(), script=items(), seed=st.integers(0, 99))
def test_one_step_a_plan_is_the_default_scheduler(size: Size, script: list[Item], seed: int) -> None:
    single, default = (MirrorRun(variant, size, script).run() for variant in (SINGLE, VARIANTS["v0-recompute"]))
    assert single == default


def test_no_step_a_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_scheduler_steps is 0 and must be at least 1"):
        multi_step(4, steps=0)


# -- times of delivery -------------------------------------------------------------------------------------------------


class Seconds(KnottyCosts):
    """One second a step, a quarter of it the host's."""

    def step_time_s(self, *step: object) -> float:
        """One second, whatever it computes."""
        return 1.0

    def decode_curve(self, *step: object) -> tuple[float, float, int]:
        """One second, with a knot after every second step."""
        return 1.0, 0.0, 2

    def host_time_s(self, num_seqs: int) -> float:
        """A quarter of a second."""
        return 0.25


def served(*rows: TraceRow, max_time_s: float | None = None) -> Run:
    size = Size(64, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64)
    return run_case(Case(THREE, size, workload_of(rows), Seconds(), max_time_s), skip_ahead=True)


def test_tokens_of_a_plan_come_together_and_arrivals_wait_for_its_end() -> None:
    # 0     1          3.5      4.5        7
    # | r0 p | r0 d d d | r1 p   | r0 r1 d d d     a plan of three steps lasts 3 - 2 x 0.25 s; r1 comes at 1.5
    kept = served(TraceRow(0.0, 4, 6, 6), TraceRow(1.5, 4, 2, 2)).kept
    assert recorded_token_times(kept) == {0: [1.0, 3.5, 3.5, 3.5, 7.0, 7.0], 1: [4.5, 7.0]}
    assert recorded_gaps(kept) == {2.5: 2, 0.0: 3, 3.5: 1}
    assert {row.id: row.finish_s for row in kept.request_rows} == {0: 7.0, 1: 7.0}
    assert [row.num_seqs * row.steps for row in kept.step_rows] == [0, 1, 2, 0, 2, 2, 2], "all rows are charged"
    assert [row.emitting * row.steps for row in kept.step_rows] == [0, 1, 2, 0, 2, 1, 0]


def test_a_client_that_goes_away_in_a_plan_is_noticed_at_its_end() -> None:
    (row,) = served(TraceRow(0.0, 4, 9, 9, abort_after_s=2.0)).kept.request_rows
    assert (row.reason, row.finish_s, row.output_tokens) == ("abort", 3.5, 4)


def test_a_client_that_goes_away_in_its_last_plan_has_its_answer() -> None:
    (row,) = served(TraceRow(0.0, 4, 3, 3, abort_after_s=2.0)).kept.request_rows
    assert (row.reason, row.finish_s, row.output_tokens) == ("stop", 3.5, 3)


def test_a_run_ends_with_a_whole_plan() -> None:
    run = served(TraceRow(0.0, 4, 30, 30), max_time_s=2.0)
    (row,) = run.kept.request_rows
    assert (run.outcome.end_s, row.output_tokens) == (3.5, 4)


@pytest.mark.parametrize("steps", [2, 10, 300])
def test_a_plan_lasts_as_long_as_its_steps(steps: int) -> None:
    """Over the knots of the cost model; the shipped file has no host time."""
    one_by_one = sum(SHIPPED.step_time_s(7, 7, 7 * (200 + step), 300 + step, ()) for step in range(steps))
    assert GroupCosts(SHIPPED, steps).step_time_s(7, 7, 1_400, 300, ()) == pytest.approx(one_by_one, rel=1e-12)


# -- in words ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_empty_folder")
def test_a_page_and_a_step_say_that_steps_are_planned_together() -> None:
    arguments = "--num-scheduler-steps 8 --multi-step-stream-outputs False"
    chosen = ("--policy", "vllm-0.6", "--vllm-args", arguments, "--set", "sim.record=steps")
    ran = batchscope("run", *chat(1.0, 3), *chosen, "--out", "out")
    assert ran.exit_code == 0, ran
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert "Decode steps run 8 at a time: requests join and leave, and get their tokens, in between." in page
    assert json.loads(Path("out/summary.json").read_text(encoding="utf-8"))["delivery"] == "every_k"
    prompt, decode = (batchscope("explain", "out", "--step", step).stdout.splitlines()[1] for step in ("0", "1"))
    assert prompt.startswith("It computed ")
    assert decode == "It is one of 8 on one plan, whose tokens come together: the first has the time of all."
