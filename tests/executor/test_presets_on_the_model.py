"""Every preset, with its own blocks, runs a real model under memory pressure: its plans alone are enough, tokens are
those of each request alone, and replaying what the engine was told gives the same decisions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpu_backend.executor import Limits
from policies.core.plan import Finish, StepPlan, StepResult
from policies.core.request import Request
from policies.kit.checked import CheckedPolicy
from policies.preset_table import PRESETS
from sim.replay import replay_events, replay_run
from tests.executor.driving import alone, check_tokens, crowd, drive, run_recorded, setup_of, tiny
from tests.sglang_modes import MODES
from tests.variants import VARIANTS, Size
from traces.record.events import EventLog, read_events
from traces.workload.source import Workload

MAX_MODEL_LEN = 112
ROWS = crowd(5, 10, prompts=(3, 30), outputs=(6, 36))
OWN_BLOCKS: Mapping[str, Mapping[str, object]] = {
    **{name: {"preset": name} for name in PRESETS},
    **{f"vllm-0.11, blocks of {size}": {"preset": "vllm-0.11", "block_size": size} for size in (1, 32, 64, 128)},
    "vllm-0.6-swap, blocks of 1": {"preset": "vllm-0.6-swap", "block_size": 1},
}


@cache
def expected() -> Mapping[int, list[int]]:
    return {number: list(tokens) for number, tokens in alone(ROWS, MAX_MODEL_LEN).items()}


def engine_of(given: Mapping[str, object]) -> dict[str, object]:
    """Memory for two or three requests, at least what the preset must have to start."""
    preset = PRESETS[str(given["preset"])]
    size = given.get("block_size", preset.defaults.get("block_size", 16))
    assert isinstance(size, int)
    tokens = 3 * MAX_MODEL_LEN if preset.blocks in ("slot", "reserved") else MAX_MODEL_LEN + 2 * size
    engine = {**given, "num_gpu_blocks": -(-tokens // size) + preset.null_block, "max_model_len": MAX_MODEL_LEN}
    limits = {"max_num_seqs": 6, "max_num_batched_tokens": MAX_MODEL_LEN}
    return engine | {key: value for key, value in limits.items() if key in preset.defaults}


@pytest.mark.parametrize("name", OWN_BLOCKS)
def test_every_preset_runs_the_model_and_replays_to_the_same_decisions(name: str, tmp_path: Path) -> None:
    setup = setup_of(engine_of(OWN_BLOCKS[name]), ROWS)
    ran = run_recorded(setup, tmp_path / "run")
    assert (ran.ending.status, ran.ending.message) == ("completed", "")
    assert ran.ending.offered == len(ROWS)
    check_tokens(ran.outputs, expected())
    kv = setup.policy.kv
    assert (kv.num_free, kv.cpu_pool.num_free) == (kv.num_blocks, kv.cpu_pool.num_blocks)
    replay = replay_run(tmp_path / "run")
    assert replay.difference is None
    assert (replay.plans, replay.arrivals) == (ran.ending.plans, len(ROWS))
    assert replay.decisions >= ran.ending.plans


SIZE = Size(
    num_gpu_blocks=12,
    block_size=4,
    max_model_len=48,
    max_num_seqs=5,
    max_num_batched_tokens=12,
    num_cpu_blocks=16,
    kv_bytes_per_token=1,
    pieces_per_block=1,
)
SMALL = crowd(8, 8, prompts=(1, 7), outputs=(8, 24))


@cache
def expected_of_small() -> Mapping[int, list[int]]:
    return {number: list(tokens) for number, tokens in alone(SMALL, 48).items()}


class Services:
    """Lengths are known; swapping pays for long requests only."""

    def __init__(self, lengths: Mapping[int, int]) -> None:
        self._lengths = lengths

    def step_time_s(self, *args: object) -> float:
        return 0.0

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        return 4.0 + pieces

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        return float(num_tokens)

    def predict_output_len(self, request: Request) -> int:
        return self._lengths[request.id]


@pytest.mark.parametrize("name", [*VARIANTS, *(f"sglang {mode}" for mode in MODES)])
def test_every_variant_runs_the_model_in_a_tiny_pool(name: str, tmp_path: Path) -> None:
    variant = VARIANTS.get(name) or MODES[name.removeprefix("sglang ")]
    lengths: dict[int, int] = {}
    policy = CheckedPolicy(variant.build(SIZE, Services(lengths)), name)
    workload = Workload(lambda: iter(SMALL), len(SMALL), (), None, 0.0, "a crowd", "trace", "cut")
    events = EventLog(tmp_path / "events.jsonl")
    at_batch_end = variant.deliver_at_batch_end
    ran = drive(policy, workload, Limits(48, 5), lengths, events=events, deliver_at_batch_end=at_batch_end)
    assert (ran.ending.status, ran.ending.message) == ("completed", "")
    check_tokens(ran.outputs, expected_of_small())
    again: dict[int, int] = {}
    fresh = variant.build(SIZE, Services(again))
    told = read_events(tmp_path / "events.jsonl")
    replay = replay_events(told, fresh, again, deliver_at_batch_end=at_batch_end)
    assert (replay.difference, replay.plans) == (None, ran.ending.plans)


class Met:
    """Counts what plans did."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("recompute", "swap", "hits", "in", "abort"), 0)

    def on_arrival(self, request: Request, now_s: float) -> None:
        pass

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        joined = {key for key, _ in plan.joins}
        for _, mode in plan.preempted:
            self.counts[mode] += 1
        self.counts["in"] += sum(transfer.kind == "in" for transfer in plan.transfers)
        self.counts["hits"] += sum(chunk.start > 0 for chunk in plan.chunks if chunk.id in joined)

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        pass

    def on_finish(self, finish: Finish, now_s: float) -> None:
        self.counts["abort"] += finish.reason == "abort"


def test_the_crowd_reaches_the_hard_cases() -> None:
    met = Met()
    workload = Workload(lambda: iter(SMALL), len(SMALL), (), None, 0.0, "a crowd", "trace", "cut")
    for name in ("v1-prefix", "v0-swap", "v0-recompute"):
        lengths: dict[int, int] = {}
        drive(VARIANTS[name].build(SIZE, Services(lengths)), workload, Limits(48, 5), lengths, observer=met)
    assert min(met.counts.values()) > 0, met.counts


def test_alone_is_no_constant() -> None:
    """Tokens of different requests differ, so that an answer from the wrong memory would show."""
    assert tiny().model.dtype.itemsize == 4
    answers = [tuple(tokens[:8]) for tokens in expected().values()]
    assert len(set(answers)) == len(answers)
