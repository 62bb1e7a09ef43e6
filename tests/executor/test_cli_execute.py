"""``batchscope execute`` and ``diff``: what they print and leave behind, and how mistakes end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tests.command import batchscope, message_of, own_csv, settings
from traces.record.events import read_events
from traces.record.read import read_run

pytestmark = pytest.mark.usefixtures("in_empty_folder")

ROOT = Path(__file__).resolve().parents[2]
HERE = ("--device", "cpu", "--dtype", "float32", "--ops", "torch")
TINY = ("execute", "--model", "tiny", *HERE)
ROWS = own_csv(*((0.02 * number, 10 + number, 5 + 3 * number) for number in range(8)))


def traced(**more: object) -> list[str]:
    Path("rows.csv").write_text(ROWS)
    return ["--trace", "rows.csv", *settings(**more)]


def test_a_measured_run_reads_like_a_simulated_one() -> None:
    work = traced(engine__num_gpu_blocks=8, engine__max_model_len=100, sim__record="decisions")
    ended = batchscope(*TINY, *work, "--out", "real", "--json")
    assert ended.exit_code == 0, ended.stderr
    summary = ended.summary
    assert (summary["side"], summary["status"], summary["model"]) == ("server-measured", "completed", "tiny")
    assert summary["hardware"].startswith("cpu (")
    assert summary["requests"]["finished"] == 8
    assert summary["executor"]["dtype"] == "float32"
    device, whole = summary["executor"]["device_s"]["mean"], summary["duration_s"] / summary["steps"]["count"]
    assert 0.0 < device < whole
    assert json.loads(Path("real/summary.json").read_text()) == summary
    record = read_run("real")
    assert record.steps is not None
    assert len(record.requests) == 8
    assert int(record.requests["output_tokens"].sum()) == sum(5 + 3 * number for number in range(8))
    for command in (["report"], ["explain", "--request", "3"], ["explain", "--step", "2"], ["diff"]):
        shown = batchscope(command[0], "real", *command[1:])
        assert (shown.exit_code, shown.stderr) == (0, ""), command
    assert "measured on the server" in Path("real/report.html").read_text()
    conform = batchscope("policies", "conform", "real/decisions.jsonl")
    assert (conform.exit_code, conform.stdout.split()[1]) == (0, "{0}/{0}".format(summary["steps"]["count"]))


def test_both_worlds_decide_the_same_when_time_has_no_say() -> None:
    """Clients that all come at once: what is decided does not depend on how long steps last."""
    work = traced(engine__num_gpu_blocks=8, engine__max_model_len=100, sim__record="decisions", workload__concurrency=8)
    assert batchscope(*TINY, *work, "--out", "real", "--no-report").exit_code == 0
    assert batchscope("run", *work, "--model", "tiny", "--out", "simulated", "--no-report").exit_code == 0
    ended = batchscope("diff", "simulated", "real")
    assert (ended.exit_code, ended.stderr) == (0, "")
    steps = len(Path("real/decisions.jsonl").read_text().splitlines()) - 2 - 8
    assert ended.stdout.startswith(f"first differing decision: none of {steps} steps\n")
    for words in ("TTFT mean", "output tokens/s", "note: side differs: server-simulated (vllm-0.11 (simulated))"):
        assert words in ended.stdout
    assert "recompute" in ended.stdout, "memory is short, and requests were preempted in both"
    assert batchscope("compare", "simulated", "real").exit_code == 0


def test_a_larger_cpu_pool_is_no_other_decision() -> None:
    """The simulated one has its usual swap space, the measured one as much of it as can be of use."""
    work = traced(engine__num_gpu_blocks=8, engine__max_model_len=100, sim__record="decisions", workload__concurrency=8)
    work = [*work, "--policy", "vllm-0.6-swap"]
    assert batchscope(*TINY, *work, "--out", "real", "--no-report").exit_code == 0
    assert batchscope("run", *work, "--model", "tiny", "--out", "simulated", "--no-report").exit_code == 0
    headers = [json.loads(Path(name, "decisions.jsonl").read_text().splitlines()[0]) for name in ("real", "simulated")]
    assert headers[0]["num_cpu_blocks"] < headers[1]["num_cpu_blocks"]
    ended = batchscope("diff", "real", "simulated")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.startswith("first differing decision: none of ")
    assert "preemptions by swap" in ended.stdout


def test_another_policy_is_found_out_at_its_first_other_decision() -> None:
    work = traced(engine__num_gpu_blocks=8, engine__max_model_len=100, workload__concurrency=8)
    assert batchscope(*TINY, *work, "--out", "real", "--no-report").exit_code == 0
    assert batchscope("diff", "real").stdout.startswith("first differing decision: none (")
    toml = Path("real/run.toml")
    toml.write_text(toml.read_text().replace("[engine]", "[engine]\nmax_num_seqs = 2"))
    ended = batchscope("diff", "real")
    assert (ended.exit_code, ended.stderr) == (1, "")
    assert "plan 0 at 0.0" in ended.stdout
    assert "differs\n  recorded " in ended.stdout


def test_runs_without_decisions_are_compared_by_their_metrics() -> None:
    for folder in ("a", "b"):
        assert batchscope("run", *traced(), "--model", "tiny", "--out", folder, "--no-report").exit_code == 0
    ended = batchscope("diff", "a", "b")
    assert ended.exit_code == 0
    assert ended.stdout.startswith("decisions are not compared: a: no decisions.jsonl; run again with --set sim.record")
    assert "+0.0 %" in ended.stdout


BREAKS = """
from policies.systems.token_budget import TokenBudget


class Mine(TokenBudget):
    def schedule(self, now_s):
        plan = super().schedule(now_s)
        if now_s > 0.1:
            raise ValueError("no idea")
        return plan
"""


def test_a_class_of_ones_own_runs_and_replays_and_one_that_breaks_leaves_nothing() -> None:
    own = ROOT / "tests/examples/shortest_prompt_first.py"
    assert batchscope(*TINY, *traced(), "--policy", f"{own}:ShortestPromptFirst", "--out", "own").exit_code == 0
    assert batchscope("diff", "own").stdout.startswith("first differing decision: none (")
    Path("mine.py").write_text(BREAKS)
    said = message_of(*TINY, *traced(), "--policy", "mine.py:Mine", "--out", "broken", files={})
    assert said.startswith("engine.policy = 'mine.py:Mine'")
    assert "ValueError: no idea" in said


def test_an_engine_that_dies_dies_again_in_the_replay() -> None:
    Path("three.csv").write_text(own_csv((0, 30, 60), (0, 30, 60), (0, 30, 60)))
    small = settings(
        engine__num_gpu_blocks=8, engine__max_model_len=100, engine__swap_space_bytes=0, engine__faithful=True
    )
    work = ("--trace", "three.csv", "--policy", "vllm-0.6-swap", *small, "--out", "dead", "--no-report")
    ended = batchscope(*TINY, *work)
    assert ended.exit_code == 3
    assert ended.stderr.startswith("batchscope: engine_died: no CPU swap space for request 2; ")
    assert "status: engine_died\n0 of 3 finished, 3 unfinished\n" in ended.stdout
    assert batchscope("diff", "dead").stdout.startswith("first differing decision: none (3 plans, ")


SLOW = ("workload.generator=closed-loop", "workload.concurrency=4", "workload.num_requests=4000")
LENGTHS = ('workload.prompt={dist="fixed",value=20}', 'workload.output={dist="fixed",value=60}')


def start(folder: str) -> subprocess.Popen[str]:
    """A long run in a process of its own, some steps of which are written."""
    command = [sys.executable, "-m", "sim.cli.main", *TINY, *settings(*SLOW, *LENGTHS), "--out", folder]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    events = Path(folder) / "events.jsonl"
    while not events.exists() or events.stat().st_size < 20_000:
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    return process


def test_a_killed_run_leaves_a_record_up_to_its_last_step() -> None:
    process = start("killed")
    process.kill()
    process.communicate()
    folder = Path("killed")
    assert not (folder / "summary.json").exists()
    record = read_run(folder)
    assert record.steps is not None
    results = [line for line in read_events(folder / "events.jsonl") if line["type"] == "result"]
    assert len(record.steps) > 20
    assert abs(len(record.steps) - len(results)) <= 1
    assert record.steps["end_s"].tolist()[:20] == [line["end_s"] for line in results[:20]]
    assert batchscope("diff", "killed").stdout.startswith("first differing decision: none (")
    assert "no summary.json" in batchscope("report", "killed").stderr


def test_an_interrupt_ends_with_a_summary() -> None:
    process = start("half")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr.splitlines()[-1].startswith("batchscope: interrupted: stopped after ")
    assert "status: interrupted" in stdout
    summary = json.loads(Path("half/summary.json").read_text())
    assert (summary["status"], summary["requests"]["unfinished"]) == ("interrupted", 4)


WORK = settings(*SLOW, *LENGTHS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "tpu"), "device = 'tpu': choose auto, cpu, cuda or cuda:N"),
        (("--device", "cuda:99"), "device = 'cuda:99': there are "),
        (("--dtype", "float23"), "dtype = 'float23': choose auto, float32"),
        (("--ops", "jax"), "ops = 'jax': choose auto, torch"),
        (("--weights", "nowhere"), "--weights nowhere: no config.json there; name a folder"),
        (settings("hardware.tp=2"), "hardware.tp = 2: the executor runs a whole model on one device"),
        (settings("model.weight_bits=4"), "model.weight_bits = 4: the executor runs"),
        (settings("engine.num_gpu_blocks=1"), "engine.num_gpu_blocks = 1: the KV pool holds less than"),
        (settings("engine.num_gpu_blocks=9000000000"), "engine.num_gpu_blocks = 9,000,000,000: blocks of"),
        (settings("engine.max_model_len=5000"), "engine.max_model_len = 5000: the model takes at most 2048 tokens"),
        (("--model", "qwen2.5-7b"), "model 'qwen2.5-7b' is no Llama"),
        (("--prompt", "Hello"), "--prompt needs a model that can read: give --model-folder DIR"),
        (("--prompt", "Hello", "--model-folder", "nowhere"), "nowhere: no such folder; name one with config.json"),
        (("--prompt", "Hello", "--model-folder", "m", "--max-tokens", "0"), "--max-tokens 0: give a whole number"),
        (("--temperature", "-1"), "--temperature -1.0: give a number from 0 to 100"),
        (("--top-p", "0"), "--top-p 0.0: give a number above 0"),
        (("--seed", "-5"), "--seed -5: give a whole number from 0"),
        (("--seed", str(1 << 63)), "give a whole number from 0 to 2^63 - 1"),
        (
            settings("engine.max_num_seqs=100000000", "engine.max_num_batched_tokens=100000000"),
            "out of memory: the tables of engine.max_num_seqs = 100,000,000 take",
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(arguments: tuple[str, ...], words: str) -> None:
    assert words in message_of("execute", "--model", "tiny", "--device", "cpu", *WORK, *arguments, "--out", "new")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name one run of 'batchscope execute', or two runs"),
        (("nowhere",), "nowhere: no such folder"),
        (("empty",), "empty: no events.jsonl; only a run of 'batchscope execute' can be replayed"),
        (("bad",), "bad/events.jsonl, line 1: no log of events of this version"),
        (("nowhere", "empty"), "nowhere: no such folder"),
    ],
)
def test_diff_says_what_is_no_run(arguments: tuple[str, ...], words: str) -> None:
    Path("empty").mkdir()
    Path("bad").mkdir()
    assert batchscope("run", *traced(), "--model", "tiny", "--out", "other", "--no-report").exit_code == 0
    Path("bad/run.toml").write_text(Path("other/run.toml").read_text())
    Path("bad/events.jsonl").write_text('{"type":"plan"}\n')
    assert words in message_of("diff", *arguments, files={})


def test_prompts_that_are_too_long_are_refused_like_anywhere() -> None:
    Path("long.csv").write_text(own_csv((0, 90, 5), (0, 10, 5)))
    ended = batchscope(*TINY, "--trace", "long.csv", *settings(engine__max_model_len=64), "--json")
    assert ended.exit_code == 0
    assert ended.summary["requests"]["reasons"] == {"prompt_too_long": 1, "stop": 1}
    Path("long.csv").write_text(own_csv((0, 90, 5)))
    ended = batchscope(*TINY, "--trace", "long.csv", *settings(engine__max_model_len=64), "--json")
    assert ended.exit_code == 2
    assert "batchscope: no request at all could be served (prompt_too_long 1); give requests" in ended.stderr


@pytest.mark.parametrize("name", ["events.jsonl", "decisions.jsonl"])
def test_bytes_that_are_no_text_are_one_line(name: str) -> None:
    work = traced(sim__record="decisions")
    assert batchscope(*TINY, *work, "--out", "real", "--no-report").exit_code == 0
    lines = Path("real", name).read_bytes().splitlines(keepends=True)
    Path("real", name).write_bytes(b"".join([*lines[:3], b"\xff\xfe\n", *lines[3:]]))
    ended = batchscope("diff", "real")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert f"{name}, line 4: no " in ended.stderr


FULL = """
import resource
from sim.cli.main import main

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
main()
"""


def test_a_full_disk_names_the_folder_whose_record_ends_there() -> None:
    command = [sys.executable, "-c", FULL, *TINY, *settings(*SLOW, *LENGTHS), "--out", "full"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[-1].startswith("batchscope: full: File too large; check the path")
    assert batchscope("diff", "full").stdout.startswith("first differing decision: none (")
