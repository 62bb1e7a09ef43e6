"""``make validate`` and ``make executor-bench`` in the small: what they print and decide, never how fast it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrate.agreement import main
from calibrate.agreement_figures import THROUGHPUT, Compared, compare
from calibrate.agreement_pace import Pace
from calibrate.agreement_steps import EDGES
from tests.perf import executor_bench

LIMITED = {THROUGHPUT, "itl_s mean", "ttft_s mean"}
SMALL = ("--model", "tiny", "--seqs", "4", "--requests", "8", "--rounds", "2")


def summary(itl_s: float, ttft_s: float, rate: float, swaps: int = 0) -> dict[str, Any]:
    """What is compared of a run."""
    times = {"itl_s": itl_s, "ttft_s": ttft_s, "tpot_s": itl_s, "e2e_s": 10 * itl_s}
    return {
        **{name: dict.fromkeys(("mean", "p50", "p90", "p99"), value) for name, value in times.items()},
        "throughput": {THROUGHPUT: rate},
        "preemptions": {"recompute": 0, "swap": swaps},
    }


def by_name(found: list[Compared]) -> dict[str, Compared]:
    return {one.figure: one for one in found}


def test_a_small_agreement_compares_every_figure_and_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*SMALL, "--out", str(tmp_path)])
    found = json.loads((tmp_path / "agreement.json").read_text())
    assert [case["name"] for case in found["workloads"]] == [
        "easy",
        "past saturation",
        "short of KV, recompute",
        "short of KV, swap",
    ]
    for case in found["workloads"]:
        figures = {one["figure"]: one for one in case["figures"]}
        times = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
        assert {f"{name} {at}" for name in times for at in ("mean", "p99")} <= set(figures)
        assert all(figures[name]["measured"] > 0 for name in (THROUGHPUT, "ttft_s mean", "itl_s p50"))
        limited = {name for name, one in figures.items() if one["limit"] is not None}
        assert limited == LIMITED
        assert case["holds"] == all(one["holds"] for one in figures.values())
        assert all(sum(kind["histogram"]) == kind["steps"] for kind in case["steps"].values())
        assert len(case["steps"]["all"]["histogram"]) == len(EDGES) + 1
    assert code == (0 if found["holds"] else 1)
    for case, kind in zip(found["workloads"][2:], ("recompute", "swap"), strict=True):
        # Where time has no say both worlds decide alike, preemptions included.
        assert case["first_differing_decision"] == ""
        preemptions = next(one for one in case["figures"] if one["figure"] == f"preemptions by {kind}")
        assert preemptions["measured"] == preemptions["simulated"] > 0
    printed = capsys.readouterr().out
    assert "| easy (vllm-0.11, " in printed
    assert "First differing decision, short of KV, swap: none." in printed
    assert ("All within their limits." if found["holds"] else "Beyond its limit: ") in printed


def test_an_error_may_be_five_per_cent_or_twice_the_noise() -> None:
    quiet = [summary(0.010, 0.1, 100), summary(0.010, 0.1, 100), summary(0.010, 0.1, 100)]
    found = by_name(compare(quiet, [summary(0.0104, 0.109, 96)]))
    assert {name for name, one in found.items() if one.limit} == LIMITED
    assert all(one.holds for one in found.values())
    found = by_name(compare(quiet, [summary(0.0106, 0.111, 94)]))
    assert {name for name, one in found.items() if not one.holds} == LIMITED
    noisy = [summary(0.010, 0.1, 100), summary(0.0104, 0.12, 96), summary(0.010, 0.1, 100)]
    found = by_name(compare(noisy, [summary(0.0106, 0.111, 94)]))
    assert found["itl_s mean"].noise == pytest.approx((0.04 + 0.4 / 10.4) / 2)
    # No noise widens the limit of TTFT.
    assert {name for name, one in found.items() if not one.holds} == {"ttft_s mean"}


def test_medians_are_compared_and_preemptions_shown() -> None:
    runs = [summary(0.010, 0.1, 100, 3), summary(0.5, 0.1, 100, 3), summary(0.012, 0.1, 100, 4)]
    found = by_name(compare(runs, [summary(0.012, 0.1, 100, 5)]))
    assert found["itl_s mean"].error == pytest.approx(0.0)
    assert (found["preemptions by swap"].measured, found["preemptions by swap"].simulated) == (3, 5)
    assert compare(runs[:1], runs[:1])[0].noise is None


def test_what_cannot_be_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "smol", "--out", str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err
    for option in ("--rounds", "--threads"):
        assert main([*SMALL, option, "0", "--out", str(tmp_path)]) == 2
        assert capsys.readouterr().err == f"error: {option} 0: give a whole number of at least 1\n"


def test_a_page_that_has_no_place_for_the_table_is_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, readme = tmp_path / "out", tmp_path / "README.md"
    readme.write_text("no marks\n")
    words = ["--pages", str(tmp_path)]
    assert main([*SMALL, "--out", str(out), *words]) == executor_bench.main(words) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {readme}: needs one line '<!-- agreement tiny -->' and")
    assert second.startswith(f"error: {readme}: needs one line '<!-- executor-bench -->' and")
    assert not out.exists()
    assert readme.read_text() == "no marks\n"


def test_what_was_never_measured_has_no_error_that_json_could_not_hold() -> None:
    found = by_name(compare([summary(0.010, 0.1, 100)], [summary(0.010, 0.1, 100, 2)]))["preemptions by swap"]
    assert found.error == float("inf")
    assert found.to_dict()["error"] is None


@pytest.mark.parametrize("text", [None, "{", "[]", '{"load": {}}', '{"load": {"model": "tiny"}, "runs": {}}'])
def test_a_stored_race_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    path = tmp_path / "runs.json"
    if text is not None:
        path.write_text(text)
    assert executor_bench.main(["--stored", str(path)]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert str(path) in printed.err


def test_a_small_race_counts_useful_tokens_of_the_same_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    written = tmp_path / "runs.json"
    words = ["--model", "tiny", "--clients", "4", "--num-requests", "9", "--mean-output-tokens", "6"]
    code = executor_bench.main([*words, "--most-output-tokens", "20", "--rounds", "1", "--json", str(written)])
    found = json.loads(written.read_text())
    load = executor_bench.Load(**found["load"])
    useful = sum(row.output_tokens for row in load.rows())
    assert {name: [run["tokens"] for run in runs] for name, runs in found["runs"].items()} == {
        "continuous": [useful],
        "static": [useful],
        "static, early return": [useful],
        "transformers, padded static": [useful],
    }
    rates = {name: useful / runs[0]["wall_s"] for name, runs in found["runs"].items()}
    gains = [rates["continuous"] / rates[name] - least for name, least in executor_bench.NEEDED]
    assert code == (0 if min(gains) >= 0 else 1)
    printed = capsys.readouterr().out
    assert printed.count("| transformers, padded static |") == 1
    assert printed.count("MISSED") == sum(gain < 0 for gain in gains)
    assert _laid_again(written, tmp_path) == code
    assert (tmp_path / "README.md").read_text() == f"<!-- executor-bench -->\n{printed}<!-- end executor-bench -->\n"


def _laid_again(written: Path, folder: Path) -> int:
    """Put the table of a stored run into a page that holds another; exit code."""
    (folder / "README.md").write_text("<!-- executor-bench -->\nan old table\n<!-- end executor-bench -->\n")
    return executor_bench.main(["--stored", str(written), "--pages", str(folder)])


def test_the_pace_of_a_run_is_that_of_the_nearest_timed_steps() -> None:
    pace = Pace([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert (pace.mean, pace(0.0), pace(9.0)) == (1.0, 1.0, 1.0)
    # Twice as slow from second 50 on; what is near the change lies between.
    pace = Pace(range(100), [1.0] * 50 + [2.0] * 50)
    assert pace.mean == 1.5
    assert [pace(second) for second in (0.0, 45.4, 54.0, 200.0)] == [1.0, 1.0, 2.0, 2.0]
    assert 1.0 < pace(49.0) < pace(51.0) < 2.0
    nothing = Pace([], [])
    assert (nothing.mean, nothing(3.0)) == (1.0, 1.0)
