"""Sweeps from the command line and from Python: tables, restarts, errors, pages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from policies.core.errors import UserError
from sim import simulate, sweep
from sim.explore.journal import Journal
from sim.explore.sweepfile import load_sweep
from sim.explore.workers import Where, workers
from tests.command import batchscope, message_of
from tests.explore.sweeps import BASE, GRID, keys_of, rows_of, write
from tests.pages import Page

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("in_empty_folder")


def test_a_grid_runs_every_combination_and_leaves_a_table_and_a_page() -> None:
    write(GRID)
    ended = batchscope("sweep", "sweep.toml", "--jobs", 1)
    assert ended.exit_code == 0, ended.stderr
    table = pd.read_csv("runs/sweep/table.csv")
    assert table["point"].tolist() == list(range(6))
    assert table["engine.max_num_seqs"].tolist() == [2, 2, 8, 8, 64, 64]
    assert table["engine.preset"].tolist() == ["vllm-0.11", "orca-max"] * 3
    assert (table["finished"] == 30).all()
    kept = pd.read_parquet("runs/sweep/table.parquet")
    assert kept["stable"].isna().all()  # 30 requests are too few for a verdict
    numbers = [name for name in table if name not in ("stable", "message")]
    pd.testing.assert_frame_equal(kept[numbers], table[numbers], check_dtype=False)
    page = Page(Path("runs/sweep/report.html").read_text(encoding="utf-8"))
    assert page.wrong == []
    assert "Chosen: point" in page.visible
    assert {"plot-front", "plot-response-0-0", "plot-response-1-1"} <= page.plots.keys()
    assert len(page.plots["plot-front"]["data"]) >= 2


def test_a_row_has_what_the_run_alone_gives() -> None:
    write(GRID)
    result = sweep("sweep.toml", jobs=1)
    row = result.table.iloc[4]
    tables = load_sweep("sweep.toml").base
    alone = simulate(tables, overrides=["engine.max_num_seqs=64", "engine.preset='vllm-0.11'", "workload.seed=0"])
    assert row["ttft_p99_s"] == alone.summary["ttft_s"]["p99"]
    assert row["output_tokens_per_s"] == alone.summary["throughput"]["output_tokens_per_s"]
    assert result.folder is None
    assert not Path("runs").exists()


def test_the_table_is_the_same_however_many_workers() -> None:
    write('[sweep]\nnum_points = 6\nrepeats = 2\n[random]\n"engine.max_num_seqs" = {low = 1, high = 99}\n')
    one, two = (sweep("sweep.toml", jobs=jobs).table for jobs in (1, 2))
    pd.testing.assert_frame_equal(one, two)
    assert one["seed"].tolist() == [0, 1] * 6
    assert one.groupby("point")["engine.max_num_seqs"].nunique().eq(1).all()
    assert one["engine.max_num_seqs"].nunique() == 6


def test_more_random_points_change_none_of_those_before() -> None:
    text = '[sweep]\nnum_points = {}\n[random]\n"workload.rate_per_s" = {{low = 1.0, high = 9.0, log = true}}\n'
    few = list(load_sweep(write(text.format(5))).points())
    many = list(load_sweep(write(text.format(40))).points())
    assert many[:5] == few
    assert all(1.0 <= float(str(point["workload.rate_per_s"])) <= 9.0 for point in many)


def test_started_again_it_runs_only_what_is_missing() -> None:
    write(GRID)
    assert batchscope("sweep", "sweep.toml", "--jobs", 1).exit_code == 0
    before, table = Path("runs/sweep/points.jsonl").read_bytes(), Path("runs/sweep/table.csv").read_bytes()
    again = batchscope("sweep", "sweep.toml", "--jobs", 1)
    assert "6 of 6 runs were there already" in again.stderr
    assert Path("runs/sweep/points.jsonl").read_bytes() == before
    write(GRID.replace("64]", "64, 128]"))
    assert batchscope("sweep", "sweep.toml", "--jobs", 1).exit_code == 0
    assert Path("runs/sweep/points.jsonl").read_bytes().startswith(before)
    assert len(keys_of("runs/sweep")) == 8
    assert Path("runs/sweep/table.csv").read_bytes() != table


def test_killed_it_loses_no_finished_point_and_repeats_none() -> None:
    base = BASE.replace("num_requests = 30", "num_requests = 200")
    write('[sweep]\nnum_points = 12\n[random]\n"engine.max_num_seqs" = {low = 8, high = 200}\n', base)
    command = [sys.executable, "-m", "sim.cli.main", "sweep", "sweep.toml", "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    journal = Path("runs/sweep/points.jsonl")
    kept = b""
    for _ in range(2):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted = kept.count(b"\n") + 2
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < wanted):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = journal.read_bytes()
        assert now.startswith(kept)
        kept = now[: now.rfind(b"\n") + 1]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert journal.read_bytes().startswith(kept)
    keys = keys_of("runs/sweep")
    assert len(keys) == len(set(keys)) == 12
    whole = sweep("sweep.toml", jobs=1)
    assert Path("runs/sweep/table.csv").read_text(encoding="utf-8") == whole.table.to_csv(index=False)


def test_a_torn_last_line_is_cut_off_and_run_again() -> None:
    write(GRID)
    assert batchscope("sweep", "sweep.toml", "--jobs", 1).exit_code == 0
    path = Path("runs/sweep/points.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert batchscope("sweep", "sweep.toml", "--jobs", 1).exit_code == 0
    assert path.read_bytes() == whole


def test_a_damaged_row_is_named() -> None:
    write(GRID)
    assert batchscope("sweep", "sweep.toml", "--jobs", 1).exit_code == 0
    path = Path("runs/sweep/points.jsonl")
    path.write_bytes(b"{broken}\n" + path.read_bytes())
    ended = batchscope("sweep", "sweep.toml", "--jobs", 1)
    assert ended.exit_code == 2
    assert "points.jsonl: line 1 is no row of a sweep; remove that line" in ended.stderr


@pytest.mark.parametrize(
    "change",
    [{"metrics": []}, {"metrics": {"ttft_p99_s": "x"}}, {"metrics": {"ttft_p99_s": float("nan")}}, {"stable": "no"},
     {"settings": 3}, {"seed": "0"}, {"message": None}],
)  # fmt: skip
def test_a_row_with_other_facts_is_no_row(change: dict[str, object]) -> None:
    row = {"settings": {}, "seed": 0, "status": "completed", "message": "", "stable": None, "metrics": {"finished": 3}}
    folder = Path("out")
    with Journal(folder, "base"):
        pass
    (folder / "points.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | change) + "\n")
    with pytest.raises(UserError, match="line 2 is no row of a sweep"):
        Journal(folder, "base")


def test_a_base_that_is_no_text_is_another_base() -> None:
    Path("out").mkdir()
    Path("out/base.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="holds a sweep over another base"):
        Journal(Path("out"), "base")


def test_a_full_disk_keeps_whole_rows_and_is_one_line() -> None:
    pytest.importorskip("resource")
    write(GRID)
    words = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)); from sim.cli.main import main"
    command = [sys.executable, "-c", f"{words}; main()", "sweep", "sweep.toml", "--jobs", "1", "--out", "full"]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "what has finished before is kept: make room" in ended.stderr
    kept = Path("full/points.jsonl").read_bytes()
    assert kept.endswith(b"}\n")
    assert 0 < kept.count(b"\n") < 6
    assert batchscope("sweep", "sweep.toml", "--jobs", 1, "--out", "full").exit_code == 0
    assert Path("full/points.jsonl").read_bytes().startswith(kept)
    assert batchscope("sweep", "sweep.toml", "--jobs", 1).exit_code == 0
    assert Path("full/table.csv").read_bytes() == Path("runs/sweep/table.csv").read_bytes()


def _is_interrupt_blocked(number: int) -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_workers_are_not_told_of_an_interruption() -> None:
    with workers(Where(jobs=2), 2) as run:
        assert list(run(_is_interrupt_blocked, range(2))) == [True, True]
        assert not _is_interrupt_blocked(0)


def test_two_sweeps_do_not_write_into_one_folder() -> None:
    with Journal(Path("out"), "base"), pytest.raises(UserError, match="another sweep is writing into it"):
        Journal(Path("out"), "base")
    with Journal(Path("out"), "base"):
        pass


def test_a_point_that_is_an_error_is_a_row_with_its_message() -> None:
    write('[grid]\n"engine.block_size" = [16, 0, 32]\n')
    ended = batchscope("sweep", "sweep.toml", "--jobs", 1)
    assert ended.exit_code == 0
    statuses = [(row["status"], row["message"]) for row in rows_of("runs/sweep")]
    assert statuses[1] == ("user_error", "engine.block_size = 0: give a whole number of at least 1")
    assert [status for status, _ in statuses] == ["completed", "user_error", "completed"]
    assert "1 could not be run: engine.block_size = 0" in ended.stdout


def test_a_sweep_without_any_point_that_runs_ends_in_one_line() -> None:
    write('[grid]\n"engine.block_size" = [0]\n')
    ended = batchscope("sweep", "sweep.toml", "--jobs", 1)
    assert ended.exit_code == 2
    assert "no point could be run; the first one: engine.block_size = 0" in ended.stderr


def test_limits_choose_the_point_of_most_throughput_that_keeps_them() -> None:
    text = '[sweep]\nlimits = ["ttft_p99_s={}"]\nlatency = "ttft_p99_s"\n[grid]\n"workload.rate_per_s" = [1, 2, 20]\n'
    write(text.format(0.2))
    result = sweep("sweep.toml", jobs=1)
    assert result.chosen is not None
    meets = result.table[(result.table["ttft_p99_s"] <= 0.2) & result.table["stable"].fillna(True)]
    assert result.chosen.number == meets.loc[meets["output_tokens_per_s"].idxmax(), "point"]
    write(text.format(0.001))
    ended = batchscope("sweep", "sweep.toml", "--jobs", 1)
    assert "No point has TTFT p99 <= 1 ms. Nearest comes point" in ended.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[grid]\n"engine.max_num_sqs" = [1]\n', "did you mean 'max_num_seqs'?"),
        ('[grid]\n"engin.max_num_seqs" = [1]\n', "unknown section 'engin'"),
        ("[sweep]\nrepets = 3\n" + GRID, "sweep.repets: unknown key"),
        ('[sweep]\nmetrics = ["ttft_p98_s"]\n' + GRID, "did you mean 'ttft_p"),
        ("[gird]\n", "gird: unknown table of a sweep"),
        ('[grid]\n"engine.max_num_seqs" = 4\n', "give a list of values"),
        ('[grid]\n"engine.max_num_seqs" = {low = 4, high = 8}\n', "add num, or list the values"),
        ('[random]\n"engine.max_num_seqs" = [4]\n', "sweep.num_points is missing"),
        ('[sweep]\nnum_points = 9\n[random]\n"engine.max_num_seqs" = [4, 5]\n', "no more than 2 different points"),
        ('[sweep]\nnum_points = 9\n[search]\n"engine.max_num_seqs" = [4, 5]\n', "search.objectives is missing"),
        ('[grid]\n"workload.seed" = [1, 2]\n', "give sweep.repeats = N"),
        ('[grid]\n"workload.rate_per_s" = [1, nan]\n', "give finite numbers"),
        ('[grid]\n"engine.max_num_seqs" = [4, 10000000000000000000]\n', "of at most 64 bits"),
        ('[grid]\n"engine.max_num_seqs" = {low = 1, high = 10000000000000000000, num = 3}\n', "of at most 64 bits"),
        ('[grid]\n"workload.rate_per_s" = {low = 1, high = 2.5, num = 10000000000}\n', "of at most 1000000"),
        ('[grid]\n"engine.max_num_seqs" = [4, 8, 4]\n', "4 is given twice"),
        ('[grid]\n"model.name" = [2026-01-01]\n', "give numbers, texts"),
        (
            '[sweep]\nrepeats = 1000\n[grid]\n"workload.rate_per_s" = {low = 1.0, high = 2.0, num = 1001}\n',
            "runs, more",
        ),
        (
            '[sweep]\nnum_points = 2\n[random]\n"workload.rate_per_s" = {low = 1.0, high = 1.0000000000001}\n',
            "finds no more than 1 different points",
        ),
        (
            '[sweep]\nnum_points = 2\n[search]\nobjectives = ["min ttft_p99_s", "max ttft_p99_s"]\n'
            '"engine.max_num_seqs" = [4, 5]\n',
            "ttft_p99_s is given twice",
        ),
        ('[sweep]\nlimits = ["ttft_p99=1"]\n' + GRID, "did you mean 'ttft_p99_s'?"),
    ],
)
def test_mistakes_end_in_one_line(text: str, expected: str) -> None:
    message = message_of("sweep", "sweep.toml", files={"sweep.toml": text + BASE})
    assert expected in message


def test_values_of_several_kinds_are_texts_in_a_column() -> None:
    write('[grid]\n"engine.max_num_seqs" = [4, "a", true, [1]]\n')
    ended = batchscope("sweep", "sweep.toml", "--jobs", 1)
    assert ended.exit_code == 0, ended.stderr
    table = pd.read_parquet("runs/sweep/table.parquet")
    assert table["engine.max_num_seqs"].tolist() == ["4", "a", "true", "[1]"]
    assert table["status"].tolist() == ["completed"] + ["user_error"] * 3


def test_a_file_under_the_points_is_named_where_it_is_wrong() -> None:
    files: dict[str, str | bytes] = {"sweep.toml": '[sweep]\nbase = "run.toml"\n' + GRID, "run.toml": "[wrokload]\n"}
    assert "run.toml: wrokload: unknown section" in message_of("sweep", "sweep.toml", files=files)


def test_unknown_keys_of_the_base_are_found_before_anything_runs() -> None:
    base = BASE.replace("rate_per_s", "rate")
    assert "base.workload.rate: unknown key" in message_of("sweep", "sweep.toml", files={"sweep.toml": GRID + base})


def test_rows_over_another_base_are_refused() -> None:
    write(GRID)
    assert batchscope("sweep", "sweep.toml", "--jobs", 1).exit_code == 0
    ended = batchscope("sweep", "sweep.toml", "--jobs", 1, "--set", "workload.num_requests=20")
    assert ended.exit_code == 2
    assert "holds a sweep over another base" in ended.stderr


def test_ray_and_jobs_are_not_both_given() -> None:
    write(GRID)
    with pytest.raises(UserError, match="--jobs and --ray are both given"):
        sweep("sweep.toml", jobs=2, ray="auto")


def test_every_metric_is_listed_and_can_be_asked_for() -> None:
    listed = batchscope("sweep", "--metrics").stdout
    assert "ttft_p99_s" in listed
    names = [line.split()[0] for line in listed.splitlines()[2:] if line.strip()]
    write(f'[sweep]\nmetrics = {names}\n[grid]\n"price.a100-80gb" = [1.5]\n')
    table = sweep("sweep.toml", jobs=1).table
    assert set(names) <= set(table.columns)
    assert table["usd_per_request"].iloc[0] > 0


def test_the_example_of_the_guide_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "sweep.md").read_text(encoding="utf-8")
    exec(text.partition("```python\n")[2].partition("```")[0], {})
    assert "engine.max_num_seqs" in capsys.readouterr().out
    example = text.partition("```toml\n")[2].partition("```")[0].replace('base = "run.toml"', "")
    assert load_sweep(write(example)).num_points == 30
