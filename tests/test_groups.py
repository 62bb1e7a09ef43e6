"""Results by client, priority and prompt length equal those of the requests alone, with Jain's index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import simulate
from tests.command import CHAT, own_csv
from traces.metrics.groups import MAX_GROUPS, PROMPT_BOUNDS, jain, prompt_class_names

pytestmark = pytest.mark.usefixtures("in_empty_folder")
COLUMNS = "arrival_s,prompt_tokens,output_tokens,priority,client_id"
SHARES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=30)


@given(SHARES)
def test_jains_index_lies_between_one_over_n_and_one(shares: list[float]) -> None:
    index = jain(np.array(shares))
    assert index is not None
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9
    assert jain(np.array(shares) * 7) == pytest.approx(index)


def test_jains_index_of_known_shares() -> None:
    assert jain(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert jain(np.array([5.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert jain(np.array([1.0, 3.0])) == pytest.approx(16 / 20)
    assert jain(np.zeros(3)) is None


def simulated(**more: Any) -> dict[str, Any]:
    rows = [(0.02 * n, 40 + 9 * (n % 40), 20 + n % 30, n % 3, "ann" if n % 4 else "bo") for n in range(200)]
    Path("mixed.csv").write_text(own_csv(*rows, columns=COLUMNS))
    summary = simulate(trace="mixed.csv", overrides=["slo.ttft_s=1", "engine.max_num_seqs=8"], **more).summary
    return summary


def test_groups_are_those_of_the_requests() -> None:
    summary = simulated()
    groups = summary["groups"]
    assert list(groups) == ["client", "priority", "prompt_tokens"]
    assert list(groups["client"]["of"]) == ["bo", "ann"]
    assert list(groups["priority"]["of"]) == ["0", "1", "2"]
    assert list(groups["prompt_tokens"]["of"]) == prompt_class_names()[:2]
    for grouping in groups.values():
        offered = sum(group["requests"]["offered"] for group in grouping["of"].values())
        assert offered == summary["requests"]["offered"]
        met = sum(group["goodput"]["met"] for group in grouping["of"].values())
        assert met == summary["goodput"]["met"]
        tokens = sum(group["output_tokens_per_s"] for group in grouping["of"].values())
        assert tokens == pytest.approx(summary["throughput"]["output_tokens_per_s"])


def test_statistics_of_a_group_are_those_of_its_requests_alone() -> None:
    rows = [(0.02 * n, 60, 30, 0, "ann" if n % 4 else "bo") for n in range(120)]
    Path("two.csv").write_text(own_csv(*rows, columns=COLUMNS))
    result = simulate(trace="two.csv", overrides=["engine.max_num_seqs=8"])
    table = result.requests
    mine = table[table["client_id"] == "bo"]
    group = result.summary["groups"]["client"]["of"]["bo"]
    ttft_s = (mine["first_token_s"] - mine["arrival_s"]).to_numpy()
    assert group["ttft_s"]["n"] == len(mine) == group["requests"]["finished"]
    assert group["ttft_s"]["p99"] == pytest.approx(np.percentile(ttft_s, 99))
    tokens = table.groupby("client_id")[["prompt_tokens", "output_tokens"]].sum().sum(axis=1).to_numpy(np.float64)
    assert result.summary["groups"]["client"]["jain_tokens"] == pytest.approx(jain(tokens))
    speed = table.assign(v=table["output_tokens"] / (table["finish_s"] - table["arrival_s"]))
    speeds = speed.groupby("client_id")["v"].mean().to_numpy(np.float64)
    assert result.summary["groups"]["client"]["jain_speed"] == pytest.approx(jain(speeds))


def test_without_two_groups_there_are_none() -> None:
    summary = simulate(overrides=[*CHAT, "workload.rate_per_s=20", "workload.num_requests=40"]).summary
    assert "groups" not in summary


def test_of_many_clients_the_largest_are_listed_and_all_count() -> None:
    rows = [(0.01 * n, 20, 4, 0, f"c{n if n > 50 else n % 7}") for n in range(200)]
    Path("many.csv").write_text(own_csv(*rows, columns=COLUMNS))
    clients = simulate(trace="many.csv").summary["groups"]["client"]
    assert len(clients["of"]) == MAX_GROUPS
    assert clients["left_out"] == 7 + 149 - MAX_GROUPS
    assert {f"c{n}" for n in range(7)} <= clients["of"].keys()
    assert 1 / 156 < clients["jain_tokens"] < 1


def test_classes_of_prompt_lengths_have_a_name_each() -> None:
    assert len(prompt_class_names()) == len(PROMPT_BOUNDS) + 1
    assert prompt_class_names()[1] == "257-1,024"
