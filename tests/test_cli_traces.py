"""``batchscope traces``: what is listed, what is found in a file, and files that are read back as they were meant."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.config import load_config
from tests.command import batchscope, message_of
from traces.workload.formats import CSV_FORMATS, JSON_FORMATS
from traces.workload.lengths import MAX_TOKENS
from traces.workload.profile import load_profile, shipped
from traces.workload.readers import open_trace
from traces.workload.rows import TraceRow
from traces.workload.source import build_source
from traces.workload.write import write_trace

pytestmark = pytest.mark.usefixtures("in_empty_folder")

BAD = "arrival_s,prompt_tokens,output_tokens,max_tokens\n0,10,2,9\n1,x,3,\n2,3\n3,40,5,\n5,0,5,\n"


def test_list_names_profiles_formats_and_attribution() -> None:
    ended = batchscope("traces", "list")
    assert (ended.exit_code, ended.stderr) == (0, "")
    for name in shipped():
        profile = load_profile(name)
        for fact in (name, f"{profile.requests:,}", profile.source, profile.licence, profile.about):
            assert fact in ended.stdout
    for known in (*CSV_FORMATS, *JSON_FORMATS):
        assert f"{known.name} " in ended.stdout
        assert ", ".join(known.required) in ended.stdout


def test_list_of_one_profile_says_what_is_lost() -> None:
    text = " ".join(batchscope("traces", "list", "shared-prefix").stdout.split())
    for lost in load_profile("shared-prefix").approximated:
        assert lost in text
    assert text.endswith("run it: batchscope run --profile shared-prefix")
    assert "give workload.rate_per_s" in batchscope("traces", "list", "sharegpt").stdout


def test_list_as_json() -> None:
    listed = json.loads(batchscope("traces", "list", "--json").stdout)
    assert [profile["name"] for profile in listed] == shipped()
    (chat,) = json.loads(batchscope("traces", "list", "chat", "--json").stdout)
    assert chat == next(profile for profile in listed if profile["name"] == "chat")
    assert chat["prompt_tokens"]["p50"] == load_profile("chat").prompt.at(0.5)


def test_inspect_counts_and_names_invalid_rows() -> None:
    Path("bad.csv").write_text(BAD)
    ended = batchscope("traces", "inspect", "bad.csv")
    assert (ended.exit_code, ended.stderr) == (1, "")
    assert ended.stdout.splitlines() == [
        "bad.csv: csv, 2 valid requests",
        "WARNING: 3 rows are invalid and were passed over here; a run stops at the first:",
        "  line 3, column prompt_tokens: 'x' is not a number; give the number of tokens",
        "  line 4: 2 fields where the header has 4; mend the line (the file may be cut off)",
        "  line 6, column prompt_tokens: '0' is below 1; give at least one token or remove the row",
        "prompt tokens: mean 25, p50 25, p90 37, p99 40, max 40",
        "output tokens: mean 4, p50 4, p90 5, p99 5, max 5",
        "longest request: 45 tokens",
        "arrivals: 0.333/s over 3 s, at most 1 in a second, cv of the gaps 0 (Poisson: 1)",
        "shared prefixes: not told (no segments); prefix caches find nothing",
        "optional columns (rows with a value): max_tokens (1)",
        "run it: batchscope run --trace bad.csv",
    ]


def test_inspect_shows_only_the_first_invalid_rows() -> None:
    Path("bad.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n" + "0,0,0\n" * 25)
    found = json.loads(batchscope("traces", "inspect", "bad.csv", "--json").stdout)
    assert (found["num_rows"], found["num_invalid"], len(found["faults"])) == (1, 25, 10)
    assert "  ... and 15 more\n" in batchscope("traces", "inspect", "bad.csv").stdout


def test_inspect_finds_what_only_the_whole_file_tells() -> None:
    Path("late.csv").write_text("arrival_s,prompt_tokens,output_tokens,parent_id\n0,1,1,1\n2,1,1,\n")
    ended = batchscope("traces", "inspect", "late.csv")
    assert ended.exit_code == 1
    assert "  line 2, column parent_id: names no row that arrives earlier" in ended.stdout
    Path("order.csv").write_text("arrival_s,prompt_tokens,output_tokens\n5,1,1\n2,1,1\n")
    ended = batchscope("traces", "inspect", "order.csv")
    assert ended.exit_code == 0
    assert "note: rows were not in order of arrival: sorted\n" in ended.stdout


def test_inspect_measures_bursts_and_prefixes() -> None:
    lines = [
        {"timestamp": 1000 * second, "input_length": 1024, "output_length": 2, "hash_ids": [0, second]}
        for second in range(40)
        for _ in range(second % 2 * 4)
    ]
    Path("m.jsonl").write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    found = json.loads(batchscope("traces", "inspect", "m.jsonl", "--json").stdout)
    assert (found["format"], found["num_rows"], found["num_with_hits"]) == ("mooncake", 80, 79)
    # The first of each second brings one new block of two, the other three none.
    assert found["hit_share_of_tokens"] == pytest.approx((19 * 0.5 + 60) / 80)
    assert found["arrivals"]["peak_rate_per_s"] == 4
    # Counts 4, 0, 4, 0, ...: variance over mean is 2.
    assert found["arrivals"]["dispersion"]["1"] == pytest.approx(2.0, rel=0.1)
    assert "--policy vllm-0.11" in batchscope("traces", "inspect", "m.jsonl").stdout


def test_inspect_of_lengths_suggests_a_closed_loop() -> None:
    Path("l.csv").write_text("num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n")
    ended = batchscope("traces", "inspect", "l.csv")
    assert ended.stdout.endswith("run it: batchscope run --trace l.csv --set workload.concurrency=16\n")


@pytest.mark.parametrize("out", ["t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.gz"])
@pytest.mark.parametrize("profile", ["chat", "shared-prefix"])
def test_a_synthesized_trace_is_read_back_as_its_workload(profile: str, out: str) -> None:
    keys = ("workload.num_requests=300", "workload.seed=3", "workload.abort_after_s=9.5")
    options = [part for key in keys for part in ("--set", key)]
    ended = batchscope("traces", "synth", "--profile", profile, *options, "--out", out)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.endswith(f"run it: batchscope run --trace {out}\n")
    workload = build_source(load_config(None, keys, profile=profile).workload, MAX_TOKENS)
    replay = build_source(load_config(None, (), trace=out).workload, MAX_TOKENS)
    assert list(replay.rows()) == list(workload.rows())
    assert replay.notices == workload.notices[-1:]


def test_a_synthesized_trace_keeps_limits_that_were_asked_for() -> None:
    Path("r.toml").write_text(
        '[workload]\ngenerator = "gamma"\nrate_per_s = 2.0\ncv = 2.0\nnum_requests = 50\nmax_tokens = "x1.5"\n'
        'prompt = {dist = "lognormal", mean = 300, cv = 1.5}\noutput = {dist = "fixed", value = 10}\n'
    )
    assert batchscope("traces", "synth", "r.toml", "--out", "t.csv").exit_code == 0
    assert {row.max_tokens for row in open_trace("t.csv").rows} == {15}
    workload = build_source(load_config("r.toml").workload, MAX_TOKENS)
    assert list(open_trace("t.csv").rows) == list(workload.rows())


def test_the_same_settings_give_the_same_bytes() -> None:
    for out in ("a.csv.gz", "b.csv.gz"):
        batchscope("traces", "synth", "--profile", "chat", "--set", "workload.num_requests=50", "--out", out)
    assert Path("a.csv.gz").read_bytes() == Path("b.csv.gz").read_bytes()


def test_convert_writes_the_same_rows() -> None:
    rows = '{"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [4, 5]}\n' * 3
    Path("m.jsonl").write_text(rows)
    for out in ("m.csv", "own.jsonl"):
        ended = batchscope("traces", "convert", "m.jsonl", "--out", out)
        assert (ended.exit_code, ended.stdout) == (0, f"{out}: 3 rows of m.jsonl (mooncake)\n")
        assert list(open_trace(out).rows) == list(open_trace("m.jsonl").rows)


def test_fit_makes_a_profile_that_runs() -> None:
    batchscope("traces", "synth", "--profile", "code", "--set", "workload.num_requests=2000", "--out", "t.csv")
    ended = batchscope("traces", "fit", "t.csv", "--out", "own.json", "--licence", "none of yours", "--about", "mine")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.endswith("run it: batchscope run --profile own.json\n")
    profile = load_profile("own.json")
    assert (profile.name, profile.requests, profile.licence, profile.about) == ("t", 2000, "none of yours", "mine")
    rows = list(build_source(load_config(None, (), profile="own.json").workload, MAX_TOKENS).rows())
    assert len(rows) == 2000
    assert "run --profile own.json" in batchscope("traces", "list", "own.json").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "none.csv"), "none.csv: no such file; give the path of a trace"),
        (("inspect", "empty.csv"), "empty.csv: no valid row; the file has only a header"),
        (("inspect", "wrong.csv"),
         "wrong.csv: no valid row; wrong.csv, line 2: 2 fields where the header has 3; mend the line (the file may be "
         "cut off)"),
        (("list", "chatt"), "workload.profile = 'chatt': unknown; known are chat, code, reasoning, shared-prefix, "
         "sharegpt, summaries; did you mean 'chat'?, or give the path of a FILE.json of 'batchscope traces fit'"),
        (("synth", "--profile", "chat", "--out", "x.txt"),
         "x.txt: end the name in .csv, .csv.gz, .jsonl, .jsonl.gz, which says the format"),
        (("synth", "--profile", "chat", "--out", "own.csv"), "own.csv: exists; name a new file"),
        (("synth", "--profile", "chat", "--out", "no/x.csv"),
         "no/x.csv: cannot be written (No such file or directory); name a file that you may write"),
        (("synth", "--set", "workload.trace=own.csv", "--out", "x.csv"),
         "workload.trace: is a trace already; give a profile or a generator, or see 'traces convert'"),
        (("synth", "--profile", "chat", "--set", "workload.concurrency=3", "--out", "x.csv"),
         "workload.concurrency: a closed loop has no arrival times to write; give a rate"),
        (("synth", "--profile", "chat", "--set", "workload.max_tokens=model", "--out", "x.csv"),
         "workload.max_tokens = 'model': depends on the run; leave it out here and give it to the run"),
        (("convert", "lengths.csv", "--out", "x.csv"),
         "lengths.csv: has no arrival times, which the own formats need; see 'batchscope traces fit'"),
        (("fit", "own.csv", "--out", "x.json"), "own: 2 rows are too few for a profile; give at least 100"),
        (("fit", "own.csv", "--out", "x.csv"), "x.csv: end the name in .json"),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    files: dict[str, str | bytes] = {
        "own.csv": "arrival_s,prompt_tokens,output_tokens\n0,1,2\n1,2,3\n",
        "empty.csv": "arrival_s,prompt_tokens,output_tokens\n",
        "wrong.csv": "arrival_s,prompt_tokens,output_tokens\n1,2\n",
        "lengths.csv": "prompt_tokens,output_tokens\n1,2\n",
    }
    assert message_of("traces", *arguments, files=files) == message


_NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp", "Zs")), max_size=6)
_TOKENS = st.integers(1, MAX_TOKENS)


@st.composite
def trace_rows(draw: st.DrawFn) -> list[TraceRow]:
    """Rows in order of arrival, with any optional value."""
    times = sorted(draw(st.lists(st.floats(0, 1e9), min_size=1, max_size=8)))
    keys = _NAMES.filter(lambda key: bool(key) and "|" not in key)
    rows = []
    for number, time in enumerate(times):
        segments = tuple(draw(st.lists(st.tuples(keys, st.integers(1, 99)), max_size=3)))
        prompt = sum(length for _, length in segments) or draw(_TOKENS)
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        limit, patience = draw(st.none() | _TOKENS), draw(st.none() | st.floats(1e-3, 1e6))
        names = draw(st.tuples(_NAMES, _NAMES))
        priority = draw(st.integers(-9, 9))
        rows.append(TraceRow(time, prompt, draw(_TOKENS), limit, priority, *names, parent, segments, patience))
    return rows


@given(rows=trace_rows(), ending=st.sampled_from((".csv", ".jsonl", ".csv.gz")))
def test_any_rows_come_back_from_a_file(
    rows: list[TraceRow], ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / f"t{ending}"
    assert write_trace(str(path), rows) == len(rows)
    assert list(open_trace(str(path)).rows) == rows


def test_a_summary_names_the_content_of_its_trace_or_profile() -> None:
    from hashlib import sha256

    batchscope("traces", "synth", "--profile", "chat", "--set", "workload.num_requests=150", "--out", "t.csv")
    batchscope("traces", "fit", "t.csv", "--out", "own.json")
    for option, file in (("--trace", "t.csv"), ("--profile", "own.json")):
        config = batchscope("run", option, file, "--set", "workload.limit=9", "--json").summary["config"]
        assert config[f"{option[2:]}_sha256"] == sha256(Path(file).read_bytes()).hexdigest()
    config = batchscope("run", "--profile", "chat", "--set", "workload.limit=9", "--json").summary["config"]
    assert not any(key.endswith("_sha256") for key in config)
