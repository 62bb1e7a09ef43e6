"""Replicas behind a router on one clock: exact against separate runs and against ``simulate``."""

from __future__ import annotations

import numpy as np
import pytest

from policies.core.errors import ConfigError
from sim import simulate
from sim.config import RunConfig, load_config
from sim.explore.draws import Draw, Source
from sim.explore.fleet import Trial, run_fleet
from sim.explore.limits import parse_limit
from sim.explore.measures import judge, reading_s

PRESETS = ("vllm-0.11", "vllm-0.6-swap", "vllm-0.33-async", "vllm-0.6-multi-step", "ft-static", "sglang-0.4.9")


def config(preset: str = "vllm-0.11", *more: str, num_requests: int = 240) -> RunConfig:
    return load_config(
        {},
        [
            "workload.generator=poisson",
            "workload.rate_per_s=12",
            f"workload.num_requests={num_requests}",
            "workload.prompt={dist='uniform', low=20, high=900}",
            "workload.output={dist='uniform', low=1, high=120}",
            f"engine.preset={preset}",
            *more,
        ],
    )


def in_order(trial: Trial) -> dict[str, np.ndarray]:
    """Columns by arrival."""
    order = np.argsort(trial.requests.arrival_s, kind="stable")
    names = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s", "output_tokens")
    return {name: getattr(trial.requests, name)[order] for name in names}


@pytest.mark.parametrize("preset", PRESETS)
def test_one_replica_sees_what_simulate_gives(preset: str) -> None:
    of = config(preset)
    source = Source(of)
    rows = list(source._setup.workload.rows())
    trial = run_fleet(source.setup, iter(rows))
    summary = simulate(of).summary
    for name in ("ttft", "e2e", "queue"):
        read = reading_s(trial, parse_limit(f"{name}_p99_s=1"))
        assert read == pytest.approx(summary[f"{name}_s"]["p99"], rel=1e-12)
    assert reading_s(trial, parse_limit("itl_p95_s=1")) == summary["itl_s"]["p95"]
    assert trial.finished == summary["requests"]["finished"]
    assert trial.duration_s == pytest.approx(summary["duration_s"])


@pytest.mark.parametrize("preset", PRESETS)
def test_round_robin_equals_separate_runs_of_every_third_request(preset: str) -> None:
    source = Source(config(preset))
    rows = list(source.draw(3, 240).at(30.0))
    together = in_order(run_fleet(source.setup, iter(rows), replicas=3))
    apart = [in_order(run_fleet(source.setup, iter(rows[place::3]))) for place in range(3)]
    for name, values in together.items():
        expected = np.empty_like(values)
        for place in range(3):
            expected[place::3] = apart[place][name]
        np.testing.assert_array_equal(values, expected, err_msg=name)


def test_least_outstanding_avoids_the_busy_replica() -> None:
    source = Source(config())
    first = next(iter(source.draw(0, 50).at(1.0)))
    # One long answer, then short ones that come one at a time: the second replica gets them all.
    rows = [first._replace(arrival_s=0.0, output_tokens=2000, max_tokens=2000, prompt_tokens=100)]
    short = first._replace(output_tokens=2, max_tokens=2, prompt_tokens=50)
    rows += [short._replace(arrival_s=0.5 + 0.5 * n) for n in range(20)]
    fair = run_fleet(source.setup, iter(rows), replicas=2, router="least_outstanding")
    blind = run_fleet(source.setup, iter(rows), replicas=2, router="round_robin")
    alone = run_fleet(source.setup, iter(rows[:1]))
    assert in_order(fair)["finish_s"][0] == in_order(alone)["finish_s"][0]
    assert in_order(blind)["finish_s"][0] > in_order(alone)["finish_s"][0]


def test_requests_are_the_same_at_every_rate_only_closer() -> None:
    draw = Source(config()).draw(1, 100)
    slow, fast = list(draw.at(2.0)), list(draw.at(8.0))
    assert [row[1:] for row in slow] == [row[1:] for row in fast]
    assert fast[-1].arrival_s == pytest.approx(slow[-1].arrival_s / 4)
    assert (len(fast) - 1) / fast[-1].arrival_s == pytest.approx(8.0)


def test_what_the_models_length_refuses_is_left_out_and_counted() -> None:
    source = Source(load_config({}, ["workload.profile=chat", "engine.max_model_len=1024"]))
    draw = source.draw(0, 400)
    rows = list(source._setup.workload.rows())[:400]
    assert draw.left_out == sum(row.prompt_tokens >= 1024 for row in rows) > 0
    assert len(draw.rows) + draw.left_out == 400
    trial = run_fleet(source.setup, draw.at(1.0))
    assert not np.any(trial.requests.outcome != 0)


def test_windows_of_a_trace_are_the_samples(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "own.csv"
    lines = [f"{0.1 * n},{50 + n % 7},{5 + n % 3}" for n in range(1000)]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "\n".join(lines) + "\n", encoding="utf-8")
    source = Source(load_config({}, trace=str(path)))
    windows = source.windows(4)
    assert [len(window.rows) for window in windows] == [250] * 4
    with pytest.raises(ConfigError, match="make no 50 windows"):
        source.windows(50)


def test_closed_loops_have_no_rate() -> None:
    closed = load_config({}, ["workload.profile=chat", "workload.concurrency=4"])
    with pytest.raises(ConfigError, match="have no rate to find"):
        Source(closed)


@pytest.mark.parametrize(
    ("limit", "low", "high", "slope"),
    [
        ("ttft_p90_s=1", 0, 10**6, 0.0),
        ("ttft_p90_s=1@prompt<=300", 0, 300, 0.0),
        ("ttft_mean_s=1@prompt>300", 300, 10**6, 0.0),
        ("e2e_p50_s=1@200<prompt<=500", 200, 500, 0.0),
        ("ttft_p99_s=0.2+0.0005*prompt", 0, 10**6, 0.0005),
    ],
)
def test_readings_are_numpys_quantiles_of_the_class(limit: str, low: int, high: int, slope: float) -> None:
    source = Source(config())
    trial = run_fleet(source.setup, source.draw(0, 240).at(10.0))
    of = parse_limit(limit)
    requests = trial.requests
    end_s = requests.first_token_s if of.latency == "ttft" else requests.finish_s
    picked = (requests.prompt_tokens > low) & (requests.prompt_tokens <= high)
    values = (end_s - requests.arrival_s - slope * requests.prompt_tokens)[picked]
    share = {"mean": None, "p50": 0.5, "p90": 0.9, "p99": 0.99}[of.statistic]
    expected = np.mean(values) if share is None else np.quantile(values, share)
    assert reading_s(trial, of) == pytest.approx(float(expected))


def test_requests_that_are_refused_wait_for_ever() -> None:
    source = Source(config("vllm-0.11", "engine.num_gpu_blocks=20"))
    trial = run_fleet(source.setup, source.draw(0, 240).at(1.0))
    assert np.any(trial.requests.outcome != 0)
    verdict = judge(trial, [parse_limit("ttft_p99_s=1000"), parse_limit("tpot_p50_s=1000")])
    assert verdict.readings[0].value_s == float("inf")
    assert not verdict.met


def test_rows_apart_are_alone() -> None:
    draw = Draw(Source(config()).draw(0, 100).rows, 0)
    source = Source(config())
    trial = run_fleet(source.setup, draw.apart(1e4, 20))
    assert len(trial.requests.arrival_s) == 20
    assert float(np.max(trial.requests.finish_s - trial.requests.arrival_s)) < 1e4
    np.testing.assert_array_equal(trial.requests.first_scheduled_s, trial.requests.arrival_s)
