"""Trace files that cannot be read: one clear line each."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from policies.core.errors import TraceError
from traces.workload.readers import open_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
THREE = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,20\n"
OWN = "arrival_s,prompt_tokens,output_tokens"
ROW = {"arrival_s": 0, "prompt_tokens": 10, "output_tokens": 5}

KNOWN = (
    "TIMESTAMP,ContextTokens,GeneratedTokens; arrived_at,num_prefill_tokens,num_decode_tokens; "
    "arrival_s,prompt_tokens,output_tokens"
)


def message(path: Path, content: str | bytes) -> str:
    """What is said of a file with ``content``, without the path it begins with."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(TraceError) as error:
        open_trace(str(path))
    said = str(error.value)
    assert said.startswith(str(path))
    assert "\n" not in said
    return said.removeprefix(str(path))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ": the file is empty; give a trace with at least one row"),
        (" \n\n", ": the file is empty; give a trace with at least one row"),
        (OWN, ": no rows; give a trace with at least one row"),
        (OWN + "\n\n", ": no rows; give a trace with at least one row"),
        (
            b"\x89PNG\r\n\xff\xfe",
            ": not a text file in UTF-8; give a trace as CSV or JSON lines, plain or gzip",
        ),
        (b"a\x00b\n", ": not a text file in UTF-8; give a trace as CSV or JSON lines, plain or gzip"),
        (
            THREE.encode() + b"0.6,\xff,2\n",
            ": not a text file in UTF-8; give a trace as CSV or JSON lines, plain or gzip",
        ),
        (gzip.compress(THREE.encode(), mtime=0)[:-9], ": the gzip file is cut off or damaged; fetch it again"),
        (b"\x1f\x8bnot gzip at all", ": the gzip file is cut off or damaged; fetch it again"),
        ("0.5,10,20\n", f", line 1: no known format: found 0.5,10,20; write a header with {KNOWN}"),
        (
            "time;in;out\n1;2;3\n",
            f", line 1: no known format: found time;in;out; write a header with {KNOWN}",
        ),
        (
            "\n" + OWN.replace("output_tokens", "output_token") + "\n0,1,2\n",
            ", line 2: column 'output_tokens' is missing; did you mean 'output_token'? "
            "(found arrival_s,prompt_tokens,output_token)",
        ),
        (
            "arrived,num_prefill_tokens,num_decode_tokens\n0,1,2\n",
            ", line 1: column 'arrived_at' is missing; did you mean 'arrived'? "
            "(found arrived,num_prefill_tokens,num_decode_tokens)",
        ),
        (OWN + ",arrival_s\n", ", line 1: column 'arrival_s' appears twice; rename or remove one"),
        ('[{"arrival_s": 0}]', ", line 1: a JSON list; write one JSON object a line instead"),
        (
            '{"time": 0, "input": 3, "output": 2}\n',
            ", line 1: no known format: found time,input,output; "
            "name the columns arrival_s,prompt_tokens,output_tokens; timestamp,input_length,output_length",
        ),
        (
            '{"arrival_s": 0,\n',
            ", line 1: no JSON object; write one object a line (the file may be cut off)",
        ),
    ],
)
def test_files(tmp_path: Path, content: str | bytes, expected: str) -> None:
    assert message(tmp_path / "trace", content) == expected


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as error:
        open_trace(str(tmp_path / "none.csv"))
    assert str(error.value) == f"{tmp_path / 'none.csv'}: no such file; give the path of a trace"
    with pytest.raises(TraceError) as error:
        open_trace(str(tmp_path))
    assert str(error.value) == f"{tmp_path}: cannot be read (Is a directory); give the path of a trace"


TIME = "is not a time like 2023-11-16 18:15:46.6805900"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("2023-11-16 18:15:60,1,2", f"TIMESTAMP: '2023-11-16 18:15:60' {TIME}"),
        ("2023-11-16 18:15:nan,1,2", f"TIMESTAMP: '2023-11-16 18:15:nan' {TIME}"),
        ("2023-11-16 18:15:-1,1,2", f"TIMESTAMP: '2023-11-16 18:15:-1' {TIME}"),
        ("2023-13-16 18:15:01,1,2", f"TIMESTAMP: '2023-13-16 18:15:01' {TIME}"),
        ("2023-11-16 18:15.01,1,2", f"TIMESTAMP: '2023-11-16 18:15.01' {TIME}"),
        ("16/11/2023 18:15:01,1,2", f"TIMESTAMP: '16/11/2023 18:15:01' {TIME}"),
        ("3.5,1,2", f"TIMESTAMP: '3.5' {TIME}"),
        ("2023-11-16 18:16:00,,2", "ContextTokens: '' is not a number; give the number of tokens"),
        (
            "2023-11-16 18:16:00,5,0",
            "GeneratedTokens: '0' is below 1; give at least one token or remove the row",
        ),
    ],
)
def test_azure_rows(tmp_path: Path, row: str, expected: str) -> None:
    assert message(tmp_path / "trace", f"{AZURE}{row}\n") == f", line 3, column {expected}"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("soon,1,2", ", column arrived_at: 'soon' is not a number; give seconds"),
        ("-0.5,1,2", ", column arrived_at: '-0.5' is negative; times start at 0 seconds"),
        ("nan,1,2", ", column arrived_at: 'nan' is not finite; give seconds"),
        ("inf,1,2", ", column arrived_at: 'inf' is not finite; give seconds"),
        ("1,1.5,2", ", column num_prefill_tokens: '1.5' is not a whole number; give the number of tokens"),
        ("1,many,2", ", column num_prefill_tokens: 'many' is not a number; give the number of tokens"),
        (
            "1,-3,2",
            ", column num_prefill_tokens: '-3' is below 1; give at least one token or remove the row",
        ),
        (
            "1,3,2147483648",
            ", column num_decode_tokens: '2147483648' is above 2147483647; give the number of tokens",
        ),
        ("1,3", ": 2 fields where the header has 3; mend the line (the file may be cut off)"),
        ("1,3,4,5", ": 4 fields where the header has 3; mend the line (the file may be cut off)"),
        ('1,3,"4', ": no valid CSV (unexpected end of data); mend the line"),
    ],
)
def test_three_column_rows(tmp_path: Path, row: str, expected: str) -> None:
    # The blank line counts: numbers are those an editor shows.
    assert message(tmp_path / "trace", f"{THREE}\n{row}\n2,3,4\n") == f", line 4{expected}"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"timestamp": -1}, "timestamp: -1 is negative; times start at 0 milliseconds"),
        ({"timestamp": 1e14}, "timestamp: 100000000000000.0 is above 1e+13 milliseconds; give milliseconds, not parts"
         " of them"),
        ({"input_length": 0}, "input_length: 0 is below 1; give at least one token or remove the row"),
        ({"hash_ids": [1]}, "hash_ids: [1] has 1 ids, but 600 tokens are 2 blocks of 512; give one each"),
        ({"hash_ids": [1, True]}, "hash_ids: [1, True] is no list of whole numbers; give one id for each block of the"
         " prompt"),
        ({"hash_ids": "1,2"}, "hash_ids: '1,2' is no list of whole numbers; give one id for each block of the prompt"),
    ],
)  # fmt: skip
def test_mooncake_rows(tmp_path: Path, change: dict[str, object], expected: str) -> None:
    good: dict[str, object] = {"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [7, 8]}
    text = "".join(json.dumps(row) + "\n" for row in (good, good | change, good))
    assert message(tmp_path / "trace", text) == f", line 2, column {expected}"


def test_arrivals_of_some_rows(tmp_path: Path) -> None:
    text = '{"prompt_tokens": 3, "output_tokens": 2}\n{"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 2}\n'
    expected = ", line 2: has arrival_s, which the first row lacks; give it to all rows or to none"
    assert message(tmp_path / "trace", text) == expected


SEGMENTS = "has a part that is no key and length; write key:length|key:length or [[key, length], ...]"
LATE = "names no row that arrives earlier; give the number of one, the first row of the file being 0"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_tokens", 0, "0 is below 1; give at least one token or remove the row"),
        ("max_tokens", True, "True is not a number; give the number of tokens"),
        ("prompt_tokens", True, "True is not a number; give the number of tokens"),
        ("prompt_tokens", 3.5, "3.5 is not a whole number; give the number of tokens"),
        ("prompt_tokens", None, "None is not a number; give the number of tokens"),
        ("prompt_tokens", "x" * 80, "'" + "x" * 59 + "... is not a number; give the number of tokens"),
        ("arrival_s", float("nan"), "nan is not finite; give seconds"),
        ("arrival_s", 10**400, "1" + "0" * 59 + "... is not a number; give seconds"),
        ("priority", 0.5, "0.5 is not a whole number; give a priority such as 0"),
        ("client_id", [1], "[1] is no name; give a text"),
        ("parent_id", -1, "-1 is negative; rows are numbered from 0"),
        ("parent_id", 2, LATE),
        ("abort_after_s", 0, "0 is not above 0; leave it empty for a client that waits for ever"),
        ("segments", 7, "7 is no list of segments; write [[key, length], ...]"),
        ("segments", [["sys"]], f"[['sys']] {SEGMENTS}"),
        ("segments", "sys", f"'sys' {SEGMENTS}"),
        ("segments", [["sys", 0]], f"[['sys', 0]] {SEGMENTS}"),
        (
            "segments",
            [["sys", 4], ["u", 7]],
            "[['sys', 4], ['u', 7]] adds up to 11 tokens, but the prompt has 10; make them equal",
        ),
    ],
)
def test_values_of_json_rows(tmp_path: Path, name: str, value: object, expected: str) -> None:
    content = "\n".join(map(json.dumps, [ROW, ROW, {**ROW, name: value}, ROW]))
    assert message(tmp_path / "trace", content) == f", line 3, column {name}: {expected}"


def test_json_lines_that_are_no_rows(tmp_path: Path) -> None:
    first = json.dumps(ROW) + "\n"
    assert message(tmp_path / "trace", first + "5\n") == (
        ", line 2: no JSON object; write one object a line (the file may be cut off)"
    )
    assert message(tmp_path / "trace", first + "[" * 100_000) == (
        ", line 2: no JSON object; write one object a line (the file may be cut off)"
    )
    assert message(tmp_path / "trace", first + '{"arrival_s": 1, "prompt_tokens": 2}\n') == (
        ", line 2: column output_tokens is missing; add it to the line"
    )


@pytest.mark.parametrize("held_chars", [10**9, 0])
@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("0,1,1,\n1,1,1,1\n", 3),  # itself
        ("0,1,1,9\n1,1,1,\n", 2),  # beyond the file
        ("5,1,1,1\n9,1,1,\n1,1,1,\n", 2),  # arrives later, in a file out of order
    ],
)
def test_parents_that_arrive_too_late(tmp_path: Path, rows: str, line: int, held_chars: int) -> None:
    path = tmp_path / "trace"
    path.write_text(f"{OWN},parent_id\n{rows}")
    with pytest.raises(TraceError) as error:
        open_trace(str(path), held_chars)
    assert str(error.value) == f"{path}, line {line}, column parent_id: {LATE}"


def test_the_line_is_right_far_down_a_file(tmp_path: Path) -> None:
    rows = "".join(f"{row},1,1\n" for row in range(30_000))
    bad = f"arrived_at,num_prefill_tokens,num_decode_tokens\n\n{rows}\n30000,1,0\n"
    assert message(tmp_path / "trace", bad) == (
        ", line 30004, column num_decode_tokens: '0' is below 1; give at least one token or remove the row"
    )
