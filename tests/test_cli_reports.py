"""``batchscope report``, ``compare``, ``explain``, and the pages that ``run`` and ``demo`` write."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.command import Ended, batchscope, chat, own_csv, settings
from tests.pages import Page
from traces.record.read import read_run

pytestmark = pytest.mark.usefixtures("in_empty_folder")
PRESSED = chat(30, 60, engine__num_gpu_blocks=150)


def run(out: str, *arguments: object) -> Path:
    ended = batchscope("run", *arguments, "--out", out, "--json")
    assert (ended.exit_code, ended.stderr) == (0, "")
    return Path(out)


def message(ended: Ended) -> str:
    """The one line of an error."""
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    return ended.stderr


# -- run, report, demo -------------------------------------------------------------------------------------------


def test_run_writes_a_page_unless_told_otherwise() -> None:
    ended = batchscope("run", *PRESSED, "--out", "a")
    assert ended.stdout.splitlines()[-1] == f"report: {Path('a/report.html')}"
    assert Page(Path("a/report.html").read_text()).texts("h1") == ["vllm-0.11: llama-2-7b on a100-80gb"]
    assert "report" not in batchscope("run", *PRESSED, "--out", "b", "--no-report").stdout
    run("c", *PRESSED)
    assert not Path("b/report.html").exists()
    assert not Path("c/report.html").exists()
    run("d", *PRESSED, "--report")
    assert Path("d/report.html").exists()


@pytest.mark.parametrize("level", ["requests", "steps", "tokens"])
def test_a_page_can_be_built_again_from_its_folder(level: str) -> None:
    batchscope("run", *PRESSED, *settings(f"sim.record={level}"), "--out", "a")
    first = Path("a/report.html").read_text()
    Path("a/report.html").unlink()
    assert batchscope("report", "a") == (0, f"report: {Path('a/report.html')}\n", "")
    assert Path("a/report.html").read_text() == first
    assert batchscope("report", "a", "--out", "elsewhere.html").exit_code == 0
    assert Path("elsewhere.html").read_text() == first


def test_what_is_no_run_is_one_line() -> None:
    assert "nowhere: no such folder; give the folder of a run" in message(batchscope("report", "nowhere"))
    Path("empty").mkdir()
    assert "empty: no summary.json; give the folder of a run that has ended" in message(batchscope("report", "empty"))
    run("a", *PRESSED)
    assert "name at least two run folders" in message(batchscope("compare", "a"))
    assert "give either --request ID or --step N" in message(batchscope("explain", "a"))


def test_a_run_without_answers_has_a_page_too() -> None:
    Path("own.csv").write_text(own_csv((0, 9000, 5), (1, 9000, 6)))
    assert batchscope("run", "--trace", "own.csv", "--out", "a").exit_code == 2
    made = Page(Path("a/report.html").read_text())
    assert "No request of vllm-0.11 got an answer." in made.visible
    assert "0 of 2 finished; 2 refused at the door" in made.visible


def test_a_run_that_nobody_asked_anything_has_no_page() -> None:
    ended = batchscope("run", *PRESSED, *settings("sim.max_time_s=0.0001"), "--out", "a")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "record: a"
    assert not Path("a/report.html").exists()


def test_a_run_that_died_has_a_page_that_says_so() -> None:
    keys = {"engine__faithful": True, "engine__max_model_len": 400, "engine__swap_space_bytes": 4 << 23}
    dying = chat(60, 60, engine__num_gpu_blocks=60, **keys)
    assert batchscope("run", *dying, "--policy", "vllm-0.6-swap", "--out", "a").exit_code == 3
    assert "engine_died: the run did not complete" in Page(Path("a/report.html").read_text()).visible


def test_demo_ends_with_a_page_that_compares_the_three() -> None:
    ended = batchscope("demo")
    assert ended.exit_code == 0
    path = Path("batchscope-demo/report.html")
    assert ended.stdout.splitlines()[-1] == f"report: {path} (open it in any browser)"
    made = Page(path.read_text())
    assert made.texts("h1") == ["static, Orca, paged: llama-2-7b on a100-80gb"]
    names = made.texts("strong")
    assert names[:3] == ["static (ft-static)", "Orca (orca-max)", "paged (vllm-0.11)"]
    assert all(name in ended.stdout for name in names[:3])
    assert "does not keep up" in made.visible


# -- compare -----------------------------------------------------------------------------------------------------


def test_compare_pairs_requests_and_lists_what_differs() -> None:
    a, b = run("a", *PRESSED), run("b", *PRESSED, "--policy", "vllm-0.6-swap")
    ended = batchscope("compare", a, b)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert "vllm-0.6-swap minus vllm-0.11, request by request" in ended.stdout
    assert re.search(r"engine\.preset +vllm-0\.11 +vllm-0\.6-swap", ended.stdout)
    assert ended.stdout.splitlines()[-1] == f"report: {Path('runs/compare-1.html')}"
    made = Page(Path("runs/compare-1.html").read_text())
    assert made.texts("h1") == ["vllm-0.11, vllm-0.6-swap: llama-2-7b on a100-80gb"]
    assert batchscope("compare", a, b).stdout.splitlines()[-1] == f"report: {Path('runs/compare-2.html')}"


def test_the_differences_are_those_of_the_same_requests() -> None:
    a, b = run("a", *PRESSED), run("b", *PRESSED, "--policy", "vllm-0.6-swap")
    tables = [read_run(folder).requests.set_index("id") for folder in (a, b)]
    ttft_s = [table["first_token_s"] - table["arrival_s"] for table in tables]
    mean_ms = 1e3 * float((ttft_s[1] - ttft_s[0]).mean())
    line = next(x for x in batchscope("compare", a, b).stdout.splitlines() if x.startswith("TTFT mean  ") and "%" in x)
    shown = float(line.split()[2]) * (1 if line.split()[3] == "ms" else 1e3)
    assert shown == pytest.approx(mean_ms, rel=6e-3)
    assert line.split()[-1] == "60"


def test_runs_of_one_policy_are_told_by_their_folders() -> None:
    run("small", *PRESSED)
    run("large", *chat(30, 60, engine__num_gpu_blocks=300))
    ended = batchscope("compare", "small", "large", "--out", "page.html")
    assert "vllm-0.11 (large) minus vllm-0.11 (small)" in ended.stdout
    lines = Page(Path("page.html").read_text()).plots["plot-ttft_s"]["data"]
    assert len({trace["line"]["color"] for trace in lines}) == 1
    assert len({trace["line"]["dash"] for trace in lines}) == 2


def test_other_workloads_are_refused_or_compared_without_pairs() -> None:
    run("a", *PRESSED)
    run("b", *chat(30, 60, engine__num_gpu_blocks=150, workload__seed=1))
    assert re.search(
        r"the workloads differ: the prompt of request \d+ has \d+ tokens in a and \d+ in b; compare runs with the same"
        r" \[workload\] and seed, or add --unpaired",
        message(batchscope("compare", "a", "b")),
    )
    ended = batchscope("compare", "a", "b", "--unpaired", "--out", "page.html")
    assert ended.exit_code == 0
    assert "request by request" not in ended.stdout + Page(Path("page.html").read_text()).visible


def test_a_page_in_a_folder_that_is_not_there_is_one_line() -> None:
    a = run("a", *PRESSED)
    ended = batchscope("compare", a, a, "--out", "no/page.html")
    place = Path("no/page.html")
    assert ended.exit_code == 2
    assert ended.stderr == f"batchscope: {place}: there is no folder no; make it, or name a file in another one\n"


def test_what_weakens_a_comparison_is_said() -> None:
    run("a", *chat(30, 60, engine__num_gpu_blocks=150))
    run("b", *chat(15, 50, engine__num_gpu_blocks=150))
    out = batchscope("compare", "a", "b", "--out", "page.html").stdout
    assert "has 50 requests, vllm-0.11 (a) 60; differences are over the 50 of both" in out
    assert "the same requests arrive at different times" in out
    assert "Comparison" in Page(Path("page.html").read_text()).texts("dt")


# -- explain -----------------------------------------------------------------------------------------------------


def queued() -> Path:
    """Three requests for one seat: the second waits for the first, the third for both."""
    Path("own.csv").write_text(own_csv((0.0, 100, 50), (0.1, 40, 20), (0.2, 30, 10)))
    return run("one", "--trace", "own.csv", *settings("engine.max_num_seqs=1", "sim.record=tokens"))


def test_explain_names_what_a_request_waited_for() -> None:
    text = batchscope("explain", queued(), "--request", 2).stdout
    assert text.startswith("Request 2: 30 tokens of prompt, 10 of answer. First token after ")
    assert "with 1 request waiting before it" in text
    assert "the batch had all the requests it may have (max_num_seqs)" in text
    assert "It got in when request 1 ended and made room." in text
    assert "waiting in the queue" in text
    assert "is longer than that of 100 % of the requests" in text
    first = batchscope("explain", "one", "--request", 0).stdout
    assert "It was taken into the batch at once." in first


def test_explain_tells_when_a_request_was_preempted() -> None:
    folder = run("a", *PRESSED, *settings("sim.record=tokens"))
    table = read_run(folder).requests
    row = table.sort_values("recompute_preemptions").iloc[-1]
    text = batchscope("explain", folder, "--request", row["id"]).stdout
    assert text.count("preempted, waiting to be recomputed") == row["recompute_preemptions"] > 0
    below = run("b", *PRESSED)
    assert "run again with --set sim.record=tokens" in batchscope("explain", below, "--request", row["id"]).stdout


def test_explain_of_a_step_says_who_ran_and_who_waited() -> None:
    text = batchscope("explain", queued(), "--step", 30).stdout
    assert re.match(r"Step 30 of 80 ran from [\d.]+ s for [\d.]+ ms\.\nIt computed one token\.\n", text)
    assert "1 request in the batch, 2 waiting" in text
    assert "No further request was let in: the batch had all the requests it may have" in text
    assert re.search(r"Waiting then: requests 1, 2; request 1 for longest", text)
    first = batchscope("explain", "one", "--step", 0).stdout
    assert "It computed 100 tokens of prompts, which completed 1 of these prompts." in first
    assert "No request was kept out: nothing was waiting." in first


def test_what_is_not_in_the_record_is_one_line() -> None:
    folder = queued()
    assert "--request 3: no such request in this run; its ids are 0 to 2" in message(
        batchscope("explain", folder, "--request", 3)
    )
    assert "--step 80: no such step in this run; it has steps 0 to 79" in message(
        batchscope("explain", folder, "--step", 80)
    )
    run("a", *PRESSED)
    assert "this record has no steps; run again with --set sim.record=steps" in message(
        batchscope("explain", "a", "--step", 0)
    )


def test_explain_of_a_refused_request() -> None:
    Path("own.csv").write_text(own_csv((0, 10, 5), (1, 9000, 6)))
    text = batchscope("explain", run("a", "--trace", "own.csv"), "--request", 1).stdout
    assert "it is one of those refused at the door (prompt_too_long)" in text
    assert "never got into the batch" in text


# -- the timeline ------------------------------------------------------------------------------------------------


def timeline(*arguments: object) -> list[dict[str, Any]]:
    run("a", *arguments)
    ended = batchscope("report", "a", "--perfetto")
    assert f"timeline: {Path('a/perfetto.json')}" in ended.stdout
    parsed = json.loads(Path("a/perfetto.json").read_text())
    assert parsed["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = parsed["traceEvents"]
    return events


def test_the_timeline_has_every_request_and_step_and_no_overlap_in_a_row() -> None:
    events = timeline(*PRESSED, *settings("sim.record=tokens"))
    record = read_run("a")
    slices = [event for event in events if event["ph"] == "X"]
    whole = [event for event in slices if event["name"].startswith("request ")]
    assert {event["name"] for event in whole} == {f"request {number}" for number in record.requests["id"]}
    steps = [event for event in slices if event["pid"] == 2]
    assert record.summary is not None
    assert len(steps) == record.summary["steps"]["count"]
    for row in {event["tid"] for event in whole}:
        mine = sorted((event["ts"], event["ts"] + event["dur"]) for event in whole if event["tid"] == row)
        assert all(end <= start + 0.01 for (_, end), (start, _) in pairwise(mine))
    phases = [event for event in slices if event["pid"] == 1 and event not in whole]
    assert sum(event["dur"] for event in phases) == pytest.approx(sum(event["dur"] for event in whole), rel=1e-3)
    assert {event["name"] for event in events if event["ph"] == "C"} == {"running", "waiting", "swapped", "used_blocks"}


def test_a_record_without_steps_has_a_timeline_of_requests() -> None:
    events = timeline(*PRESSED)
    assert not [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    assert [event for event in events if event["ph"] == "X"]
