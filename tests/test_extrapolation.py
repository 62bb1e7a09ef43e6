"""Steps outside what a cost model was fitted to are counted, and a summary says how many."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from sim.extrapolation import ExtrapolationSink
from tests.command import batchscope, own_csv
from tests.records import REQUEST, STEP
from traces.record.columns import Columns
from traces.record.schema import Stall, StepRow


class Range(NamedTuple):
    """A cost model measured up to 100 tokens, 8 decoding sequences, and a mean context of 50."""

    largest_step: tuple[int, int, int] = (100, 8, 50)


LARGEST = STEP._replace(num_tokens=100, num_seqs=8, sum_context=8 * 50)
QUIET = LARGEST._replace(num_tokens=8, steps=5, first=0)


@pytest.mark.parametrize(
    ("row", "outside"),
    [
        (LARGEST, 0),
        (LARGEST._replace(num_tokens=101), 1),
        (LARGEST._replace(num_seqs=9), 1),
        (LARGEST._replace(sum_context=401), 1),
        (LARGEST._replace(num_seqs=1, sum_context=51), 1),
        (LARGEST._replace(num_tokens=101, num_seqs=9, sum_context=9 * 51), 1),
        (STEP._replace(num_tokens=100, chunk_tokens=100), 0),
        (QUIET, 0),
        (QUIET._replace(sum_context=401), 5),
    ],
)
def test_a_step_is_outside_if_any_of_its_sizes_is(row: StepRow, outside: int) -> None:
    sink = ExtrapolationSink(Range())
    Columns(sink).steps([LARGEST, row])
    assert sink.steps == outside


def test_steps_add_up_over_batches_and_nothing_else_counts() -> None:
    sink = ExtrapolationSink(Range())
    rows = Columns(sink)
    rows.steps([QUIET._replace(num_seqs=9), LARGEST, LARGEST._replace(num_tokens=200)])
    rows.requests([REQUEST._replace(prompt_tokens=1000)])
    rows.stalls([Stall(1000.0, 1000, "swap")])
    rows.steps([LARGEST._replace(num_tokens=300)])
    rows.close()
    assert sink.steps == 5 + 1 + 1


@pytest.mark.parametrize(("num_requests", "outside"), [(128, 0), (129, 2)])
def test_a_run_beyond_the_measured_128_sequences_says_so(
    num_requests: int, outside: int, tmp_path: Path
) -> None:
    trace = tmp_path / "burst.csv"
    trace.write_text(own_csv(*[(0, 1, 3)] * num_requests))
    summary = batchscope("run", "--trace", trace, "--policy", "vllm-0.33", "--json").summary
    # One step computes the prompts and the first token of each, two decode the other tokens.
    assert summary["steps"]["count"] == 3
    assert summary["cost_model"]["extrapolated_steps"] == outside


def test_shares_by_limit_and_a_warning_above_five_percent() -> None:
    sink = ExtrapolationSink(Range())
    assert (sink.shares(), sink.notice(0.007)) == (None, "")
    Columns(sink).steps([LARGEST] * 3)
    assert sink.notice(0.007) == ""
    Columns(sink).steps([QUIET._replace(num_seqs=16), LARGEST._replace(num_tokens=200, num_seqs=9)])
    Columns(sink).steps([LARGEST._replace(sum_context=480)])
    assert sink.shares() == {"tokens": 1 / 10, "sequences": 6 / 10, "context": 1 / 10}
    assert sink.notice(0.007) == (
        "WARNING: 70 % of the steps are outside the measured range (tokens of a step up to 200, measured to 100; "
        "sequences up to 16, measured to 8; mean context up to 60, measured to 50); "
        "the 0.7 % error does not apply to them"
    )


@pytest.mark.parametrize(("inside", "warns"), [(19, False), (18, True)])
def test_five_percent_are_a_remark_and_more_a_warning(inside: int, warns: bool) -> None:
    sink = ExtrapolationSink(Range())
    Columns(sink).steps([LARGEST] * inside + [LARGEST._replace(num_seqs=9)])
    assert sink.notice(None).startswith("WARNING: ") is warns


def test_a_warning_comes_before_all_other_notes(tmp_path: Path) -> None:
    trace = tmp_path / "burst.csv"
    trace.write_text(own_csv(*[(0, 1, 3)] * 256))
    summary = batchscope("run", "--trace", trace, "--policy", "vllm-0.33", "--json").summary
    assert summary["cost_model"]["extrapolated_share"] == {"tokens": 0, "sequences": 2 / 3, "context": 0}
    assert summary["notes"][0] == (
        "WARNING: 67 % of the steps are outside the measured range (sequences up to 256, measured to 128); "
        f"the {100 * summary['cost_model']['error']['median']:.1f} % error does not apply to them"
    )
    assert len(summary["notes"]) > 1
