"""``calibrate measure`` on the CPU: the profile it writes, the cost file that makes, and the run that takes it."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from statistics import median

import pytest

from calibrate.execute import Options, open_machine, prepare_on
from calibrate.measure_levels import levelled
from calibrate.measure_points import Sizes, Step, grid, points
from calibrate.measure_rows import Timed, rows_of
from calibrate.profile_file import read_profile
from tests.command import batchscope, settings

LIMITS = settings(engine__max_num_seqs=4, engine__max_num_batched_tokens=64, engine__max_model_len=128)


def test_what_is_measured_makes_a_cost_file_that_a_run_takes(tmp_path: Path) -> None:
    profile, costs = tmp_path / "own.csv", tmp_path / "own.json"
    made = batchscope("calibrate", "measure", "--model", "tiny", "--seconds", 5, *LIMITS, "--out", profile)
    assert made.exit_code == 0, made.stderr
    assert f"next: batchscope calibrate fit --profile {profile}" in made.stdout
    found = read_profile(profile)
    assert (found.model, found.card) == ("tiny", "cpu")
    operators = {row.operator for row in found.rows}
    assert operators >= {"linear", "decode", "prefill", "head", "uneven", "step", "swap", "host"}
    assert max(row.context for row in found.rows) == 127
    assert "interleaved rounds over" in found.sources["executor"].method
    fitted = batchscope("calibrate", "fit", "--profile", profile, "--out", costs)
    assert fitted.exit_code == 0, fitted.stderr
    terms = json.loads(costs.read_text())["terms"]
    assert terms["host"]["base_s"] > 0
    keys = settings(
        "workload.generator=closed-loop",
        'workload.prompt={dist="fixed",value=16}',
        'workload.output={dist="fixed",value=8}',
        workload__concurrency=2,
        workload__num_requests=8,
        hardware__name="cpu",
        hardware__cost_model=costs,
    )
    run = batchscope("run", "--model", "tiny", *LIMITS, *keys, "--json")
    assert run.exit_code == 0, run.stderr
    summary = run.summary
    assert summary["cost_model"]["name"] == "cpu_tiny"
    # Two layers and a head take at least the fitted parts of a step of two, and not a hundred times as long.
    least_s = terms["host"]["base_s"]
    assert least_s < summary["itl_s"]["mean"] < 100 * (least_s + terms["head"]["seconds"][0])


def test_a_card_must_be_named_and_sizes_must_be_possible(tmp_path: Path) -> None:
    out = tmp_path / "own.csv"
    ended = batchscope("calibrate", "measure", "--model", "tiny", "--device", "cuda:9", "--out", out)
    assert ended.exit_code == 2
    assert "device = 'cuda:9'" in ended.stderr
    assert not out.exists()


def test_points_cover_the_range_before_they_get_finer() -> None:
    found = points(Sizes(max_model_len=256, max_num_seqs=16, max_num_batched_tokens=128, cache_tokens=2048))
    levels = [level for level, _ in found]
    assert levels == sorted(levels)
    coarse = [step for level, step in found if level == 0]
    assert {len(step.contexts) for step in coarse} >= {1, 4, 16}
    assert max(max(step.contexts, default=0) for step in coarse) == 256
    assert {step.chunk_tokens for step in coarse} >= {16, 64, 128}
    assert all(step.cached_tokens <= 2048 for _, step in found)
    assert not any(len(step.contexts) == 16 and min(step.contexts) > 128 for _, step in found)
    assert len(set(found)) == len(found)
    # Every step with attention has its twin without.
    bare = {(len(step.contexts), step.chunk_tokens) for _, step in found if step.bare}
    alone = [step for _, step in found if not step.bare and not (step.contexts and step.chunk_tokens)]
    assert all((len(step.contexts), step.chunk_tokens) in bare for step in alone)


@pytest.mark.parametrize(("least", "most", "sizes"), [(1, 1, [1]), (1, 6, [1, 2, 3, 4, 6]), (16, 40, [16, 24, 32, 40])])
def test_sizes_between_two_ends(least: int, most: int, sizes: list[int]) -> None:
    assert sorted(grid(least, most)) == sizes
    assert grid(least, most)[least] == grid(least, most)[most] == 0


def test_what_slows_a_part_of_a_round_down_is_divided_out() -> None:
    truth = {number: 1.0 + number % 7 for number in range(60)}
    draw, rounds = Random(0), []
    for number in range(5):
        order = list(truth)
        draw.shuffle(order)
        # From the fourth round on the machine is three times as slow, and twice more in half of the last one.
        slow = [3.0 if number > 2 else 1.0] * 60
        if number == 4:
            slow[:30] = [6.0] * 30
        rounds.append([(key, truth[key] * factor) for key, factor in zip(order, slow, strict=True)])
    medians = {key: median(times) for key, times in levelled(rounds).items()}
    assert medians == pytest.approx(truth, rel=0.01)
    assert {key: max(times) for key, times in levelled(rounds[:3]).items()} == pytest.approx(truth)


def test_attention_is_what_a_step_takes_beyond_the_same_without() -> None:
    steps = {
        Step((16, 16), bare=True): 5.0,
        Step((64, 64)): 8.0,
        Step((112, 16)): 9.0,
        Step(chunk_tokens=32, bare=True): 6.0,
        Step(chunk_tokens=32, chunk_context=64): 10.0,
        Step((64, 64), 32): 12.0,
    }
    rows = list(rows_of(Timed(steps, {2: 1.0, 1: 0.5}, {4: 0.25}, {1: 0.1}), layers=2, block_bytes=100))
    by_operator = {row.operator: row for row in rows if row.operator != "linear"}
    assert {(row.tokens, row.seconds) for row in rows if row.operator == "linear"} == {(2, 2.0), (32, 2.75)}
    assert by_operator["decode"][:3] == ("decode", "executor", 1.5)
    assert (by_operator["decode"].sequences, by_operator["decode"].context) == (2, 63)
    uneven = by_operator["uneven"]
    assert (uneven.seconds, uneven.even_seconds, uneven.context, uneven.longest_context) == (2.0, 1.5, 63, 111)
    assert (by_operator["prefill"].seconds, by_operator["prefill"].chunk_context) == (2.0, 64)
    assert (by_operator["step"].seconds, by_operator["step"].sequences) == (12.0, 2)
    assert (by_operator["swap"].bytes, by_operator["swap"].seconds) == (400, 0.25)
    assert by_operator["host"].seconds == 0.1


def test_steps_are_timed_on_the_tokens_that_the_batch_table_would_send() -> None:
    """The same runner, on arrays of one's own: tokens come out, and none is out of the vocabulary."""
    from calibrate.measure_steps import StepTimer
    from gpu_backend.executor import make_cache
    from sim.config import load_config

    tables = {
        "workload": {
            "generator": "closed-loop",
            "concurrency": 1,
            "num_requests": 1,
            "prompt": {"dist": "fixed", "value": 4},
            "output": {"dist": "fixed", "value": 4},
        }
    }
    config = load_config(tables, ["engine.max_num_seqs=4", "engine.max_model_len=128"], model="tiny")
    machine = open_machine(config, Options())
    cache = make_cache(machine.model, prepare_on(machine, config).policy)
    cache.blocks_NL2KSD.normal_()
    timer = StepTimer(machine.model, cache, 4, graphs=True)
    for step in (Step((5, 100, 17)), Step(chunk_tokens=20, chunk_context=30), Step((40,), 33), Step((9,), bare=True)):
        assert timer.seconds(step) > 0
    assert timer.head_seconds(3) > 0

