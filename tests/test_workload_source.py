"""What the world is sent: rules of [workload] over traces and generators."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import ConfigError, TraceError
from sim.config import WorkloadConfig
from traces.workload.lengths import Exponential, Uniform
from traces.workload.limits import MaxTokensRule, check_rule, resolve_max_tokens
from traces.workload.rows import TraceRow
from traces.workload.source import EXACT_LIMITS, Workload, build_source

MODEL_LEN = 4096


def generated(**changes: object) -> Workload:
    base: dict[str, object] = {
        "generator": "poisson",
        "rate_per_s": 8.0,
        "num_requests": 500,
        "prompt": Uniform(50, 200),
        "output": Uniform(100, 500),
    }
    return build_source(WorkloadConfig(**(base | changes)), MODEL_LEN)  # type: ignore[arg-type]


def replayed(path: Path, **changes: object) -> Workload:
    return build_source(WorkloadConfig(trace=str(path), **changes), MODEL_LEN)  # type: ignore[arg-type]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "own.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,max_tokens,parent_id,abort_after_s\n"
        "0,10,4,16,,\n2,20,5,,0,7.5\n5,30,6,64,,\n"
    )
    return path


def test_the_same_seed_gives_the_same_requests_each_time() -> None:
    workload = generated()
    rows = list(workload.rows())
    assert rows == list(workload.rows()) == list(generated().rows())
    assert rows != list(generated(seed=1).rows())
    assert workload.num_requests == len(rows) == 500
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(rows))
    assert all(50 <= row.prompt_tokens <= 200 and 100 <= row.output_tokens <= 500 for row in rows)
    assert workload.description == "poisson at 8/s, prompt uniform 50..200, output uniform 100..500"


def test_a_table_of_lengths_is_for_a_closed_loop(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n")
    assert [row.prompt_tokens for row in replayed(path, concurrency=1).rows()] == [5, 7]
    with pytest.raises(TraceError) as error:
        replayed(path)
    assert str(error.value) == (
        f"{path}: has lengths but no arrival times; give workload.concurrency for a closed loop, or make a profile of "
        "it ('batchscope traces fit') and give workload.rate_per_s"
    )


def test_a_limit_keeps_the_first_requests() -> None:
    assert list(generated(limit=37).rows()) == list(generated().rows())[:37]
    assert generated(limit=37).num_requests == 37
    assert generated(limit=1000).num_requests == 500


def test_rates_share_lengths_and_scale_gaps() -> None:
    rows, faster = list(generated().rows()), list(generated(rate_scale=2.0).rows())
    assert [row.arrival_s / 2 for row in rows] == [row.arrival_s for row in faster]
    assert [row[1:] for row in rows] == [row[1:] for row in faster]


def test_each_random_part_has_a_stream_of_its_own() -> None:
    rows = list(generated().rows())
    for part, changes in (
        ("arrival_s", {"generator": "gamma", "cv": 2.0}),
        ("prompt_tokens", {"prompt": Exponential(100.0, 400)}),
        ("output_tokens", {"output": Exponential(100.0, 400)}),
    ):
        others = list(generated(**changes).rows())
        for name in ("arrival_s", "prompt_tokens", "output_tokens"):
            same = [getattr(row, name) for row in rows] == [getattr(row, name) for row in others]
            assert same == (name != part)


def test_a_closed_loop_sends_all_at_zero() -> None:
    workload = generated(generator="closed-loop", rate_per_s=None, concurrency=8, think_time_s=1.5)
    rows = list(workload.rows())
    assert {row.arrival_s for row in rows} == {0.0}
    assert [row[1:4] for row in rows] == [row[1:4] for row in generated().rows()]
    assert (workload.concurrency, workload.think_time_s) == (8, 1.5)
    assert workload.description == (
        "closed-loop, prompt uniform 50..200, output uniform 100..500, "
        "closed loop of 8 clients, think time 1.5 s"
    )


def test_many_requests_need_no_memory() -> None:
    workload = generated(num_requests=100_000)
    tracemalloc.start()
    assert sum(1 for _ in workload.rows()) == 100_000
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 200_000


def test_generated_limits_follow_the_rule() -> None:
    rows = list(generated().rows())
    assert all(row.max_tokens == row.output_tokens for row in rows)
    model = list(generated(max_tokens="model").rows())
    assert all(row.max_tokens == MODEL_LEN - row.prompt_tokens for row in model)
    assert [row._replace(max_tokens=None) for row in rows] == [row._replace(max_tokens=None) for row in model]
    assert {row.max_tokens for row in generated(max_tokens=77).rows()} == {77}
    assert generated().notices == generated(max_tokens="output").notices == (EXACT_LIMITS,)
    assert generated(max_tokens="x2").notices == ()
    with pytest.raises(ConfigError) as error:
        generated(max_tokens="trace")
    assert str(error.value) == (
        "workload.max_tokens = 'trace': a generator or profile has no such column; use 'output' or a number"
    )


def test_patience_of_all_requests() -> None:
    assert {row.abort_after_s for row in generated(abort_after_s=2.5).rows()} == {2.5}
    scaled = generated(abort_after_s=2.5, max_tokens="x2", rate_scale=3.0)
    assert {row.abort_after_s for row in scaled.rows()} == {2.5}


def test_a_rate_scale_counts_once_whatever_the_limits() -> None:
    one, other = generated(rate_scale=2.0), generated(rate_scale=2.0, max_tokens="model")
    assert [row.arrival_s for row in one.rows()] == [row.arrival_s for row in other.rows()]


def test_a_trace_keeps_its_own_limits_and_patience(trace: Path) -> None:
    workload = replayed(trace, abort_after_s=30.0)
    assert list(workload.rows()) == [
        TraceRow(0.0, 10, 4, 16, abort_after_s=30.0),
        TraceRow(2.0, 20, 5, 5, parent_id=0, abort_after_s=7.5),
        TraceRow(5.0, 30, 6, 64, abort_after_s=30.0),
    ]
    assert workload.notices == (f"1 of 3 rows have no max_tokens; for these {EXACT_LIMITS}",)
    assert workload.description == f"{trace} (csv)"


def test_rate_scale_and_limit_of_a_trace(trace: Path) -> None:
    workload = replayed(trace, rate_scale=4.0, limit=2)
    assert [row.arrival_s for row in workload.rows()] == [0.0, 0.5]
    assert workload.num_requests == 2
    assert workload.description == f"{trace} (csv), rate x4"


def test_a_closed_loop_over_a_trace_ignores_times_and_parents(trace: Path) -> None:
    workload = replayed(trace, concurrency=2, max_tokens="output")
    assert [(row.arrival_s, row.parent_id) for row in workload.rows()] == [(0.0, None)] * 3
    assert workload.notices == (
        EXACT_LIMITS,
        "parent_id was ignored: in a closed loop each client takes the next row",
    )


def test_the_rule_trace_needs_the_column_in_every_row(trace: Path) -> None:
    with pytest.raises(TraceError) as error:
        replayed(trace, max_tokens="trace")
    assert str(error.value) == (
        f"{trace}: workload.max_tokens = 'trace', but 1 of 3 rows have no max_tokens; "
        "use 'output', 'model', a number or 'xF'"
    )


def test_a_trace_without_the_column_says_that_limits_are_assumed(tmp_path: Path) -> None:
    path = tmp_path / "three.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,20\n")
    assert replayed(path).notices == (EXACT_LIMITS,)
    assert replayed(path, max_tokens=9).notices == ()
    assert list(replayed(path, max_tokens=9).rows()) == [TraceRow(0.5, 10, 20, 9)]


def test_a_bad_trace_is_found_before_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,20\n0.6,ten,20\n")
    with pytest.raises(TraceError, match="line 3, column num_prefill_tokens"):
        replayed(path)


@pytest.mark.parametrize(
    ("rule", "limit", "expected"),
    [
        (None, None, 30),
        (None, 50, 50),
        ("trace", 50, 50),
        ("output", 50, 30),
        ("model", 50, 3996),
        (64, 50, 64),
        ("x2", 50, 60),
        ("x1.1", 50, 33),
        ("x0.01", 50, 1),
    ],
)
def test_rules_for_limits(rule: MaxTokensRule, limit: int | None, expected: int) -> None:
    assert resolve_max_tokens(rule, TraceRow(0.0, 100, 30, limit), MODEL_LEN) == expected


def test_the_model_leaves_at_least_one_token() -> None:
    assert resolve_max_tokens("model", TraceRow(0.0, 5000, 30), MODEL_LEN) == 1


def test_the_rule_trace_without_a_value() -> None:
    with pytest.raises(TraceError) as error:
        resolve_max_tokens("trace", TraceRow(0.0, 100, 30), MODEL_LEN)
    assert str(error.value) == (
        "workload.max_tokens = 'trace', but a row has no max_tokens; use 'output' or a number"
    )


@given(
    rule=st.one_of(
        st.sampled_from([None, "output", "model"]),
        st.integers(1, 10**6),
        st.floats(0.01, 100).map(lambda factor: f"x{factor!r}"),
    ),
    prompt=st.integers(1, 5000),
    output=st.integers(1, 5000),
)
def test_resolving_twice_changes_nothing(rule: MaxTokensRule, prompt: int, output: int) -> None:
    row = TraceRow(0.0, prompt, output)
    limit = resolve_max_tokens(rule, row, MODEL_LEN)
    assert limit >= 1
    assert resolve_max_tokens(rule, row._replace(max_tokens=limit), MODEL_LEN) == limit


@pytest.mark.parametrize("rule", ["", "x", "x0", "x-1", "xnan", "xinf", "1.5", "all", 0, -1, 1.5, True, [3]])
def test_impossible_rules(rule: object) -> None:
    with pytest.raises(ConfigError) as error:
        check_rule(rule)
    assert str(error.value) == (
        f"workload.max_tokens = {rule!r}: give 'trace', 'output', 'model', a whole number of at least 1, "
        "or 'x' and a factor such as 'x1.5'"
    )
