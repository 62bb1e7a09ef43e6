"""Searches: Optuna's study, and the same points again after a restart."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from sim import sweep
from tests.explore.sweeps import rows_of, write

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.usefixtures("in_empty_folder")

SEARCH = """
[sweep]
num_points = 10
seed = 5
[search]
objectives = {objectives}
sampler = "{sampler}"
batch = 4
"engine.max_num_seqs" = {{low = 1, high = 64, log = true}}
"workload.rate_per_s" = {{low = 2.0, high = 9.0}}
"engine.preset" = ["vllm-0.11", "orca-max"]
"""
ONE = '["min e2e_mean_s"]'
TWO = '["max output_tokens_per_s", "min ttft_p99_s"]'


@pytest.mark.parametrize(("objectives", "sampler"), [(ONE, "tpe"), (TWO, "tpe"), (TWO, "nsga2"), (ONE, "random")])
def test_a_search_leaves_a_study_that_other_tools_open(objectives: str, sampler: str) -> None:
    write(SEARCH.format(objectives=objectives, sampler=sampler))
    result = sweep("sweep.toml", out="out", jobs=1)
    storage = f"sqlite:///{Path('out/study.db').resolve()}"
    (summary,) = optuna.get_all_study_summaries(storage)
    study = optuna.load_study(study_name=summary.study_name, storage=storage)
    assert len(study.trials) == len(result.points) == 10
    for point, trial in zip(result.points, study.trials, strict=True):
        assert trial.user_attrs["point"] == point.number
        assert trial.params["engine.max_num_seqs"] == point.settings["engine.max_num_seqs"]
        assert trial.values == [point.mean(objective.metric) for objective in result.spec.objectives]


def test_a_search_that_was_interrupted_draws_the_same_points() -> None:
    write(SEARCH.format(objectives=ONE, sampler="tpe"))
    whole = sweep("sweep.toml", out="whole", jobs=1)
    sweep("sweep.toml", out="part", jobs=1)
    journal = Path("part/points.jsonl")
    lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    journal.write_text("".join(lines[:6]), encoding="utf-8")
    again = sweep("sweep.toml", out="part", jobs=2)
    pd.testing.assert_frame_equal(again.table, whole.table)
    assert len(rows_of("part")) == len(lines)
    (study,) = optuna.get_all_study_summaries(f"sqlite:///{Path('part/study.db').resolve()}")
    assert study.n_trials == 10


def test_the_best_point_of_a_search_is_chosen() -> None:
    write(SEARCH.format(objectives=ONE, sampler="tpe"))
    result = sweep("sweep.toml", jobs=1)
    assert result.chosen is not None
    assert result.chosen.mean("e2e_mean_s") == result.table["e2e_mean_s"].min()


def test_a_failed_point_is_a_failed_trial() -> None:
    text = '[sweep]\nnum_points = 4\n[search]\nobjectives = ["min e2e_mean_s"]\n"engine.block_size" = [0]\n'
    write(text)
    sweep("sweep.toml", out="out", jobs=1)
    storage = f"sqlite:///{Path('out/study.db').resolve()}"
    (summary,) = optuna.get_all_study_summaries(storage)
    study = optuna.load_study(study_name=summary.study_name, storage=storage)
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 4
    assert "engine.block_size = 0" in study.trials[0].user_attrs["message"]
