"""[price]: what runs, summaries and tables say of cost, and only where a price is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import simulate
from tests.command import batchscope, chat

RUN = ["workload.generator=poisson", "workload.rate_per_s=5", "workload.num_requests=60"]
LENGTHS = ["workload.prompt={dist='fixed', value=50}", "workload.output={dist='fixed', value=20}"]


def test_cost_follows_from_price_time_and_tokens() -> None:
    summary = simulate(overrides=[*RUN, *LENGTHS, "price.a100-80gb=2.0"]).summary
    usd = 2.0 * summary["duration_s"] / 3600
    cost = summary["cost"]
    assert cost["usd_per_hour"] == 2.0
    assert cost["usd_per_million_output_tokens"] == pytest.approx(usd / (60 * 20) * 1e6)
    assert cost["usd_per_million_total_tokens"] == pytest.approx(usd / (60 * 70) * 1e6)
    assert cost["usd_per_request"] == pytest.approx(usd / 60)
    assert summary["config"]["price"] == {"a100-80gb": 2.0}


def test_a_group_of_cards_costs_all_of_them() -> None:
    group = ["model.name=llama-2-70b", "hardware.tp=4", "price.a100-80gb=2.0"]
    assert simulate(overrides=[*RUN, *LENGTHS, *group]).summary["cost"]["usd_per_hour"] == 8.0


def test_without_a_price_for_the_card_there_is_no_cost() -> None:
    assert "cost" not in simulate(overrides=[*RUN, *LENGTHS]).summary
    assert "cost" not in simulate(overrides=[*RUN, *LENGTHS, "price.h100-80gb=9"]).summary


@pytest.mark.usefixtures("in_empty_folder")
def test_table_and_page_have_the_cost() -> None:
    ended = batchscope("run", *chat(4, 100), "--set", "price.a100-80gb=1.5", "--out", "run")
    assert ended.exit_code == 0, ended.stderr
    assert "USD/million output tokens" in ended.stdout
    assert "USD for a million output tokens" in Path("run/report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("in_empty_folder")
@pytest.mark.parametrize(
    ("price", "expected"), [("a100-80=1", "did you mean 'a100-80gb'?"), ("a100-80gb=-1", "above 0")]
)
def test_mistakes_end_in_one_line(price: str, expected: str) -> None:
    ended = batchscope("run", *chat(4, 100), "--set", f"price.{price}")
    assert ended.exit_code == 2
    assert expected in ended.stderr
    assert ended.stderr.count("\n") == 1
