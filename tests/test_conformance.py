"""Replays of recorded decision logs: every one matches, and every kind of tampering is found and placed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies.conformance.decisions import DecisionWriter, Line, line_writer
from policies.conformance.log import read_log
from policies.conformance.replay import conform, decide, replay
from policies.core.engine import Engine
from policies.core.errors import ContractError, LogError
from policies.core.kv import KvManager
from policies.core.plan import StepResult
from policies.core.request import Request
from policies.core.stops import StopCalendar, stop_of
from policies.systems.paged import Paged

GOLDEN = Path(__file__).parent / "golden"
STEPS = {
    "mii_splitfuse.8abdd98": 145,
    "mii_tight.8abdd98": 874,
    "ray240_timeout50ms.2.40.0": 41,
    "ray260_default.2.60.0": 87,
    "sarathi_chunk_tight.96f9911": 557,
    "sarathi_ft.96f9911": 260,
    "sarathi_orca.96f9911": 205,
    "sarathi_vllm_tight.96f9911": 399,
    "sglang_dfs_weight.0.4.9": 233,
    "sglang_fcfs_chunk_tight.0.4.9": 939,
    "sglang_ignore_eos.0.4.9": 412,
    "sglang_lpm_overlap.0.4.9": 454,
    "sglang_lpm_radix.0.4.9": 580,
    "sglang_mixed_dies.0.4.9": 68,
    "sglang_mixed_overlap.0.4.9": 438,
    "sglang_overlap.0.4.9": 894,
    "v027_recompute.0.2.7": 595,
    "v0_chunked_tight.0.6.3.post1": 490,
    "v0_default.0.6.3.post1": 155,
    "v0_recompute.0.6.3.post1": 551,
    "v0_swap_abort.0.6.3.post1": 6,
    "v0_swap_large.0.6.3.post1": 560,
    "v1_ample.0.11.2": 212,
    "v1_async.0.33.0": 326,
    "v1_async_prefix_aborts.0.33.0": 374,
    "v1_chunked.0.11.2": 197,
    "v1_chunked_aborts.0.11.2": 588,
    "v1_no_chunk.0.33.0": 194,
    "v1_no_chunk_prefix.0.33.0": 225,
    "v1_prefix.0.11.2": 153,
    "v1_prefix_aborts.0.11.2": 349,
    "v1_priority.0.11.2": 327,
    "v1_priority_prefix.0.11.2": 671,
    "v1_priority_watermark.0.33.0": 459,
    "v1_tight.0.11.2": 563,
    "v1_watermark.0.33.0": 338,
    "vidur_sarathi_tight.7d47513": 438,
    "vidur_vllm_tight.7d47513": 476,
}
Edit = Callable[[list[dict[str, Any]]], object]


def golden(name: str) -> Path:
    return next(GOLDEN.glob(f"{name}.*"))


def tampered(tmp_path: Path, name: str, edit: Edit) -> Path:
    """A copy of a golden log, its lines changed by ``edit``."""
    with gzip.open(golden(name), "rt", encoding="utf-8") as stream:
        lines = [json.loads(text) for text in stream]
    edit(lines)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def step(lines: list[dict[str, Any]], t: int) -> dict[str, Any]:
    return next(line for line in lines if line["type"] == "step" and line["t"] == t)


# -- agreement -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STEPS)
def test_every_step_of_the_recorded_schedulers_is_reproduced(name: str) -> None:
    result = replay(golden(name))
    assert result.first_difference is None
    assert (result.matched, result.total) == (STEPS[name], STEPS[name])


def test_conform_prints_a_line_a_log_and_succeeds() -> None:
    said: list[str] = []
    assert conform([golden("v1_chunked"), golden("v0_swap_abort")], said.append) == 0
    assert said == ["v1_chunked 197/197", "v0_swap_abort 6/6"]


def test_plain_files_are_read_too(tmp_path: Path) -> None:
    assert replay(tampered(tmp_path, "v0_swap_abort", lambda lines: None)).matched == 6


# -- differences ---------------------------------------------------------------------------------------------


def swap_first_two(line: dict[str, Any], key: str) -> None:
    line[key][0], line[key][1] = line[key][1], line[key][0]


def survive(death: dict[str, Any], before: dict[str, Any]) -> None:
    del death["error"]
    for key, value in before.items():
        death.setdefault(key, value)


TAMPERING: dict[str, tuple[str, int, str, Edit]] = {
    "batch order": ("v1_tight", 100, "sched", lambda lines: swap_first_two(step(lines, 100), "sched")),
    "tokens of a row": ("v1_chunked", 3, "sched", lambda lines: step(lines, 3)["sched"][0].__setitem__(1, 2)),
    "emission": ("v0_chunked_tight", 2, "sched", lambda lines: step(lines, 2)["sched"][0].__setitem__(3, 1)),
    "a block id": (
        "v1_prefix",
        0,
        "new_blocks",
        lambda lines: step(lines, 0)["new_blocks"]["r000"].reverse(),
    ),
    "free blocks": ("v0_default", 40, "free", lambda lines: step(lines, 40).update(free=1)),
    "queue order": ("v0_recompute", 90, "running", lambda lines: swap_first_two(step(lines, 90), "running")),
    "an arrival": ("v1_ample", 1, "arrived", lambda lines: step(lines, 1).update(arrived=["r059"])),
    "a time": ("v1_ample", 1000, "t", lambda lines: step(lines, 7).update(t=1000)),
    "a plan ahead": ("mii_tight", 50, "planned", lambda lines: swap_first_two(step(lines, 50), "planned")),
    "a flush": ("mii_tight", 60, "flushed", lambda lines: step(lines, 60).update(flushed=["r001"])),
    "the death": ("v0_swap_abort", 5, "error", lambda lines: survive(step(lines, 5), step(lines, 4))),
}


@pytest.mark.parametrize("kind", TAMPERING)
def test_a_tampered_step_is_found_at_its_place(tmp_path: Path, kind: str) -> None:
    name, t, field, edit = TAMPERING[kind]
    result = replay(tampered(tmp_path, name, edit))
    assert result.first_difference is not None
    assert result.first_difference.startswith(f"step t={t}: field '{field}' differs")
    assert result.matched == result.total - 1


def test_the_first_difference_shows_both_sides_and_the_queues(tmp_path: Path) -> None:
    path = tampered(tmp_path, "v0_swap_large", lambda lines: step(lines, 1).update(tokens=7))
    said: list[str] = []
    assert conform([path], said.append) == 1
    queue = '["r000", "r001", "r002", "r003", "r004"]'
    assert said == [
        "v0_swap_large 559/560",
        "step t=1: field 'tokens' differs\n"
        "  expected tokens: 7\n  got      tokens: 320\n"
        "  expected waiting: []\n  got      waiting: []\n"
        f"  expected running: {queue}\n  got      running: {queue}\n"
        "  expected swapped: []\n  got      swapped: []",
    ]


BATCHES: dict[str, tuple[str, int, object]] = {
    "formed_us": ("ray260_default", 9, 1),
    "ids": ("ray240_timeout50ms", 3, ["r016"]),
    "left": ("ray240_timeout50ms", 3, 0),
    "start_us": ("ray260_default", 86, 2_715_001),
    "end_us": ("ray240_timeout50ms", 0, 90_001),
}


@pytest.mark.parametrize("field", BATCHES)
def test_a_tampered_batch_is_found_at_its_place(tmp_path: Path, field: str) -> None:
    name, k, value = BATCHES[field]
    result = replay(
        tampered(tmp_path, name, lambda lines: next(x for x in lines if x.get("k") == k).update({field: value}))
    )
    assert result.first_difference is not None
    assert result.first_difference.startswith(f"batch k={k}: field '{field}' differs\n  expected {field}: ")
    assert result.matched == result.total - 1


def test_a_batch_too_few_or_a_wrong_number_of_them_differs(tmp_path: Path) -> None:
    result = replay(tampered(tmp_path, "ray260_default", lambda lines: lines.pop(-2)))
    assert result.first_difference == "batch k=86: only the replay has this batch"
    result = replay(tampered(tmp_path, "ray260_default", lambda lines: lines[-1].update(batches=86)))
    assert result.first_difference == "end: field 'batches' differs\n  expected 86\n  got      87"


def test_informative_fields_are_not_compared(tmp_path: Path) -> None:
    path = tampered(tmp_path, "v0_default", lambda lines: step(lines, 0).update(new_blocks={}))
    assert replay(path).first_difference is None


@pytest.mark.parametrize("field", ["preemptions", "swap_outs", "unfinished"])
def test_the_end_line_is_compared(tmp_path: Path, field: str) -> None:
    result = replay(tampered(tmp_path, "v0_swap_large", lambda lines: lines[-1].update({field: 99})))
    assert result.matched == result.total
    assert result.first_difference is not None
    assert result.first_difference.startswith(f"end: field '{field}' differs\n  expected 99")


def test_a_log_that_lacks_or_adds_a_step_differs(tmp_path: Path) -> None:
    result = replay(tampered(tmp_path, "v1_ample", lambda lines: lines.remove(step(lines, 211))))
    assert result.first_difference == "step t=211: only the replay has this step"
    result = replay(
        tampered(tmp_path, "v1_ample", lambda lines: lines.insert(-1, {**step(lines, 211), "t": 212}))
    )
    assert result.first_difference == "step t=212: only the log has this step"


def test_a_changed_setting_makes_other_decisions(tmp_path: Path) -> None:
    result = replay(tampered(tmp_path, "v1_tight", lambda lines: lines[0].update(num_blocks=100)))
    assert result.first_difference is not None
    assert result.matched < result.total


# -- malformed logs ------------------------------------------------------------------------------------------


def edit_line(index: int, **fields: object) -> Edit:
    return lambda lines: lines[index].update(fields)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (edit_line(0, version="0.9.2"), r"log.jsonl:1: 'vllm v1 0.9.2' is not modelled; known are vllm v1"),
        (edit_line(0, engine="v2"), r"log.jsonl:1: unknown engine 'v2'"),
        (edit_line(0, async_scheduling=True), r"log.jsonl:1: setting 'async_scheduling' is not modelled"),
        (edit_line(0, policy="lifo"), r"log.jsonl:1: policy 'lifo' is not modelled"),
        (edit_line(0, block_size="16"), r"log.jsonl:1: 'block_size' must be an integer, but is '16'"),
        (edit_line(0, block_size=0), r"log.jsonl:1: 'block_size' must be at least 1"),
        (edit_line(0, num_blocks=10**9), r"log.jsonl:1: 'num_blocks' must be at least 0 and at most 10000000"),
        (edit_line(0, num_blocks=10**30), r"log.jsonl:1: 'num_blocks' must be at least 0 and at most 10000000"),
        (edit_line(0, system=[]), r"log.jsonl:1: 'system' must be a string, but is \[\]"),
        (edit_line(0, system={"name": "vllm"}), r"log.jsonl:1: 'system' must be a string, but is \{'name': 'vllm'\}"),
        (edit_line(2, prompt_len=True), r"log.jsonl:3: 'prompt_len' must be an integer, but is True"),
        (edit_line(2, output_len=0), r"log.jsonl:3: .*output_len >= 1"),
        (edit_line(2, id="r000"), r"log.jsonl:3: request 'r000' is listed twice"),
        (edit_line(2, segments=[["sysA", 1]]), r"log.jsonl:3: .*do not add up"),
        (edit_line(2, segments=[["sysA"]]), r"log.jsonl:3: a segment is \[name, length\]"),
        (edit_line(2, segments=[["out:r999", 77]]), r"log.jsonl:3: segment 'out:r999' names no request"),
        (edit_line(1, arrival_step=5), r"log.jsonl:3: arrival_step 0 follows 5; sort the requests"),
        (edit_line(70, type="note"), r"log.jsonl:71: unknown line type 'note'"),
        (edit_line(70, type="config"), r"log.jsonl:71: the first line, and no other"),
        (lambda lines: lines[70].pop("hits"), r"log.jsonl:71: .*needs the field 'hits'"),
        (lambda lines: lines.pop(), r"log.jsonl: no end line"),
        (lambda lines: lines.clear(), r"log.jsonl: no config line"),
    ],
)
def test_malformed_logs_name_file_and_line(tmp_path: Path, edit: Edit, message: str) -> None:
    with pytest.raises(LogError, match=message):
        replay(tampered(tmp_path, "v1_prefix", edit))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (edit_line(0, version="2.50.0"), r"log.jsonl:1: 'ray-serve-batch 2.50.0' is not modelled"),
        (edit_line(0, max_concurrent_batches=2), r"log.jsonl:1: 'max_concurrent_batches' must be 1"),
        (edit_line(0, batch_wait_timeout_s=-1), r"log.jsonl:1: batch_wait_timeout_s is -1.0; give seconds"),
        (edit_line(0, service_base_s=float("inf")), r"log.jsonl:1: 'service_base_s' must be a number, but is inf"),
        (edit_line(0, service_per_item_s=float("nan")), r"log.jsonl:1: 'service_per_item_s' must be a number"),
        (edit_line(0, service_base_s=-1), r"log.jsonl:1: 'service_base_s' must be at least 0"),
        (edit_line(0, max_batch_size=10**9), r"log.jsonl:1: 'max_batch_size' must be at least 0 and at most"),
        (edit_line(0, max_batch_size=0), r"log.jsonl:1: 'max_batch_size' must be at least 1"),
        (edit_line(2, arrival_us=-1), r"log.jsonl:3: arrival_us must be >= 0"),
        (edit_line(1, arrival_us=20_000), r"log.jsonl:3: arrival_us 10152 follows 20000; sort the requests"),
        (edit_line(2, id="r000"), r"log.jsonl:3: request 'r000' is listed twice"),
        (lambda lines: lines[-2].pop("left"), r"log.jsonl:288: a batch of ray-serve-batch needs the field 'left'"),
        (edit_line(-2, type="step"), r"log.jsonl:288: unknown line type 'step'; expected request, batch or end"),
        (edit_line(-1, batches="87"), r"log.jsonl:289: 'batches' must be an integer"),
    ],
)
def test_malformed_logs_of_batches_name_file_and_line(tmp_path: Path, edit: Edit, message: str) -> None:
    with pytest.raises(LogError, match=message):
        replay(tampered(tmp_path, "ray260_default", edit))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (edit_line(0, preemption_mode="auto"), "preemption_mode 'auto' is not vLLM's"),
        (edit_line(0, enable_prefix_caching=True), "setting 'enable_prefix_caching' is not modelled"),
        (edit_line(0, max_num_batched_tokens=512), "must be at least 2048"),
    ],
)
def test_settings_of_the_older_engine(tmp_path: Path, edit: Edit, message: str) -> None:
    with pytest.raises(LogError, match=f"log.jsonl:1: .*{message}"):
        replay(tampered(tmp_path, "v0_recompute", edit))


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("sarathi_chunk", edit_line(0, policy="fair"), "policy 'fair' is not modelled for sarathi-serve 96f9911"),
        ("sarathi_chunk", edit_line(0, commit="1234567"), "'sarathi-serve 1234567' is not modelled; known are"),
        ("sarathi_chunk", lambda lines: lines[0].pop("chunk_size"), "'chunk_size' must be an integer, but is missing"),
        ("sarathi_chunk", edit_line(0, enable_dynamic_chunking_schedule=True), "'high_chunk_size' must be an integer"),
        ("sarathi_orca", edit_line(0, watermark=0.1), "setting 'watermark' is not modelled for sarathi-serve"),
        ("vidur_vllm", edit_line(0, max_num_seqs=3), "setting 'max_num_seqs' is not modelled for vidur 7d47513"),
        ("vidur_vllm", edit_line(0, batch_size_cap=0), "'batch_size_cap' must be at least 1"),
        ("vidur_vllm", edit_line(0, policy="orca", max_tokens=2047), "max_model_len is 2047; Vidur's orca"),
    ],
)
def test_settings_of_sarathi_and_vidur(tmp_path: Path, name: str, edit: Edit, message: str) -> None:
    with pytest.raises(LogError, match=f"log.jsonl:1: {message}"):
        replay(tampered(tmp_path, f"{name}_tight" if name != "sarathi_orca" else name, edit))


def test_a_chunk_schedule_of_one_size_is_that_chunk_size(tmp_path: Path) -> None:
    def one_size(lines: list[dict[str, Any]]) -> None:
        size = lines[0].pop("chunk_size")
        lines[0] |= {"enable_dynamic_chunking_schedule": True, "low_chunk_size": size, "high_chunk_size": size}
        lines[0] |= {"chunk_schedule_max_tokens": 4096, "chunk_schedule_stages": 2}

    assert replay(tampered(tmp_path, "sarathi_chunk_tight", one_size))[1:] == (557, 557, None)


def test_files_that_are_no_logs(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"none.jsonl: cannot be read"):
        replay(tmp_path / "none.jsonl")
    path = tmp_path / "bad.jsonl"
    path.write_text('{"type": "config"', encoding="utf-8")
    with pytest.raises(LogError, match=r"bad.jsonl:1: not a JSON object"):
        replay(path)
    path.write_text("[1]\n", encoding="utf-8")
    with pytest.raises(LogError, match=r"bad.jsonl:1: a JSON object is expected, not list"):
        replay(path)
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(b"not gzip")
    with pytest.raises(LogError, match=r"bad.jsonl.gz: not a gzip file"):
        replay(path)


# -- writing -------------------------------------------------------------------------------------------------

CONFIG = {
    "system": "vllm",
    "engine": "v0",
    "version": "0.6.3.post1",
    "block_size": 4,
    "num_blocks": 10,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 64,
    "watermark": 0.1,
}


def small_policy() -> Paged:
    return Paged(
        KvManager(10, 4),
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
        watermark=0.1,
        faithful=True,
    )


def test_what_the_writer_writes_replays(tmp_path: Path) -> None:
    """An abort, a rejection in a step, one alone; output lengths are known at the end only."""
    path = tmp_path / "own.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        policy = small_policy()
        writer = DecisionWriter(policy, line_writer(stream), config=CONFIG)
        engine, calendar = Engine(policy, observer=writer), StopCalendar()

        def arrive(request_id: int, prompt: int, output: int) -> None:
            request = Request(request_id, 0.0, prompt, 20)
            engine.add(request, 0.0)
            calendar.add(request_id, stop_of(request, output, 64))

        def run(steps: int) -> None:
            for _ in range(steps):
                plan = engine.plan(0.0)
                for finish in plan.rejected:
                    calendar.remove(finish.id)
                if engine.num_unfinished:
                    calendar.apply(plan)  # type: ignore[arg-type]
                    finished = calendar.complete(plan, 1)  # type: ignore[arg-type]
                    engine.complete(StepResult(0, 0.0, 0.0, finished=finished))

        arrive(0, 6, 5)
        arrive(1, 40, 2)
        arrive(2, 9, 9)
        run(2)
        calendar.remove(2)
        engine.abort(2, 0.0)
        run(3)
        arrive(3, 40, 1)
        run(1)
        arrive(4, 3, 2)
        run(2)
        writer.close()
    log = read_log(path)
    assert [line["t"] for line in log.steps] == list(range(8))
    assert [line["ignored"] for line in log.steps if line["ignored"]] == [["r001"], ["r003"]]
    assert [request.output_len for request in log.requests] == [5, 20, 20, 20, 2]
    assert [request.abort_step for request in log.requests] == [None, None, 2, None, None]
    result = replay(path)
    assert result == ("own", 8, 8, None)


def test_a_replay_of_a_replay_is_the_same(tmp_path: Path) -> None:
    log = read_log(golden("v1_prefix"))
    lines, fault = decide(log)
    assert fault is None
    path = tmp_path / "copy.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        for line in lines:
            line_writer(stream)(line)
    assert replay(path) == ("v1_prefix", 153, 153, None)


def test_the_writer_refuses_steps_without_a_plan() -> None:
    lines: list[Line] = []
    policy = small_policy()
    engine = Engine(policy, observer=DecisionWriter(policy, lines.append, config=CONFIG))
    engine.add(Request(0, 0.0, 4, 9), 0.0)
    engine.plan(0.0)
    engine.complete(StepResult(0, 0.0, 0.0))
    engine.plan(0.0)
    with pytest.raises(ContractError, match="decisions need a plan for every step"):
        engine.carry_on(0.0)
    with pytest.raises(ContractError, match="one result for each plan"):
        engine.complete(StepResult(1, 0.0, 0.0, steps=2))
