"""What a sink writes comes back: rows, steps of quiet runs, and the time of every token."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import ConfigError, UserError
from policies.core.plan import QuietRun
from policies.core.request import Request
from tests.records import NAN, REQUEST, STEP, known
from traces.record.columns import Columns, StepTable
from traces.record.expand import blocks_taken, chunks, expand
from traces.record.jsonl import JsonlSink, read_jsonl
from traces.record.live import Live
from traces.record.packed import RequestPacker, StepPacker
from traces.record.parquet import ParquetSink
from traces.record.read import expand_steps, read_run, token_times
from traces.record.schema import RecordSink, RequestRow, Stall, StepRow

PREFILL = STEP._replace(num_tokens=16, chunk_emits=2, chunk_tokens=16, waiting=1, running=2, free_blocks=95)
QUIET = STEP._replace(
    step=1, steps=3, start_s=1.0, end_s=3.25, first=0, anchor_s=1.0, base_s=0.5, slope_s=0.125, num_seqs=2,
    num_tokens=2, sum_context=16, emitting=2, irregular=2, waiting=1, running=2, free_blocks=95, stored_tokens=16,
    moved_bytes=7, limited_by="kv_blocks", phase=3, residues=(0, 2, 5, 1),
)  # fmt: skip
STEPS = [PREFILL, QUIET]
REQUESTS = [
    REQUEST._replace(id=7, finish_s=3.25, output_tokens=4, client_id="a", segments=((1.0, 0, 3),)),
    REQUEST._replace(
        id=8, arrival_s=0.5, first_scheduled_s=0.5, finish_s=3.25, reason="length", prompt_tokens=6, output_tokens=3,
        priority=1, client_id="é", swap_preemptions=1, waited_s=0.5, segments=((1.0, 0, 1), (NAN, 2, 1)),
    ),
    REQUEST._replace(
        id=9, arrival_s=0.5, first_scheduled_s=NAN, first_token_s=NAN, finish_s=0.5, reason="prompt_too_long",
        prompt_tokens=99, output_tokens=0,
    ),
]  # fmt: skip
STALLS = [Stall(0.5, 2, "decode")]


def fill(sink: RecordSink) -> None:
    sink.steps(STEPS)
    sink.requests(REQUESTS)
    sink.stalls(STALLS)
    sink.close()


def distinct(row: type, **others: object) -> dict[str, object]:
    """Values of all columns of a kind of row, no two of them equal."""
    kinds = {name: kind for name, kind in get_type_hints(row).items() if name not in others}
    return {**{name: kind(place) for place, (name, kind) in enumerate(kinds.items(), 1)}, **others}


def test_packed_steps_are_the_rows_that_were_set() -> None:
    values = distinct(StepRow, limited_by="kv_blocks", residues=(0, 2))
    packer = StepPacker()
    for count in range(2):
        packer.begin()
        for name, value in values.items():
            setattr(packer, name, value)
        packer.steps += count  # the last row may still grow
    rows = packer.take(last=True)
    first = StepRow(**values)  # type: ignore[arg-type]
    assert list(rows) == [first, first._replace(steps=first.steps + 1)]
    for name, column in StepTable.of(rows).numbers.items():
        assert column[0] == values[name]
    assert list(packer.take(last=True)) == []


def test_packed_requests_are_what_is_known_of_them() -> None:
    values = distinct(RequestRow, reason="stop", client_id="a", segments=((1.0, 0, 3),))
    wanted = RequestRow(**values)  # type: ignore[arg-type]
    prompt, number = wanted.prompt_tokens, wanted.id
    live = Live(Request(number, wanted.arrival_s, prompt, 99, wanted.priority, "a"))
    live.first_scheduled_s, live.first_token_s = wanted.first_scheduled_s, wanted.first_token_s
    live.recomputes, live.swaps = wanted.recompute_preemptions, wanted.swap_preemptions
    live.recomputed, live.waited_s = wanted.recomputed_tokens, wanted.waited_s
    live.hit_new, live.hit_resumed, live.segments = wanted.hit_tokens_new, wanted.hit_tokens_resumed, wanted.segments
    packer = RequestPacker()
    packer.add(live, wanted.finish_s, "stop", wanted.output_tokens)
    assert list(packer.take()) == [wanted]


def test_jsonl_gives_the_same_rows_back(tmp_path: Path) -> None:
    fill(JsonlSink(tmp_path / "record.jsonl"))
    rows = list(read_jsonl(tmp_path / "record.jsonl"))
    assert repr(rows) == repr([*STEPS, *REQUESTS, *STALLS])  # repr, since NaN differs from itself
    assert "NaN" not in (tmp_path / "record.jsonl").read_text(encoding="utf-8")


def test_jsonl_is_flushed_after_each_batch(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "record.jsonl")
    sink.steps([PREFILL])
    assert list(read_jsonl(tmp_path / "record.jsonl")) == [PREFILL]
    sink.close()


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    fill(JsonlSink(path))
    path.write_text(path.read_text(encoding="utf-8") + '{"row": "step"}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"record\.jsonl, line 7"):
        list(read_jsonl(path))


@pytest.mark.parametrize(
    "sink", [lambda folder: ParquetSink(folder, "tokens"), lambda folder: JsonlSink(folder / "record.jsonl")]
)
def test_both_sinks_read_back_as_the_same_tables(tmp_path: Path, sink: Callable[[Path], RecordSink]) -> None:
    fill(sink(tmp_path))
    record = read_run(tmp_path)
    for table, rows in ((record.steps, STEPS), (record.requests, REQUESTS), (record.stalls, STALLS)):
        for name in rows[0]._fields:
            if name == "segments":
                continue
            values = known(table)[name]
            column = [tuple(map(int, value)) if name == "residues" else value for value in values]
            assert repr(column) == repr([getattr(row, name) for row in rows])
    assert known(record.segments)["id"].tolist() == [7, 8, 8]
    assert record.summary is None
    np.testing.assert_array_equal(token_times(record, 7), [1.0, 1.5, 2.25, 3.25])
    np.testing.assert_array_equal(token_times(record, 8), [1.0, 1.5, 3.25])
    assert not len(token_times(record, 9))
    with pytest.raises(UserError, match="request 10"):
        token_times(record, 10)


def test_levels_decide_what_is_written(tmp_path: Path) -> None:
    wanted = {"requests": {"requests"}, "steps": {"requests", "steps", "stalls"}}
    for level, files in wanted.items():
        fill(ParquetSink(tmp_path / level, level))
        assert {path.stem for path in (tmp_path / level).iterdir()} == files
    with pytest.raises(UserError, match=r"sim\.record = tokens"):
        token_times(read_run(tmp_path / "steps"), 7)
    with pytest.raises(ConfigError, match=r"did you mean 'steps'"):
        ParquetSink(tmp_path, "step")
    with pytest.raises(UserError, match=r"no requests\.parquet"):
        read_run(tmp_path)


def test_a_table_has_its_name_when_it_is_complete(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, "steps")
    sink.steps(STEPS)
    sink.requests(REQUESTS)
    assert {path.name for path in tmp_path.iterdir()} == {"steps.parquet.part", "requests.parquet.part"}
    with pytest.raises(UserError, match=r"the run that writes it has not ended, or was killed"):
        read_run(tmp_path)
    sink.close()
    assert {path.name for path in tmp_path.iterdir()} == {"steps.parquet", "requests.parquet"}
    assert len(read_run(tmp_path).requests) == len(REQUESTS)


def test_batches_become_row_groups_of_one_table(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, "steps")
    shared = Columns(sink)
    shared.steps([PREFILL])
    shared.steps([QUIET])
    shared.requests(REQUESTS)
    shared.stalls([])
    shared.close()
    assert known(read_run(tmp_path).steps)["limited_by"].tolist() == ["arrivals", "kv_blocks"]


def test_steps_of_a_quiet_run() -> None:
    table = expand_steps(STEPS)
    assert table["step"].tolist() == [0, 1, 2, 3]
    # Step i of the run takes 0.5 + 0.125 * 2 i.
    assert table["end_s"].tolist() == [1.0, 1.5, 2.25, 3.25]
    assert table["start_s"].tolist() == [0.0, 1.0, 1.5, 2.25]
    assert table["sum_context"].tolist() == [0, 16, 18, 20]
    assert table["stored_tokens"].tolist() == [0, 16, 18, 20]
    # residues[(3 + 1) % 4] = 0 for the second step, residues[1] = 2 for the third.
    assert table["free_blocks"].tolist() == [95, 95, 95, 93]
    assert table["chunk_emits"].tolist() == [2, 0, 0, 0]
    assert table["moved_bytes"].tolist() == [0, 7, 0, 0]
    assert table["limited_by"].tolist() == ["arrivals", *["kv_blocks"] * 3]


@given(
    st.floats(0, 1e5), st.floats(1e-3, 0.1), st.floats(0, 1e-6), st.integers(0, 10**6), st.integers(1, 300),
    st.integers(0, 500), st.integers(1, 40),
)  # fmt: skip
def test_boundaries_equal_the_closed_form_bit_for_bit(
    anchor_s: float, base_s: float, slope_s: float, context: int, num_seqs: int, first: int, steps: int
) -> None:
    run = QuietRun(anchor_s, base_s, slope_s, context, num_seqs)
    row = QUIET._replace(
        steps=steps, first=first, anchor_s=anchor_s, base_s=base_s, slope_s=slope_s, anchor_context=context,
        num_seqs=num_seqs, start_s=run.end_s(first), end_s=run.end_s(first + steps),
    )  # fmt: skip
    table = expand(StepTable.of([PREFILL, row]).numbers)
    assert table.end_s.tolist()[1:] == [run.end_s(first + i) for i in range(1, steps + 1)]
    assert table.start_s.tolist()[1:] == [run.end_s(first + i) for i in range(steps)]


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 7), st.lists(st.integers(0, 300), max_size=5)), min_size=1
    ),
    st.integers(1, 12),
)
def test_blocks_and_chunks_agree_with_a_plain_loop(
    rows: list[tuple[int, int, list[int]]], max_steps: int
) -> None:
    table = StepTable.of([QUIET._replace(steps=n, phase=p, residues=tuple(r)) for n, p, r in rows])
    expected = []
    for n, phase, residues in rows:
        taken = 0
        for i in range(n):
            taken += residues[(phase + i) % len(residues)] if i and residues else 0
            expected.append(taken)
    parts = list(chunks(table, max_steps))
    got = [blocks_taken(part, expand(part.numbers)).tolist() for part in parts]
    assert list(chain.from_iterable(got)) == expected
    assert all(len(part) == 1 or part.numbers["steps"].sum() <= max_steps for part in parts)
