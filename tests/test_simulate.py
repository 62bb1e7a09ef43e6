"""``from sim import simulate``: one call from a configuration to a summary and tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from policies.core.errors import ConfigError, TraceError, UserError
from sim import simulate
from sim.api import prepare, run_setup
from sim.config import load_config
from tests.command import CHAT, batchscope, chat, own_csv
from traces.metrics.stats import Stats
from traces.record.schema import RequestRow, StepRow

SMALL = (*CHAT, "workload.rate_per_s=8", "workload.num_requests=60")

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def test_the_example_of_the_readme() -> None:
    Path("run.toml").write_text(
        '[workload]\ngenerator = "poisson"\nrate_per_s = 40\nnum_requests = 5000\n'
        'prompt = { dist = "uniform", low = 50, high = 200 }\n'
        'output = { dist = "exponential", mean = 250, cap = 1500 }\n\n'
        '[engine]\npreset = "vllm-0.6-swap"\nnum_gpu_blocks = 500\n\n[sim]\nrecord = "steps"\n'
    )
    result = simulate("run.toml", out="runs/swap", overrides=["workload.num_requests=300"])
    assert result.summary["ttft_s"]["n"] == 300
    assert result.summary["preemptions"]["swap"] > 0

    requests = result.requests
    steps = result.steps
    assert requests.groupby("reason").size().to_dict() == {"stop": 300}
    ttft_s = requests.first_token_s - requests.arrival_s
    assert ttft_s.quantile(0.99) == pytest.approx(result.summary["ttft_s"]["p99"])
    assert steps is not None
    assert int(steps["steps"].sum()) == result.summary["steps"]["count"]
    assert set(requests.columns) == set(RequestRow._fields) - {"segments"}
    assert set(steps.columns) == set(StepRow._fields)
    assert repr(result) == "<Result vllm-0.6-swap: completed, 300 of 300 finished>"


def plain(value: object) -> object:
    """A cell in a form that compares: lists as tuples, NaN as None."""
    if isinstance(value, tuple | np.ndarray):
        return tuple(value)
    return None if value != value else value


def test_without_a_folder_the_tables_are_those_that_a_folder_would_hold() -> None:
    overrides = [*SMALL, "sim.record=tokens"]
    kept, written = simulate(overrides=overrides).record, simulate(overrides=overrides, out="out").record
    for name in ("requests", "steps", "stalls", "segments"):
        mine, theirs = getattr(kept, name), getattr(written, name)
        assert list(mine.columns) == list(theirs.columns)
        for column in mine.columns:
            assert [plain(x) for x in mine[column]] == [plain(x) for x in theirs[column]], (name, column)
    assert (kept.summary or {})["ttft_s"] == (written.summary or {})["ttft_s"]


def test_a_run_that_keeps_nothing_says_so() -> None:
    result = run_setup(prepare(load_config(None, SMALL)))
    with pytest.raises(UserError, match=r"^this run kept no record; "):
        _ = result.requests


def test_without_a_folder_there_are_a_summary_and_metrics_and_no_files() -> None:
    result = simulate(overrides=SMALL)
    ttft_s = result.metrics.latencies["ttft_s"]
    assert isinstance(ttft_s, Stats)
    assert ttft_s._asdict() == result.summary["ttft_s"]
    assert (result.status, result.message, result.exit_code, result.folder) == ("completed", "", 0, None)
    assert not list(Path().iterdir())


def test_a_configuration_object_a_file_and_the_command_line_agree() -> None:
    config = load_config(None, SMALL, policy="vllm-0.6")
    Path("run.toml").write_text(config.to_toml())
    summaries = [
        simulate(config).summary,
        simulate("run.toml").summary,
        simulate(overrides=SMALL, policy="vllm-0.6").summary,
        batchscope("run", *chat(8, 60), "--policy", "vllm-0.6", "--json").summary,
    ]
    for summary in summaries:
        del summary["wall"]
    assert summaries[0] == summaries[1] == summaries[2] == summaries[3]
    message = "simulate: give a RunConfig, or a path or tables with overrides and flags, not both"
    with pytest.raises(UserError, match=f"^{message}$"):
        simulate(config, policy="orca-max")


def test_progress_is_called_with_time_and_ended_requests() -> None:
    seen: list[tuple[float, int]] = []
    simulate(
        overrides=(*CHAT, "workload.rate_per_s=8", "workload.num_requests=2000"),
        progress=lambda now_s, ended: seen.append((now_s, ended)),
    )
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert 0 < seen[0][1] < seen[-1][1] <= 2_000


def test_errors_are_those_of_the_error_tree() -> None:
    with pytest.raises(TraceError):
        simulate(trace="there-is-no-such.csv")
    with pytest.raises(ConfigError):
        simulate(overrides=(*SMALL, "engine.max_num_seqs=0"))
    Path("full").mkdir()
    Path("full/file").touch()
    with pytest.raises(UserError, match=r"^--out full: the folder is not empty; name a new one$"):
        simulate(trace="there-is-no-such.csv", out="full")


def test_a_run_that_the_engine_does_not_survive_is_a_result() -> None:
    Path("own.csv").write_text(own_csv((0, 310, 5), (1, 10, 5)))
    pool = ["engine.num_gpu_blocks=20", "engine.max_model_len=320"]
    stuck = simulate(trace="own.csv", overrides=[*pool, "engine.faithful=true"], out="stuck")
    assert (stuck.status, stuck.exit_code) == ("stuck", 3)
    assert stuck.message == stuck.summary["notes"][0]
    assert stuck.requests["reason"].tolist() == ["unfinished"]
    guarded = simulate(trace="own.csv", overrides=pool)
    assert (guarded.status, guarded.exit_code) == ("completed", 0)
    unserved = simulate(trace="own.csv", overrides=["engine.max_model_len=5"])
    assert (unserved.status, unserved.exit_code) == ("completed", 2)
    assert unserved.message.startswith("no request at all could be served (prompt_too_long 2); ")
