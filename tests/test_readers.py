"""Trace files that can be read: formats, line ends, order, size."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.core.request import Segments
from traces.workload.formats import OPTIONAL
from traces.workload.readers import open_trace
from traces.workload.rows import TraceRow

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:46.6805900,374,44
2023-11-16 23:59:50.9951690,396,109
2023-11-17 00:00:00.0000001,879,55
"""
AZURE_ROWS = [TraceRow(0.0, 374, 44), TraceRow(4.314579, 396, 109), TraceRow(13.3194101, 879, 55)]

THREE = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,10,20\n1e1,30,40\n"
THREE_ROWS = [TraceRow(0.25, 10, 20), TraceRow(10.0, 30, 40)]

OWN = """\
arrival_s,prompt_tokens,output_tokens,max_tokens,priority,client_id,session_id,parent_id,segments,abort_after_s
0,12,3,8,-1,ann,s1,,sys:8|u:1:4,
1.5,20,4,,,"bob, jr",s1,0,,2.5
"""
OWN_ROWS = [
    TraceRow(0.0, 12, 3, 8, -1, "ann", "s1", None, (("sys", 8), ("u:1", 4)), None),
    TraceRow(1.5, 20, 4, None, 0, "bob, jr", "s1", 0, (), 2.5),
]

JSONL = """\
{"arrival_s": 0, "prompt_tokens": 12, "output_tokens": 3, "segments": [["sys", 8], ["u", 4]], "client_id": 7}
{"arrival_s": 1.5, "prompt_tokens": 20.0, "output_tokens": 4, "max_tokens": 9, "parent_id": 0}
"""
JSONL_ROWS = [
    TraceRow(0.0, 12, 3, None, 0, "7", "", None, (("sys", 8), ("u", 4))),
    TraceRow(1.5, 20, 4, 9, 0, "", "", 0),
]

MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [46, 47, 48]}
{"timestamp": 1500, "input_length": 1024, "output_length": 4, "hash_ids": [46, 49]}
{"timestamp": 27482.5, "input_length": 7, "output_length": 5, "hash_ids": []}
"""
MOONCAKE_ROWS = [
    TraceRow(0.0, 1100, 3, segments=(("46", 512), ("47", 512), ("48", 76))),
    TraceRow(1.5, 1024, 4, segments=(("46", 512), ("49", 512))),
    TraceRow(27.4825, 7, 5),
]

EXAMPLES = {
    "azure-2023": (AZURE, AZURE_ROWS),
    "three-column": (THREE, THREE_ROWS),
    "csv": (OWN, OWN_ROWS),
    "jsonl": (JSONL, JSONL_ROWS),
    "mooncake": (MOONCAKE, MOONCAKE_ROWS),
}


@pytest.mark.parametrize("held_chars", [10**9, 0])
@pytest.mark.parametrize("format_name", EXAMPLES)
def test_formats(tmp_path: Path, format_name: str, held_chars: int) -> None:
    text, rows = EXAMPLES[format_name]
    path = tmp_path / "trace"
    path.write_text(text)
    trace = open_trace(str(path), held_chars)
    assert list(trace.rows) == list(trace.rows) == rows
    assert (trace.format, trace.num_rows, trace.notices) == (format_name, len(rows), ())
    assert trace.num_without_max_tokens == sum(row.max_tokens is None for row in rows)
    assert trace.has_parents == any(row.parent_id is not None for row in rows)


def test_a_mooncake_trace_without_ids_and_with_those_of_other_formats(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 3, "output_length": 2, "priority": "none of ours"}\n'
        '{"timestamp": 1700000000000, "input_length": 3, "output_length": 2, "hash_ids": null}\n'
    )
    trace = open_trace(str(path))
    assert list(trace.rows) == [TraceRow(0.0, 3, 2), TraceRow(1.7e9, 3, 2)]
    assert trace.notices == ("column 'priority' is not used",)


def test_own_rows_may_carry_hash_ids_of_anybody(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 2, "hash_ids": "of another tool"}\n')
    assert list(open_trace(str(path)).rows) == [TraceRow(0.0, 3, 2)]


@pytest.mark.parametrize(
    "text",
    ["num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n", "output_tokens,prompt_tokens\n6,5\n\n8,7\n",
     '{"prompt_tokens": 5, "output_tokens": 6}\n{"prompt_tokens": 7, "output_tokens": 8.0}\n'],
)  # fmt: skip
def test_a_table_of_lengths_has_no_arrivals(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    trace = open_trace(str(path))
    assert list(trace.rows) == [TraceRow(0.0, 5, 6), TraceRow(0.0, 7, 8)]
    assert not trace.has_arrivals
    assert open_trace(str(path), held_chars=0).num_rows == 2


@pytest.mark.parametrize("format_name", EXAMPLES)
def test_gzip_mark_line_ends_and_blank_lines(tmp_path: Path, format_name: str) -> None:
    text, rows = EXAMPLES[format_name]
    data = ("\n" + text.replace("\n", "\n\n") + "  \n\n").replace("\n", "\r\n").encode("utf-8-sig")
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(data))
    trace = open_trace(str(path))
    assert list(trace.rows) == rows
    assert trace.notices == ("byte order mark ignored", "CRLF line ends")


def test_a_last_line_without_end_and_other_column_orders(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("pd_ratio, num_decode_tokens ,arrived_at,num_prefill_tokens\nx,20,0.25,10\n,40, 10 ,30.0")
    trace = open_trace(str(path))
    assert list(trace.rows) == THREE_ROWS
    assert trace.notices == ("column 'pd_ratio' is not used",)


def test_a_mistyped_optional_column_is_said(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,max_token\n0,1,2,3\n")
    assert open_trace(str(path)).notices == ("column 'max_token' is not used; did you mean 'max_tokens'?",)


def test_zulu_time_is_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,1,2\n2024-05-10T00:01:00Z,3,4\n"
    )
    assert list(open_trace(str(path)).rows) == [TraceRow(0.0, 1, 2), TraceRow(59.99007, 3, 4)]


@pytest.mark.parametrize("held_chars", [10**9, 0])
def test_unsorted_rows_are_sorted_and_said(tmp_path: Path, held_chars: int) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:50.5,1,11\n2023-11-16 18:14:59.0,2,12\n"
        "2023-11-16 18:15:50.5,3,13\n2023-11-16 18:15:00.25,4,14\n"
    )
    trace = open_trace(str(path), held_chars)
    assert [row[:3] for row in trace.rows] == [(0.0, 2, 12), (1.25, 4, 14), (51.5, 1, 11), (51.5, 3, 13)]
    assert trace.notices == ("rows were not in order of arrival: sorted",)


@pytest.mark.parametrize("held_chars", [10**9, 0])
def test_parents_follow_their_rows_when_these_are_sorted(tmp_path: Path, held_chars: int) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,parent_id\n9,3,1,2\n5,2,1,\n7,1,1,1\n")
    rows = list(open_trace(str(path), held_chars).rows)
    assert [(row.prompt_tokens, row.parent_id) for row in rows] == [(2, None), (1, 0), (3, 1)]


@pytest.mark.parametrize("held_chars", [10**9, 0])
def test_files_of_many_blocks(tmp_path: Path, held_chars: int) -> None:
    num = 20_000
    path = tmp_path / "trace.csv"
    # The optional column is empty at first, and a blank line and a float make one block go the careful way.
    lines = [f"{row / 8},{row % 500 + 1},{row % 7 + 1},{'' if row < 9000 else row}" for row in range(num)]
    lines[12_000] = "\n1500.0,1,3.0,12000"
    path.write_text("arrival_s,prompt_tokens,output_tokens,max_tokens\n" + "\n".join(lines))
    trace = open_trace(str(path), held_chars)
    limits = [None] * 9000 + list(range(9000, num))
    expected = [TraceRow(row / 8, row % 500 + 1, row % 7 + 1, limits[row]) for row in range(num)]
    expected[12_000] = TraceRow(1500.0, 1, 3, 12_000)
    assert list(trace.rows) == expected
    assert trace.num_without_max_tokens == 9000


def test_azure_chat_trace(shared_data: Path) -> None:
    path = shared_data / "traces" / "azure_conv_2023_first40min.csv.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    trace = open_trace(str(path))
    rows = list(trace.rows)
    assert (trace.format, trace.notices, len(rows)) == ("azure-2023", (), 14_176)
    assert sum(row.prompt_tokens < 4096 < row.prompt_tokens + row.output_tokens for row in rows) == 1193
    assert sum(row.prompt_tokens >= 4096 for row in rows) == 306
    assert rows[0] == TraceRow(0.0, 374, 44)
    assert 2399 < rows[-1].arrival_s < 2400
    assert list(open_trace(str(path), held_chars=0).rows) == rows


_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=8)
_keys = _names.filter(lambda key: bool(key) and "|" not in key)


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRow]:
    """Rows in order of arrival that use every field."""
    times = sorted(draw(st.lists(st.floats(0, 1e9), min_size=1, max_size=12)))
    return [draw(_rows(time, number)) for number, time in enumerate(times)]


@st.composite
def _rows(draw: st.DrawFn, arrival_s: float, number: int) -> TraceRow:
    lengths = draw(st.lists(st.integers(1, 5000), max_size=3))
    segments: Segments = tuple((draw(_keys), length) for length in lengths)
    return TraceRow(
        arrival_s=arrival_s,
        prompt_tokens=sum(lengths) or draw(st.integers(1, 2**31 - 1)),
        output_tokens=draw(st.integers(1, 2**31 - 1)),
        max_tokens=draw(st.none() | st.integers(1, 10**6)),
        priority=draw(st.integers(-5, 5)),
        client_id=draw(_names),
        session_id=draw(_names),
        parent_id=draw(st.none() | st.integers(0, number - 1)) if number else None,
        segments=segments,
        abort_after_s=draw(st.none() | st.floats(1e-3, 1e6)),
    )


def as_csv(rows: Sequence[TraceRow]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(TraceRow._fields)
    for row in rows:
        parts = "|".join(f"{key}:{length}" for key, length in row.segments)
        writer.writerow(row._replace(segments=parts))  # type: ignore[arg-type]
    return stream.getvalue()


def as_jsonl(rows: Sequence[TraceRow]) -> str:
    return "".join(json.dumps(row._asdict()) + "\n" for row in rows)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=traces(), held_chars=st.sampled_from([10**9, 0]), packed=st.booleans())
def test_round_trips(tmp_path: Path, rows: list[TraceRow], held_chars: int, packed: bool) -> None:
    for text in (as_csv(rows), as_jsonl(rows)):
        path = tmp_path / "trace"
        data = text.encode()
        path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
        assert list(open_trace(str(path), held_chars).rows) == rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=traces(), data=st.data())
def test_shuffled_files_give_the_sorted_rows(
    tmp_path: Path, rows: list[TraceRow], data: st.DataObject
) -> None:
    distinct = [row._replace(arrival_s=float(number)) for number, row in enumerate(rows)]
    order = data.draw(st.permutations(range(len(rows))))
    place = {row: number for number, row in enumerate(order)}
    shuffled = [
        distinct[row]._replace(
            parent_id=None if (parent := distinct[row].parent_id) is None else place[parent]
        )
        for row in order
    ]
    path = tmp_path / "trace"
    path.write_text(as_jsonl(shuffled))
    assert list(open_trace(str(path)).rows) == distinct


def test_optional_columns_are_the_fields_of_a_row() -> None:
    assert TraceRow._fields[3:] == OPTIONAL
