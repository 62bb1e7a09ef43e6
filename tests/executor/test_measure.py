"""``calibrate measure`` on the CPU: the profile it writes, the cost file that makes, and the run that takes it."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest

from calibrate.execute import Options, open_machine, prepare_on
from calibrate.fitting import step_once_s
from calibrate.measure_levels import levelled
from calibrate.measure_points import Sizes, Step, grid, points
from calibrate.measure_rounds import Rounds
from calibrate.measure_rows import Timed, rows_of
from calibrate.operators import AttentionPoint
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
    assert operators >= {"linear", "decode", "prefill", "head", "uneven", "step", "swap", "host", "host_prefill"}
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
    draw, timed = Random(0), []
    for number in range(5):
        order = list(truth)
        draw.shuffle(order)
        # From the fourth round on the machine is three times as slow, and twice more in half of the last one.
        slow = [3.0 if number > 2 else 1.0] * 60
        if number == 4:
            slow[:30] = [6.0] * 30
        timed += [(key, truth[key] * factor) for key, factor in zip(order, slow, strict=True)]
    medians = {key: median(times) for key, times in levelled(timed).items()}
    assert medians == pytest.approx(truth, rel=0.01)
    assert {key: max(times) for key, times in levelled(timed[: 3 * 60]).items()} == pytest.approx(truth)


def test_attention_is_what_a_step_takes_beyond_the_same_without() -> None:
    steps = {
        Step((16, 16), bare=True): 5.0,
        Step((64, 64)): 8.0,
        Step((112, 16)): 9.0,
        Step(chunk_tokens=32, bare=True): 6.0,
        Step(chunk_tokens=32, chunk_context=64): 10.0,
        Step((64, 64), 32): 12.0,
    }
    timed = Timed(steps, {2: 1.0, 1: 0.5}, {4: 0.25}, {(1, 0): 0.1, (3, 2): 0.4})
    rows = list(rows_of(timed, layers=2, block_bytes=100))
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
    beside = by_operator["host_prefill"]
    assert (beside.seconds, beside.sequences, beside.chunks) == (0.4, 5, 2)


def test_the_head_is_what_sampled_rows_add_within_steps() -> None:
    """A head timed alone finds its weights in the caches that the layers have filled in a step."""
    steps = {
        Step((16,) * 4, bare=True): 9.0,
        Step((16,), bare=True): 5.0,
        Step(chunk_tokens=1, bare=True): 5.0,
        Step(chunk_tokens=4, bare=True): 6.0,
        Step(chunk_tokens=16, bare=True): 7.0,
        Step(chunk_tokens=16, bare=True, silent=True): 6.5,
    }
    rows = list(rows_of(Timed(steps, {1: 100.0, 4: 100.0}, {}, {}), layers=2, block_bytes=100))
    assert {(row.sequences, row.seconds) for row in rows if row.operator == "head"} == {(1, 0.5), (4, 3.5)}
    # The head's part is out of both, so that the layers take what a prompt of as many tokens takes.
    assert {(row.tokens, row.seconds) for row in rows if row.operator == "linear"} == {(1, 2.25), (4, 2.75), (16, 3.25)}


def test_eager_steps_come_with_what_tells_their_head() -> None:
    sizes = Sizes(max_model_len=256, max_num_seqs=16, max_num_batched_tokens=128, cache_tokens=2048, eager=True)
    steps = {step: level for level, step in points(sizes)}
    assert [(step.chunk_tokens, level) for step, level in steps.items() if step.silent] == [(16, 0)]
    for step, level in steps.items():
        if step.bare and step.contexts:
            assert steps[Step(chunk_tokens=len(step.contexts), bare=True)] <= level
    assert not any(step.silent for _, step in points(sizes._replace(eager=False)))


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize(("seqs", "tokens"), [(1, 8), (4, 8), (8, 64), (16, 256), (48, 40)])
def test_points_may_be_cut_off_after_any_beyond_the_coarsest(seqs: int, tokens: int, *, eager: bool) -> None:
    found = points(Sizes(256, seqs, tokens, cache_tokens=256 * seqs, eager=eager))
    assert found[0].level == 0
    heads = {len(step.contexts): 0.5 for _, step in found if step.bare and step.contexts}
    coarse = sum(level == 0 for level, _ in found)
    for cut in range(coarse, len(found) + 1):
        steps = {step: 1.0 + step.num_tokens for _, step in found[:cut]}
        operators = {row.operator for row in rows_of(Timed(steps, heads, {}, {}), layers=2, block_bytes=100)}
        assert operators >= {"head", "linear", "decode", "prefill"}


def test_several_chunks_tell_what_a_step_pays_once() -> None:
    alone = [AttentionPoint(1, tokens, 0, 1.0 + 0.1 * tokens) for tokens in (16, 64)]
    assert step_once_s(alone, 2.6) == pytest.approx(2.6)
    several = [AttentionPoint(count, tokens, 0, 1.0 + count * 0.1 * tokens) for tokens in (16, 64) for count in (2, 4)]
    assert step_once_s([*alone, *several], 2.6) == pytest.approx(1.0)
    apart = [AttentionPoint(4, 16, 0, 4 * 2.6)]
    assert step_once_s([*alone, *apart], 2.6) == pytest.approx(0.0)


class Ticks:
    """A timer of steps on a machine that is twice as slow in every fourth step; ``seen`` are the steps it ran."""

    def __init__(self) -> None:
        self.seen: list[Step] = []

    def seconds(self, step: Step) -> float:
        """A second a token, or two."""
        self.seen.append(step)
        return step.num_tokens * (2.0 if len(self.seen) % 4 == 0 else 1.0)

    def head_seconds(self, num_rows: int) -> float:
        """A second a row."""
        return float(num_rows)


class NoSwaps:
    """A timer of transfers."""

    def seconds(self, num_blocks: int) -> float:
        """A second a block."""
        return float(num_blocks)


def ticking_rounds() -> tuple[Ticks, Rounds]:
    """A small session on such a timer, its points chosen."""
    ticks = Ticks()
    timer: Any = ticks
    swaps: Any = NoSwaps()
    sizes = Sizes(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64, cache_tokens=256, eager=True)
    rounds = Rounds(timer, swaps, points(sizes), (1, 2))
    rounds.choose(float("inf"))
    return ticks, rounds


def test_rounds_time_decodes_after_decodes_and_know_how_slow_the_machine_was() -> None:
    ticks, rounds = ticking_rounds()
    ticks.seen.clear()
    for _ in range(9):
        rounds.round()
    places = [place for place, step in enumerate(ticks.seen) if not step.chunk_tokens]
    assert len(places) % 2 == 0
    assert all(ticks.seen[one] == ticks.seen[other] for one, other in zip(places[::2], places[1::2], strict=True))
    assert not rounds.timed().heads  # steps tell it
    slowness = rounds.slowness()
    assert len(slowness) == rounds.num_timed < len(ticks.seen)
    assert [median(slowness), max(slowness)] == pytest.approx([1.0, 2.0])


def test_a_step_is_timed_once_more_by_the_one_most_like_it() -> None:
    ticks, rounds = ticking_rounds()
    rounds.round()
    for wanted, like in (
        (Step((17,)), Step((16,))),
        (Step((40, 40, 40)), Step((48, 48, 48))),
        (Step(chunk_tokens=18), Step(chunk_tokens=16)),
        (Step(chunk_tokens=70), Step(chunk_tokens=64)),
        (Step((30, 30), 20), Step((32, 32), 16)),
    ):
        ticks.seen.clear()
        first = rounds.num_timed
        rounds.once_more(wanted)
        assert ticks.seen[-1] == like
        assert len(rounds.slowness(slice(first, rounds.num_timed))) == 1


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
    several = Step((40,), 17, 3, chunks=2)
    for step in (Step((5, 100, 17)), Step(chunk_tokens=20, chunk_context=30), several, Step((9,), bare=True)):
        assert timer.seconds(step) > 0
    assert timer.seconds(Step(chunk_tokens=16, silent=True)) > 0
    arrays = timer.arrays(several)
    assert arrays.cu_C1.tolist() == [0, 17, 34]
    assert arrays.starts_C.tolist() == [3, 3]
    assert arrays.positions_T.tolist() == [39, *range(3, 20), *range(3, 20)]
    assert arrays.rows_T.tolist() == [0, *[1] * 17, *[2] * 17]
    assert arrays.emit_E.tolist() == [0, 17, 34]
    assert len(set(arrays.slots_T.tolist())) == 35
    assert timer.arrays(several._replace(silent=True)).emit_ids == []
    assert timer.head_seconds(3) > 0

