"""What a run leaves at each level of ``sim.record``, read back; decision logs replayed through ``conform``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.core.errors import UserError
from tests.command import batchscope, chat, own_csv, settings
from traces.record.read import RunRecord, expand_steps, read_run, token_times

FILES = {"requests.parquet", "run.toml", "summary.json"}
OF_LEVEL = {
    "requests": FILES | {"digest.json"},
    "steps": FILES | {"steps.parquet", "stalls.parquet"},
    "tokens": FILES | {"steps.parquet", "stalls.parquet", "segments.parquet"},
    "decisions": FILES | {"steps.parquet", "stalls.parquet", "segments.parquet", "decisions.jsonl"},
}
PRESSED = chat(30, 40, engine__num_gpu_blocks=150)


def short(**more: object) -> list[str]:
    """Requests for decision logs: short enough that every step can be written, long enough to be preempted."""
    return settings(
        "workload.generator=poisson",
        'workload.prompt={dist="uniform",low=20,high=90}',
        'workload.output={dist="uniform",low=10,high=90}',
        **{"workload__rate_per_s": 60, "workload__num_requests": 30, "engine__num_gpu_blocks": 30, **more},
    )


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recorded(*arguments: object) -> RunRecord:
    """The record of a run into the folder ``out``."""
    ended = batchscope("run", *arguments, "--out", "out", "--json")
    assert (ended.exit_code, ended.stderr) == (0, "")
    return read_run("out")


@pytest.mark.parametrize("level", OF_LEVEL)
def test_a_level_writes_its_files_and_the_same_summary(level: str) -> None:
    record = recorded(*PRESSED, *settings(f"sim.record={level}"))
    assert {path.name for path in Path("out").iterdir()} == OF_LEVEL[level]
    assert record.summary is not None
    assert record.summary["preemptions"]["recompute"] > 0
    bare = batchscope("run", *PRESSED, "--json").summary
    for summary in (record.summary, bare):
        del summary["wall"], summary["config"]
        del summary["steps"]["quiet_run_mean"]  # decisions need a plan for every step
    assert record.summary == bare
    assert len(record.requests) == 40


def test_below_its_level_a_record_says_what_is_missing() -> None:
    record = recorded(*PRESSED)
    assert (record.steps, record.stalls, record.segments) == (None, None, None)
    with pytest.raises(UserError, match=r"^this record has no token times; run again with sim.record = tokens$"):
        token_times(record, 0)


@pytest.mark.parametrize("policy", ["vllm-0.11", "vllm-0.6-swap", "vllm-0.6-chunked", "orca-pow2"])
def test_the_times_of_all_tokens_agree_with_the_latencies(policy: str) -> None:
    record = recorded(*PRESSED, "--policy", policy, *settings("sim.record=tokens"))
    gaps: list[np.ndarray[tuple[int], np.dtype[np.float64]]] = []
    assert record.summary is not None
    for row in record.requests.itertuples():
        times = token_times(record, row.id)
        assert len(times) == row.output_tokens
        assert (times[0], times[-1]) == (row.first_token_s, row.finish_s)
        assert row.arrival_s <= row.first_scheduled_s < row.first_token_s
        gaps.append(np.diff(times))
    pooled = np.concatenate(gaps)
    assert pooled.min() > 0.0
    itl = record.summary["itl_s"]
    assert itl["n"] == len(pooled)
    assert itl["mean"] == pytest.approx(pooled.mean(), rel=1e-12)
    assert itl["p99"] == pytest.approx(np.percentile(pooled, 99), rel=1e-9)


def test_static_batches_compute_tokens_step_by_step_and_deliver_them_together() -> None:
    Path("own.csv").write_text(own_csv((0, 10, 3), (0, 10, 8)))
    record = recorded("--trace", "own.csv", "--policy", "ft-static", *settings("sim.record=tokens"))
    short, long = (token_times(record, number) for number in (0, 1))
    assert (len(short), len(long)) == (3, 8)
    assert list(short) == list(long[:3])
    requests = record.requests.set_index("id")
    assert set(requests["first_token_s"]) == set(requests["finish_s"]) == {long[-1]}


def test_steps_cover_the_run_without_a_gap_while_something_runs() -> None:
    record = recorded(*PRESSED, *settings("sim.record=steps"))
    assert record.steps is not None
    assert record.summary is not None
    steps = expand_steps(record.steps)
    assert len(steps) == record.summary["steps"]["count"]
    busy = steps["start_s"].to_numpy()[1:] - steps["end_s"].to_numpy()[:-1]
    assert (busy >= 0.0).all()
    assert steps["free_blocks"].between(0, 149).all()
    emitted = int((steps["emitting"] + steps["chunk_emits"]).sum())
    assert emitted == int(record.requests["output_tokens"].sum())


# -- decisions -----------------------------------------------------------------------------------------------


def decisions() -> list[dict[str, Any]]:
    """Lines of the log in the folder ``out``."""
    return [json.loads(line) for line in Path("out/decisions.jsonl").read_text().splitlines()]


def conformed(name: str, *arguments: object) -> None:
    """The decision log of a run must match its replay in every step."""
    recorded(*arguments, *settings("sim.record=decisions"))
    steps = sum(line["type"] == "step" for line in decisions())
    assert steps > 0
    replayed = batchscope("policies", "conform", "out/decisions.jsonl")
    assert replayed == (0, f"simulated-{name} {steps}/{steps}\n", "")


@pytest.mark.parametrize(
    "policy", ["vllm-0.11", "vllm-0.6", "vllm-0.6-chunked", "vllm-0.6-swap", "vllm-0.6-multi-step"]
)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"workload__abort_after_s": 1.5},
        {"workload__max_tokens": "model", "sim__max_time_s": 2},
        {"engine__max_num_seqs": 4, "engine__max_num_batched_tokens": 4096},
    ],
    ids=["pressed", "aborts", "stopped", "few-seqs"],
)
def test_a_decision_log_replays_in_full(policy: str, more: dict[str, object]) -> None:
    conformed(policy, *short(**more), "--policy", policy)
    requests = read_run("out").requests
    assert requests["recompute_preemptions"].sum() + requests["swap_preemptions"].sum() > 0


RANKED = ["vllm-0.11-priority", "vllm-0.33", "vllm-0.33-priority", "vllm-0.6-priority", "vllm-0.2.7", "vllm-0.2.7-swap"]


@pytest.mark.parametrize("policy", RANKED)
def test_a_decision_log_with_priorities_replays_in_full(policy: str) -> None:
    rows: list[tuple[object, ...]] = [(0.1 * n, 40 + 7 * n, 60 + 5 * (n % 4), n * n % 5) for n in range(16)]
    Path("ranked.csv").write_text(own_csv(*rows, columns="arrival_s,prompt_tokens,output_tokens,priority"))
    conformed(policy, "--trace", "ranked.csv", "--policy", policy, *settings(engine__num_gpu_blocks=40))
    requests = read_run("out").requests
    assert requests["recompute_preemptions"].sum() + requests["swap_preemptions"].sum() > 0


def test_a_decision_log_with_shared_prefixes_replays_in_full() -> None:
    rows: list[tuple[object, ...]] = [(0.05 * n, 60 + n, 40, "", f"sys:48|u{n}:{12 + n}") for n in range(12)]
    rows += [(2 + 0.1 * n, 120 + n, 30, n, f"sys:48|u{n}:{12 + n}|out:{n}:40|w{n}:20") for n in range(12)]
    columns = "arrival_s,prompt_tokens,output_tokens,parent_id,segments"
    Path("turns.csv").write_text(own_csv(*rows, columns=columns))
    conformed("vllm-0.11", "--trace", "turns.csv", *settings(engine__num_gpu_blocks=40))
    assert read_run("out").requests["hit_tokens_new"].sum() > 0


def test_a_faithful_death_is_in_the_log_and_replays() -> None:
    dying = short(engine__faithful=True, engine__max_model_len=400, engine__swap_space_bytes=4 << 23)
    ended = batchscope(
        *("run", *dying, "--policy", "vllm-0.6-swap", "--out", "out", *settings("sim.record=decisions")),
    )
    assert ended.exit_code == 3
    lines = decisions()
    assert [line["error"] for line in lines if "error" in line] == [read_run("out").summary["notes"][0]]  # type: ignore[index]
    steps = sum(line["type"] == "step" for line in lines)
    assert batchscope("policies", "conform", "out/decisions.jsonl") == (
        *(0, f"simulated-vllm-0.6-swap {steps}/{steps}\n", ""),
    )


def test_where_a_guard_departs_from_the_real_engine_conform_says_so() -> None:
    guarded = short(engine__swap_space_bytes=4 << 23)
    recorded(*guarded, "--policy", "vllm-0.6-swap", *settings("sim.record=decisions"))
    replayed = batchscope("policies", "conform", "out/decisions.jsonl")
    assert replayed.exit_code == 1
    assert "field 'error' differs" in replayed.stdout


def test_engines_without_recordings_are_named_as_such() -> None:
    recorded(*chat(30, 5), "--policy", "orca-max", *settings("sim.record=decisions"))
    replayed = batchscope("policies", "conform", "out/decisions.jsonl")
    assert (replayed.exit_code, replayed.stdout) == (2, "")
    assert replayed.stderr.startswith("batchscope: out/decisions.jsonl:1: unknown engine 'orca-max'; ")
