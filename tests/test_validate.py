"""Measured cases through the simulator: errors, bands, what is refused, and the experiments on published data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrate.validation.anchors import ANCHORS_FILE, anchors
from calibrate.validation.argonne import LeaveOneOut, leave_one_length_out
from calibrate.validation.bounds import batch_bound_s, impossible
from calibrate.validation.cases import read_cases
from calibrate.validation.compare import compare, errors_of
from calibrate.validation.predict import predict
from calibrate.validation.recipe import Recipe, costs_of, file_for, terms_of
from calibrate.validation.recorded_sets import recorded_runs
from calibrate.validation.serving import knees
from calibrate.validation.setups import target_of
from calibrate.validation.shipped import recipe_of, shipped_recipes
from calibrate.validation.text import left_lines
from calibrate.validation.untuned import untuned
from policies.catalog import card, model
from policies.core.errors import TraceError
from tests.command import batchscope

FAST = Recipe(0.2e-3, 0.05e-3)


def record(**changes: Any) -> dict[str, Any]:
    """A case of 16 prompts of 128 tokens, in the schema of measured cases."""
    plain: dict[str, Any] = {
        "id": "case-1",
        "source": {"name": "a page"},
        "hardware": {"gpu": "A100-SXM4-40GB", "tp": 1},
        "model": "meta-llama/Llama-2-7b-hf",
        "dtype": {"weights": "fp16", "kv": "fp16"},
        "engine": {"name": "vllm", "version": "0.5.3", "batching": "continuous", "settings": {}},
        "workload": {
            "kind": "offline_batch",
            "batch_size": 16,
            "input_len": {"dist": "fixed", "value": 128},
            "output_len": {"dist": "fixed", "value": 128},
        },
        "measured": {"e2e_batch_s": 2.0},
        "grade": "A",
    }
    return {**plain, **changes}


def written(folder: Path, *records: dict[str, Any]) -> Path:
    """A file of cases."""
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in records))
    return path


def test_no_anchor_is_beyond_its_band() -> None:
    found = anchors()
    assert len(found) >= 30
    beyond = {anchor.row.case.id: round(anchor.row.error, 4) for anchor in found if not anchor.is_within}
    assert not beyond


def test_a_slower_host_drives_anchors_out_of_their_bands() -> None:
    """The bands are narrow enough to notice a millisecond."""
    case = read_cases(ANCHORS_FILE)[0]
    recipe = recipe_of(case)
    assert recipe is not None
    slower = recipe._replace(base_s=recipe.base_s + 1e-3)
    band = json.loads(ANCHORS_FILE.read_text().splitlines()[0])["band"]
    measured = case.measured["e2e_batch_s"]
    assert abs(predict(case, slower).figures["e2e_batch_s"] / measured - 1) > band


def test_a_step_takes_what_its_recipe_says(tmp_path: Path) -> None:
    """One request of one token is one step: the host's time comes on top of the operators'."""
    workload = {**record()["workload"], "batch_size": 1, "output_len": {"dist": "fixed", "value": 1}}
    (case,) = read_cases(written(tmp_path, record(workload=workload)))
    bare, hosted = (predict(case, Recipe(base_s, per_seq_s)) for base_s, per_seq_s in ((0.0, 0.0), (1e-3, 2e-3)))
    assert hosted.figures["e2e_batch_s"] - bare.figures["e2e_batch_s"] == pytest.approx(3e-3)


def test_slower_memory_takes_longer_to_read_and_computes_as_fast() -> None:
    shape = model("llama-2-7b")
    fast, slow = (terms_of(shape, card(name), FAST) for name in ("a100-80gb", "a100-40gb"))
    ratio = card("a100-80gb").bytes_per_s / card("a100-40gb").bytes_per_s
    assert slow.linear.at(16) == pytest.approx(ratio * fast.linear.at(16))
    assert slow.linear.at(4096) == pytest.approx(fast.linear.at(4096))
    assert slow.head.at(16) == pytest.approx(ratio * fast.head.at(16))


def test_models_of_equal_layers_share_a_cost_file_and_others_have_none() -> None:
    found = file_for(model("mistral-7b"), card("a100-40gb"))
    assert found is not None
    assert (found[0].model, found[1].name) == ("llama-3-8b", "a100-80gb")
    assert file_for(model("qwen3-14b"), card("a100-40gb")) is None
    assert file_for(model("llama-3-8b")._replace(weight_bits=8), card("a100-40gb")) is None


def test_factors_of_a_recipe_scale_their_terms_alone() -> None:
    shape, device = model("qwen3-14b").shard(2), card("h100-80gb")
    plain = costs_of(FAST, shape, device, "vllm-0.11").parts(8, 8, 4096, 512)
    changes = (
        (FAST._replace(kv=1.3), {"decode_attention"}),
        (FAST._replace(links=1.3), {"all_reduce"}),
        (FAST._replace(weights=1.3), {"linear", "head"}),
    )
    for recipe, terms in changes:
        changed = costs_of(recipe, shape, device, "vllm-0.11").parts(8, 8, 4096, 512)
        assert all(changed[term] > plain[term] for term in terms)
        rest = plain.keys() - terms - {"floor"}
        assert {name: changed[name] for name in rest} == pytest.approx({name: plain[name] for name in rest})


def test_a_measurement_that_beats_the_card_is_refused_not_compared(tmp_path: Path) -> None:
    possible, too_fast = read_cases(written(tmp_path, record(), record(id="case-2", measured={"e2e_batch_s": 0.9})))
    bound_s = batch_bound_s(possible, target_of(possible))
    assert bound_s is not None
    assert 0.9 < bound_s < 2.0
    assert impossible(possible, target_of(possible)) is None
    found = compare([possible, too_fast], lambda case: FAST, vary_pool=False)
    assert [row.case.id for row in found.rows] == ["case-1"]
    assert [left.case.id for left in found.left] == ["case-2"]
    assert "impossible" in left_lines(found)[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hardware": {"gpu": "TPUv9", "tp": 1}}, "card TPUv9 is not in the catalog"),
        ({"model": "no/such"}, "model no/such is not in the catalog"),
        ({"dtype": {"weights": "fp3", "kv": "fp16"}}, "weights of fp3 are not modelled"),
        ({"engine": {"name": "nobody", "version": "1"}}, "no preset stands for nobody 1"),
        ({"hardware": {"gpu": "A100-SXM4-40GB", "tp": 7}}, "cannot be split evenly"),
        ({"measured": {"power_w": 300}}, "none of its figures"),
    ],
)
def test_what_cannot_be_run_is_listed_with_its_reason(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    cases = read_cases(written(tmp_path, record(**changes)))
    found = compare(cases, lambda case: FAST)
    assert not found.rows
    assert reason in found.left[0].reason


def test_a_saturated_case_says_how_its_error_moves_with_the_pool(tmp_path: Path) -> None:
    batch = {**record()["workload"], "batch_size": 64}
    batch |= {"input_len": {"dist": "fixed", "value": 1024}, "output_len": {"dist": "fixed", "value": 1024}}
    short, ample = read_cases(
        written(tmp_path, record(workload=batch, measured={"e2e_batch_s": 88.3}), record(id="case-2"))
    )
    rows = compare([short, ample], lambda case: FAST).rows
    assert rows[0].pool is not None
    assert rows[0].pool[0] > rows[0].error > rows[0].pool[1]
    assert rows[1].pool is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "cases.jsonl, line 1: not JSON"),
        ("[]", "cases.jsonl, line 1"),
        (json.dumps({key: value for key, value in record().items() if key != "grade"}), "key 'grade' is missing"),
        (json.dumps(record(grade="F")), "grade is 'F'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(TraceError) as caught:
        read_cases(path)
    assert said in str(caught.value)


def test_the_command_prints_errors_by_engine_card_and_figure(tmp_path: Path) -> None:
    path = written(tmp_path, record(), record(id="case-2", model="no/such"))
    found = batchscope("calibrate", "validate", str(path))
    assert found.exit_code == 0, found.stderr
    assert "vllm 0.5.3, A100-SXM4-40GB: e2e_batch_s" in found.stdout
    assert "not run: 1 case\n" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give files of measured cases, or --set NAME, or --run FILE"),
        (("nowhere.jsonl",), "nowhere.jsonl: cannot be read"),
        (("--set", "argone"), "argonne"),
        (("--run", "x.json"), "--format"),
        (("--run", "x.json", "--format", "guidellm"), "--config"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    found = batchscope("calibrate", "validate", *arguments)
    assert found.exit_code == 2
    assert said in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_every_shipped_recipe_states_its_source_and_error() -> None:
    recipes = shipped_recipes()
    assert len(recipes) >= 5
    for entry in recipes:
        assert entry.source
        recipe = entry.recipe
        assert 0 <= recipe.base_s < 5e-3
        assert 0 <= recipe.per_seq_s < 0.2e-3
        assert 0.5 < recipe.weights < 1.5


def test_a_knee_is_where_the_queue_forms(tmp_path: Path) -> None:
    def at(rate: float, ttft_ms: float) -> dict[str, Any]:
        workload = {"kind": "poisson", "request_rate": rate, "num_requests": 100}
        lengths = {"input_len": {"dist": "fixed", "value": 128}, "output_len": {"dist": "fixed", "value": 32}}
        return record(id=f"q{rate:g}", workload={**workload, **lengths}, measured={"ttft_mean_ms": ttft_ms})

    cases = read_cases(written(tmp_path, at(1, 20), at(4, 22), at(400, 900)))
    (knee,) = knees(compare(cases, lambda case: FAST).rows)
    assert list(knee.rates) == [1.0, 4.0, 400.0]
    assert knee.measured == knee.simulated == 2


# -- published data ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def left_out(shared_data: Path) -> LeaveOneOut:
    return leave_one_length_out(shared_data / "measured" / "argonne.jsonl")


def test_each_length_is_predicted_from_the_others(left_out: LeaveOneOut) -> None:
    """vLLM 0.5 with Llama-2-7B on an A100 of 40 GB, exhausted pools included; other models untouched."""
    found = left_out
    for fold in found.folds:
        errors = errors_of(fold.rows)
        assert errors.mean <= 0.02, fold.length
        assert abs(errors.worst) <= 0.05, fold.length
    assert any(row.pool is not None for fold in found.folds for row in fold.rows)
    assert errors_of(found.others.rows).mean <= 0.05


def test_the_shipped_recipe_is_that_of_all_lengths(left_out: LeaveOneOut) -> None:
    found, shipped = left_out.recipe, shipped_recipes()[0].recipe
    assert found._replace(parallel_s=shipped.parallel_s) == pytest.approx(shipped, rel=1e-3)


def test_recorded_runs_come_out_within_five_percent(shared_data: Path) -> None:
    for run, plain, fitted in recorded_runs(shared_data / "e2e"):
        assert len(plain.lines) == 9
        assert max(abs(line.error) for line in plain.lines) <= 0.05, run.name
        assert max(abs(line.error) for line in fitted.lines) <= 0.05, run.name


def test_the_roofline_is_within_a_factor_of_two_and_refuses_the_impossible(shared_data: Path) -> None:
    found = untuned(shared_data / "measured", one_of=12)
    assert len(found.within) >= 0.9 * len(found.comparison.rows)
    assert not found.below_bound
    assert len(found.refused) == len(found.graded_x) > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"measured": {"e2e_batch_s": -1}}, "measured.e2e_batch_s is -1; it must be above 0"),
        ({"measured": {"e2e_batch_s": 0}}, "measured.e2e_batch_s is 0"),
        ({"measured": {"e2e_batch_s": float("nan")}}, "measured.e2e_batch_s is nan"),
        ({"engine": {"name": "vllm", "version": "0.5", "settings": "all"}}, "engine.settings is 'all', no object"),
    ],
)
def test_values_that_no_measurement_has_are_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        read_cases(written(tmp_path, record(**changes)))


@pytest.mark.parametrize("length", [0, -4, float("nan"), float("inf")])
def test_a_length_is_a_token_or_more(tmp_path: Path, length: float) -> None:
    workload = {**record()["workload"], "input_len": {"dist": "fixed", "value": length}}
    with pytest.raises(TraceError, match="a length is"):
        read_cases(written(tmp_path, record(workload=workload)))


def test_a_case_graded_impossible_is_listed_not_compared(tmp_path: Path) -> None:
    found = compare(read_cases(written(tmp_path, record(grade="X"))), recipe_of)
    assert not found.rows
    assert left_lines(found)[0] == "not run: 1 case"
    assert "graded X" in found.left[0].reason
