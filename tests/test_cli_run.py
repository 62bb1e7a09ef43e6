"""``batchscope run``: where requests come from, what is printed, and what a folder holds afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.config import load_config
from sim.notes import NO_HOST_TERM
from tests.command import batchscope, chat, own_csv, settings
from traces.record.read import read_run
from traces.workload.source import EXACT_LIMITS

STATS = {"n", "mean", "p50", "p90", "p95", "p99"}
LATENCIES = {"ttft_s", "itl_s", "tpot_s", "e2e_s", "queue_s", "waited_s", "normalized_latency_s"}

# Every key that a run with samples of everything has, by block; counts are there whatever happens.
COUNTS = {
    "requests": {"offered", "finished", "rejected", "aborted", "failed", "unfinished", "reasons"},
    "preemptions": {
        *("recompute", "swap", "swap_exhausted", "recomputed_tokens"),
        *("swapped_out_bytes", "swapped_in_bytes"),
    },
    "cost_model": {"name", "version", "kind", "error", "extrapolated_steps", "extrapolated_share"},
    "wall": {"cpu_s", "wall_s", "requests_per_cpu_s"},
}
BLOCKS = COUNTS | {
    "stability": {"stable", "queue_slope_per_s"},
    "throughput": {
        *("output_tokens_per_s", "total_tokens_per_s", "requests_per_s"),
        *("steady_output_tokens_per_s", "bound_output_tokens_per_s"),
    },
    "kv": {
        *("num_gpu_blocks", "block_size", "utilization_mean", "utilization_max", "fragmentation_mean"),
        "prefix_hit_rate_new",
    },
    "steps": {"count", "rows_mean", "tokens_mean", "occupancy_mean", "slot_waste", "quiet_run_mean"},
    **dict.fromkeys(LATENCIES, STATS),
}
VALUES = {"schema", "version", "side", "preset", "policy", "model", "hardware", "delivery", "status", "duration_s"}
OPEN_BLOCKS = {"config", "limited_by"}
"""Blocks whose keys are the user's settings and the causes that occurred."""

GOODPUT = {
    *("requests_per_s", "attainment", "met", "judged", "unfinished", "aborted", "unmeasurable"),
    *("within", "itl_judged_by"),
}


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def summary_of(*arguments: object) -> dict[str, Any]:
    """The summary of a run that must succeed without a word on stderr and without leaving a file."""
    before = sorted(Path().rglob("*"))
    ended = batchscope("run", *arguments, "--json")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert sorted(Path().rglob("*")) == before
    return ended.summary


def without_wall(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != "wall"}


# -- sources and the summary ---------------------------------------------------------------------------------


def test_json_has_the_documented_keys_and_no_others() -> None:
    summary = summary_of(*chat(1, 60), "--policy", "vllm-0.33")
    assert {name for name, value in summary.items() if not isinstance(value, dict)} == VALUES | {"notes"}
    assert {name for name, value in summary.items() if isinstance(value, dict)} == BLOCKS.keys() | OPEN_BLOCKS
    for name, keys in BLOCKS.items():
        assert summary[name].keys() == keys, name
    assert summary["requests"]["reasons"] == {"stop": 60}
    assert summary["status"] == "completed"
    assert summary["side"] == "server-simulated"
    assert sum(summary["limited_by"].values()) == pytest.approx(1.0)


def test_limits_bring_goodput_and_a_resumed_prefix_its_rate() -> None:
    rows = [(0, 40, 60, "sys:32|a:8"), (0, 40, 60, "sys:32|b:8"), (0, 40, 60, "sys:32|c:8")]
    columns = "arrival_s,prompt_tokens,output_tokens,segments"
    Path("shared.csv").write_text(own_csv(*rows, columns=columns))
    summary = summary_of("--trace", "shared.csv", *settings(slo__e2e_s=60, engine__num_gpu_blocks=14))
    assert summary["preemptions"]["recompute"] > 0
    assert summary["goodput"].keys() == GOODPUT
    assert summary["goodput"]["attainment"] == 1.0
    assert summary["kv"].keys() == BLOCKS["kv"] | {"prefix_hit_rate_resumed"}


def test_without_samples_statistics_are_absent_and_counts_are_zero() -> None:
    Path("one.csv").write_text(own_csv((3, 10, 1)))
    summary = summary_of("--trace", "one.csv", "--policy", "vllm-0.6")
    for name, keys in COUNTS.items():
        assert summary[name].keys() == keys, name
    assert set(summary["preemptions"].values()) == {0}
    assert summary.keys() & {"itl_s", "tpot_s", "stability", "goodput"} == set()
    assert summary["ttft_s"]["n"] == 1
    assert "steady_output_tokens_per_s" not in summary["throughput"]
    assert summary["kv"].keys() & {"prefix_hit_rate_new", "prefix_hit_rate_resumed"} == set()
    assert "quiet_run_mean" not in summary["steps"]


def test_a_run_toml_with_options_on_top() -> None:
    Path("run.toml").write_text(
        '[workload]\ngenerator = "constant"\nrate_per_s = 5\nnum_requests = 7\n'
        'prompt = {dist = "fixed", value = 30}\noutput = {dist = "fixed", value = 9}\n[engine]\nmax_num_seqs = 4\n'
    )
    summary = summary_of("run.toml", "--policy", "vllm-0.6", *settings(workload__num_requests=8))
    assert summary["requests"]["finished"] == 8
    assert summary["preset"] == "vllm-0.6"
    assert summary["config"]["parameters"]["max_num_seqs"] == 4


def test_every_source_of_requests() -> None:
    Path("own.csv").write_text(own_csv((0, 10, 5), (1, 20, 5)))
    assert summary_of("--trace", "own.csv")["requests"]["finished"] == 2
    lengths = [
        *settings('workload.prompt={dist="fixed",value=30}'),
        *settings('workload.output={dist="exponential",mean=20,cap=50}', workload__num_requests=12),
    ]
    for source in (
        settings("workload.generator=poisson", workload__rate_per_s=5),
        settings("workload.generator=constant", workload__rate_per_s=5),
        settings("workload.generator=gamma", workload__rate_per_s=5, workload__cv=2),
        settings("workload.generator=closed-loop", workload__concurrency=3, workload__think_time_s=0.5),
    ):
        assert summary_of(*source, *lengths)["requests"]["finished"] == 12
    closed = summary_of("--trace", "own.csv", *settings(workload__concurrency=1))
    assert closed["steps"]["rows_mean"] == 1.0


# -- folders -------------------------------------------------------------------------------------------------


def test_folders_are_numbered_and_named_after_the_preset() -> None:
    Path("own.csv").write_text(own_csv((0, 10, 5)))
    Path("mine.py").write_text("from policies.systems.paged import Paged\n\n\nclass Mine(Paged):\n    pass\n")
    for expected in ("vllm-0.11-1", "vllm-0.11-2"):
        ended = batchscope("run", "--trace", "own.csv")
        assert (ended.exit_code, ended.stderr) == (0, "")
        assert f"record: runs/{expected}\n" in ended.stdout
    assert batchscope("run", "--trace", "own.csv", "--policy", "orca-max").exit_code == 0
    mine = ("--policy", "mine.py:Mine", *settings("engine.preset=vllm-0.6"))
    assert batchscope("run", "--trace", "own.csv", *mine).exit_code == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        *("Mine-1", "orca-max-1", "vllm-0.11-1", "vllm-0.11-2")
    ]


def test_a_folder_holds_the_summary_and_a_run_toml_that_gives_it_again() -> None:
    options = chat(8, 40, workload__seed=5, slo__ttft_s=0.5)
    ended = batchscope("run", *options, "--json", "--out", "deep/er/run")
    folder = Path("deep/er/run")
    assert json.loads((folder / "summary.json").read_text()) == ended.summary
    assert load_config(str(folder / "run.toml")).to_dict() == {
        section: values for section, values in ended.summary["config"].items() if section != "parameters"
    }
    assert without_wall(summary_of(folder / "run.toml")) == without_wall(ended.summary)


def test_a_folder_that_is_not_empty_is_refused_before_anything_is_read() -> None:
    Path("used").mkdir()
    Path("used/notes.txt").touch()
    ended = batchscope("run", "--trace", "there-is-no-such.csv", "--out", "used")
    assert ended == (2, "", "batchscope: --out used: the folder is not empty; name a new one\n")
    Path("empty").mkdir()
    Path("own.csv").write_text(own_csv((0, 10, 5)))
    assert batchscope("run", "--trace", "own.csv", "--out", "empty").exit_code == 0


def test_the_table_tells_what_was_assumed_and_what_became_of_the_requests() -> None:
    Path("own.csv").write_text(own_csv((0, 100, 50), (1, 3000, 2000), (2, 5000, 1)))
    stdout = batchscope("run", "--trace", "own.csv", "--policy", "vllm-0.33").stdout
    assert "vllm-0.33, llama-2-7b on a100-80gb (server-simulated)\n" in stdout
    assert "2 of 3 finished, 1 rejected\n" in stdout
    assert "reasons: length 1, prompt_too_long 1, stop 1\n" in stdout
    assert f"note: {NO_HOST_TERM}\n" in stdout


def notes_of(*arguments: object) -> list[str]:
    notes: list[str] = summary_of(*arguments).get("notes", [])
    return [note for note in notes if note != NO_HOST_TERM]


@pytest.mark.parametrize(
    ("policy", "reads_limits"), [("vllm-0.11", 0), ("orca-max", 0), ("orca-pow2", 1), ("sglang-0.4.9", 1)]
)
def test_exact_limits_are_named_where_a_policy_reads_them(policy: str, reads_limits: int) -> None:
    Path("own.csv").write_text(own_csv((0, 100, 50)))
    assert notes_of("--trace", "own.csv", "--policy", policy) == [EXACT_LIMITS] * reads_limits


def test_notes_say_what_cut_answers() -> None:
    Path("own.csv").write_text(own_csv((0, 900, 500), (1, 100, 10), (2, 100, 70)))
    trace = ("--trace", "own.csv", *settings(engine__max_model_len=1000))
    model = "max_model_len = 1,000 (reason length)"
    both = f"their max_tokens or at {model}"
    assert notes_of(*trace, *settings("workload.max_tokens=output")) == [f"1 answer was cut at {model}"]
    assert notes_of(*trace, *settings(workload__max_tokens=64)) == [f"2 answers were cut at {both}"]


def test_a_note_counts_the_requests_that_a_time_limit_left_unsent() -> None:
    summary = summary_of(*chat(8, 60, sim__max_time_s=4))
    unsent = 60 - summary["requests"]["offered"]
    assert f"sim.max_time_s = 4 ended the run: {unsent} of 60 requests were never sent" in summary["notes"]
    assert notes_of(*chat(8, 60, sim__max_time_s=400)) == []


# -- what decides a run --------------------------------------------------------------------------------------


def test_the_seed_decides_the_requests_and_nothing_else_does() -> None:
    first, again = summary_of(*chat(8, 50)), summary_of(*chat(8, 50))
    assert without_wall(first) == without_wall(again)
    other = summary_of(*chat(8, 50, workload__seed=1))
    assert other["ttft_s"] != first["ttft_s"]
    assert other["requests"] == first["requests"]


def test_a_rate_scale_keeps_the_requests_and_scales_their_gaps() -> None:
    def rows(name: str, **more: object) -> list[tuple[float, int, int]]:
        assert batchscope("run", *chat(8, 30, **more), "--out", name).exit_code == 0
        table = read_run(name).requests.sort_values("id")
        return list(zip(table["arrival_s"], table["prompt_tokens"], table["output_tokens"], strict=True))

    slow, fast = rows("slow"), rows("fast", workload__rate_scale=4)
    assert [row[1:] for row in slow] == [row[1:] for row in fast]
    assert [row[0] / 4 for row in slow] == pytest.approx([row[0] for row in fast])
    assert slow[0][0] > 0.0


def test_a_policy_from_a_file_runs_with_the_parameters_of_a_preset() -> None:
    Path("mine.py").write_text(
        "from policies.systems.token_budget import TokenBudget\n\n\nclass OneAtATime(TokenBudget):\n"
        "    def __init__(self, kv, *, max_num_batched_tokens, max_model_len):\n"
        "        super().__init__(kv, max_num_seqs=1, max_num_batched_tokens=max_num_batched_tokens,\n"
        "                         max_model_len=max_model_len)\n"
    )
    summary = summary_of("--policy", "mine.py:OneAtATime", *chat(8, 12))
    assert (summary["policy"], summary["preset"]) == ("mine.py:OneAtATime", "vllm-0.11")
    assert summary["steps"]["rows_mean"] <= 1.0
    assert summary["requests"]["finished"] == 12


def test_policies_see_the_same_requests() -> None:
    offered = {}
    for policy in ("vllm-0.11", "ft-static", "orca-pow2"):
        summary = summary_of("--policy", policy, *chat(8, 40))
        throughput = summary["throughput"]
        tokens = throughput["total_tokens_per_s"] * summary["duration_s"]
        offered[policy] = (summary["requests"]["finished"], round(tokens, 3))
    assert len(set(offered.values())) == 1


def test_a_time_limit_leaves_requests_unfinished_and_completes() -> None:
    summary = summary_of(*chat(8, 60, sim__max_time_s=4))
    assert summary["status"] == "completed"
    counts = summary["requests"]
    assert counts["unfinished"] > 0
    assert counts["offered"] == counts["finished"] + counts["unfinished"] < 60


def test_the_model_may_be_cut_or_refuse_what_is_too_long() -> None:
    Path("long.csv").write_text(own_csv((0, 4000, 500), (1, 100, 10)))
    assert summary_of("--trace", "long.csv")["requests"]["reasons"] == {"length": 1, "stop": 1}
    refusing = settings("workload.over_length=reject")
    assert summary_of("--trace", "long.csv", *refusing)["requests"]["reasons"] == {"over_length": 1, "stop": 1}
