"""Profiles: what is written is read back, what is wrong is named by row, and a fit from a file is the fit from its
tables."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.cli import describe_fit
from calibrate.profile import OPERATORS, SECONDS, SIZES, Measurement, Origin, Profile
from calibrate.profile_file import read_profile, write_profile
from policies.catalog import card, model
from policies.core.errors import CostFileError
from sim.costs.load import load_cost_model
from tests.command import CHAT, batchscope, settings
from tests.own_profile import own_profile

ORIGIN = Origin("somewhere: a/table.csv", "MIT", "2026-01-01", method="medians; of three")


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    """Any row of any operator, with the digits that a file keeps."""
    operator = draw(st.sampled_from(sorted(OPERATORS)))
    columns = OPERATORS[operator].columns
    sizes = {name: draw(st.integers(1, 1 << 40)) for name in SIZES if name in columns}
    seconds = st.floats(1e-7, 1e3).map(lambda value: float(f"{value:.6g}"))
    times = {name: draw(seconds) for name in SECONDS if name == "seconds" or name in columns}
    return Measurement(operator, "table", **sizes, **times)  # type: ignore[arg-type]


@given(st.lists(measurements(), min_size=1, max_size=8), st.booleans())
def test_a_profile_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Measurement], packed: bool
) -> None:
    profile = Profile("llama-2-7b", "a100-80gb", 1, "2026-01-01", {"table": ORIGIN}, tuple(rows))
    path = tmp_path_factory.getbasetemp() / ("own.csv.gz" if packed else "own.csv")
    write_profile(profile, path)
    assert read_profile(path) == profile


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A small profile of Llama-2-7B on an A100, whose times are computed from bytes and FLOPs."""
    path = tmp_path / "own.csv"
    write_profile(own_profile(), path)
    return path


def changed(path: Path, change: Callable[[str], str]) -> Path:
    """The file with its text changed."""
    path.write_text(change(path.read_text()))
    return path


def fitted(path: Path) -> str:
    """What `calibrate fit` says that makes no file."""
    ended = batchscope("calibrate", "fit", "--profile", path, "--out", path.with_suffix(".json"))
    assert ended.exit_code == 2, ended.stdout
    assert ended.stderr.count("\n") == 1
    return ended.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# schema: batchscope-profile/1\n", "", "is no profile (its first line is not"),
        ("# units: seconds, tokens, bytes\n", "# units: ms, tokens, bytes\n", "its units are 'ms, tokens, bytes'"),
        ("# tp: 1\n", "# tp: none\n", "'# tp: none' is no number of GPUs"),
        ("# date: 2026-01-01\n", "", "line '# date: ...' is missing"),
        ("# source.own.licence: MIT\n", "", "line '# source.own.licence: ...' is missing; say where rows are from"),
        ("source.own.licence", "source.own.license", "key 'source.own.license' is unknown; did you mean 'licence'"),
        (",seconds,", ",time_ms,", "column 'seconds' is missing; 'time_ms' is in another unit: convert it"),
        (",sequences,", ",batch,", "column 'sequences' is missing"),
        ("\ndecode,own,", "\ndecoding,own,", "operator 'decoding' is unknown; did you mean 'decode'?"),
        ("\ndecode,own,", "\ndecode,other,", "source 'other' has no '# source.other.origin: ...' line"),
        ("# range.context: 128..4096", "# range.context: 256..4096", "context = 128 is outside the file's own range"),
        ("\ndecode,own,,1,128,,", "\ndecode,own,,0,128,,", "sequences = 0 is outside the file's own range, 1..64"),
        ("\ndecode,own,,1,128,,,,,,,1.128e-05", "\ndecode,own,,1,128,,,,,,,0", "seconds = 0; it must be above 0"),
        ("\ndecode,own,,1,128,,,,,,,1.128e-05", "\ndecode,own,,1,128,,,,,,,1e9", "seconds = 1e+09; it must be above 0"),
        ("# card: a100-80gb", "# card: a100", "unknown card 'a100'"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(own: Path, old: str, new: str, message: str) -> None:
    assert old in own.read_text()
    assert message in fitted(changed(own, lambda text: text.replace(old, new, 1)))


def test_a_row_faster_than_the_card_is_refused_by_its_number(own: Path) -> None:
    lines = own.read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if line.startswith("decode,own,,64,4096"))
    lines[number] = "decode,own,,64,4096,,,,,,,1e-6,,"
    own.write_text("\n".join(lines) + "\n")
    message = fitted(own)
    assert f"own.csv, row {number + 1}: decode takes 0.0010 ms, but a a100-80gb needs" in message
    assert "remove the row or check its units" in message


def test_milliseconds_in_the_column_of_seconds_are_noticed(own: Path) -> None:
    profile = read_profile(own)
    write_profile(profile._replace(rows=tuple(row._replace(seconds=1e3 * row.seconds) for row in profile.rows)), own)
    assert "times what the a100-80gb needs; they must be in seconds" in fitted(own)


def test_an_operator_that_is_missing_is_named(own: Path) -> None:
    profile = read_profile(own)
    write_profile(profile._replace(rows=tuple(row for row in profile.rows if row.operator != "prefill")), own)
    assert "own.csv: has no rows of operator 'prefill'" in fitted(own)


def test_a_head_that_was_not_measured_is_the_rooflines(own: Path) -> None:
    profile = read_profile(own)
    write_profile(profile._replace(rows=tuple(row for row in profile.rows if row.operator != "head")), own)
    out = own.with_suffix(".json")
    assert batchscope("calibrate", "fit", "--profile", own, "--out", out).exit_code == 0
    cost_file = json.loads(out.read_text())
    assert cost_file["provenance"]["head"]["method"].startswith("computed: the roofline's")
    roofline = load_cost_model(model("llama-2-7b"), card("a100-80gb"), "roofline").file.head
    assert cost_file["terms"]["head"]["seconds"] == pytest.approx(roofline.seconds, rel=1e-5)


def test_a_packed_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "own.csv.gz"
    path.write_bytes(gzip.compress(b"text")[:-3])
    with pytest.raises(CostFileError, match=r"own\.csv\.gz: cannot be read"):
        read_profile(path)


def test_what_the_profile_is_of_may_be_said_again_and_must_agree(own: Path) -> None:
    ended = batchscope(
        "calibrate", "fit", "--profile", own, "--hardware", "h100-80gb", "--out", own.with_suffix(".json")
    )
    assert ended.exit_code == 2
    assert "is a profile of 'a100-80gb', not of --hardware h100-80gb" in ended.stderr


def test_a_fit_needs_one_kind_of_points(own: Path) -> None:
    ended = batchscope("calibrate", "fit", "--out", own.with_suffix(".json"))
    assert ended.exit_code == 2
    assert "give --profile FILE, or --data FOLDER" in ended.stderr


def test_an_own_profile_makes_a_cost_file_that_runs_take(own: Path) -> None:
    out, page = own.with_suffix(".json"), own.with_suffix(".html")
    ended = batchscope("calibrate", "fit", "--profile", own, "--out", out, "--report", page)
    assert ended.exit_code == 0, ended.stderr
    assert "step, held out, decode and prefill" in ended.stdout
    cost_file = json.loads(out.read_text())
    # The points lie on the lines that the terms are made of: what is held out is found again.
    assert cost_file["held_out"]["step"]["p95"] < 0.02
    assert cost_file["provenance"]["decode"]["origin"] == "computed for tests"
    keys = settings(*CHAT, workload__rate_per_s=4, workload__num_requests=20, hardware__cost_model=out)
    run = batchscope("run", *keys, "--json")
    assert run.summary["cost_model"]["name"] == "a100-80gb_llama-2-7b"
    assert "plotly" in page.read_text()
    assert "held-out step" in page.read_text()
    ended = batchscope("calibrate", "fit", "--profile", own, "--out", out, "--report", own.parent / "no" / "page.html")
    assert "--report" in ended.stderr


def test_host_swap_and_unequal_contexts_of_an_own_profile_are_in_its_file(own: Path) -> None:
    out = own.with_suffix(".json")
    assert batchscope("calibrate", "fit", "--profile", own, "--out", out).exit_code == 0
    terms = json.loads(out.read_text())["terms"]
    assert terms["host"] == pytest.approx({"base_s": 1e-3, "per_seq_s": 2e-5, "prefill_s": 4e-4}, rel=1e-3)
    assert terms["swap"] == pytest.approx({"bytes_per_s": 20e9, "copy_s": 0.0, "fixed_s": 1e-4}, rel=1e-3)
    assert terms["decode"]["uneven_seq_s"] == pytest.approx(1e-8, rel=1e-3)


def test_sizes_that_an_operator_must_have_are_above_zero(own: Path) -> None:
    changed(own, lambda text: text.replace("# range.sequences: 1..64\n", ""))
    message = fitted(changed(own, lambda text: text.replace("\ndecode,own,,1,128,,", "\ndecode,own,,0,128,,", 1)))
    assert "sequences = 0; an operator 'decode' has 1 or more" in message


def test_a_fit_that_fails_leaves_no_file_and_overwrites_none(own: Path) -> None:
    out, before = own.with_name("out.json"), own.read_text()
    for arguments, said in (
        (("--out", own), "is the file of --profile, too"),
        (("--out", out, "--report", out), "is the file of --out, too"),
        (("--out", out, "--report", own.parent / "none" / "page.html"), "no such folder"),
    ):
        found = batchscope("calibrate", "fit", "--profile", own, *arguments)
        assert found.exit_code == 2
        assert said in found.stderr
        assert not out.exists()
    assert own.read_text() == before


def test_prompts_without_cached_tokens_are_needed(own: Path) -> None:
    lines = own.read_text().splitlines()
    names = next(line for line in lines if not line.startswith("#")).split(",")
    place = names.index("chunk_context")
    kept = [line for line in lines if not (line.startswith("prefill,") and line.split(",")[place] == "0")]
    own.write_text("\n".join(kept) + "\n")
    found = batchscope("calibrate", "fit", "--profile", own, "--out", own.with_name("out.json"))
    assert found.exit_code == 2
    assert "prefill" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_file_of_single_points_says_that_its_error_is_not_known(own: Path) -> None:
    lines = own.read_text().splitlines()
    head = [line for line in lines if line.startswith("#") or line.startswith("operator")]
    first = [next(line for line in lines if line.startswith(name)) for name in ("linear,", "decode,", "prefill,")]
    own.write_text("\n".join([*head, *first]) + "\n")
    found = batchscope("calibrate", "fit", "--profile", own, "--out", own.with_name("out.json"))
    assert found.exit_code == 0, found.stderr
    assert "no error is known" in found.stdout


def test_a_fit_of_no_use_says_so_and_its_columns_stay_apart() -> None:
    row = {"median": 0.4, "p95": 22.5, "max": 129876.5, "points": 6}
    text = describe_fit({"name": "cpu_tiny", "version": 3, "held_out": {"step": row}})
    assert "measure again, longer" in text
    assert " 40.00 2250.00 12987650.00 " in text
    good = {"name": "x", "version": 3, "held_out": {"step": {**row, "median": 0.01}}}
    assert "measure again" not in describe_fit(good)
