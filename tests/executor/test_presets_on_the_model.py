"""Every preset, with its own blocks, runs a real model under memory pressure: its plans alone are enough, tokens are
those of each request alone, and replaying what the engine was told gives the same decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpu_backend.executor import Limits
from policies.core.request import Request
from policies.kit.checked import CheckedPolicy
from policies.preset_table import PRESETS
from sim.replay import replay_events, replay_run
from tests.executor.driving import alone, check_tokens, crowd, drive, run_recorded, setup_of, tiny
from tests.sglang_modes import MODES, Mode
from tests.variants import VARIANTS, Size, Variant
from traces.record.events import EVENTS_NAME, EventLog, read_events
from traces.record.jsonl import read_jsonl
from traces.record.read import JSONL_NAME
from traces.record.schema import RequestRow
from traces.workload.source import Workload

MAX_MODEL_LEN = 112
ROWS = crowd(2, 8, shared=19, prompts=(2, 16), outputs=(12, 48))
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
    tokens = 3 * MAX_MODEL_LEN if preset.blocks in ("slot", "reserved") else MAX_MODEL_LEN + size
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
    recorded = [row for row in read_jsonl(tmp_path / "run" / JSONL_NAME) if isinstance(row, RequestRow)]
    made = {number: len(tokens) for number, tokens in ran.outputs.items()}
    assert {row.id: row.output_tokens for row in recorded} == made
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
SMALL = crowd(8, 6, shared=9, prompts=(1, 5), outputs=(6, 18))


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


SMALL_VARIANTS: Mapping[str, Variant | Mode] = {
    **VARIANTS,
    **{f"sglang {name}": mode for name, mode in MODES.items()},
    "sglang overlap": Mode("overlap", overlap=True),
    "sglang overlap, no cache": Mode("overlap-no-cache", overlap=True, caches_prefixes=False, chunk=0),
    "vllm-0.33-async": Variant("async", "vllm-0.33-async", "chunks", {"enable_prefix_caching": False}),
    "vllm-0.33-async, prefixes": Variant("async", "vllm-0.33-async", "chunks", {"enable_prefix_caching": True}),
}


@pytest.mark.parametrize("name", SMALL_VARIANTS)
def test_every_variant_runs_the_model_in_a_tiny_pool(name: str, tmp_path: Path) -> None:
    variant = SMALL_VARIANTS[name]
    lengths: dict[int, int] = {}
    policy = variant.build(SIZE, Services(lengths))
    if policy.max_in_flight == 1:  # plans made ahead are no business of the ledger
        policy = CheckedPolicy(policy, name)
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


def met(events: Path) -> Counter[str]:
    """How often the plans of a run did what is hard to get right."""
    counts: Counter[str] = Counter()
    for line in read_events(events):
        counts["aborts"] += line["type"] == "abort"
        counts["lost tokens"] += len(line.get("emitted", ()))
        plan = line.get("plan", {})
        joined = {key for key, _ in plan.get("joins", ())}
        counts.update(mode for _, mode in plan.get("preempted", ()))
        counts.update(kind for _, _, kind, *_ in plan.get("transfers", ()))
        counts["in the background"] += sum(not transfer[5] for transfer in plan.get("transfers", ()))
        counts["hits"] += sum(chunk[1] > 0 for chunk in plan.get("chunks", ()) if chunk[0] in joined)
        counts["remaps"] += len(plan.get("remaps", ()))
    return counts


def test_the_crowd_reaches_the_hard_cases(tmp_path: Path) -> None:
    total: Counter[str] = Counter()
    for name in ("vllm-0.11", "vllm-0.6-swap", "fastserve", "vllm-0.33-async", "sglang-0.4.9-overlap"):
        run_recorded(setup_of(engine_of({"preset": name}), ROWS), tmp_path / name)
        total += met(tmp_path / name / EVENTS_NAME)
    hard = ("recompute", "swap", "out", "in", "in the background", "hits", "remaps", "aborts", "lost tokens")
    assert [case for case in hard if not total[case]] == []


def test_alone_is_no_constant() -> None:
    """Tokens of different prompts differ, so that an answer from the wrong memory would show."""
    assert tiny().model.dtype.itemsize == 4
    prompts = {row.segments or number for number, row in enumerate(ROWS)}
    answers = {tuple(tokens[:8]) for tokens in expected().values()}
    assert len(answers) == len(prompts)
