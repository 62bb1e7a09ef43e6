"""Runs as tables: how figures are worded, and what a table says of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sim.wording import digits, percent, seconds
from tests.command import batchscope, chat, own_csv, settings


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows_of(*arguments: object) -> dict[str, str]:
    """Rows of the table by name, and the lines around it by their first word."""
    lines = batchscope("run", *arguments).stdout.splitlines()
    return {name.strip(): rest.strip() for line in lines for name, _, rest in [line.partition("  ")]}


@pytest.mark.parametrize(
    ("value", "words"), [(0, "0"), (999.4, "999"), (999.7, "1,000"), (0.12345, "0.123"), (1234567, "1,234,567")]
)
def test_digits(value: float, words: str) -> None:
    assert digits(value) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "0 %"), (2e-5, "< 0.1 %"), (0.4973, "49.7 %"), (0.99999, "> 99.9 %"), (0.9999999999999998, "100 %")],
)
def test_percent(share: float, words: str) -> None:
    assert percent(share) == words


@pytest.mark.parametrize(("value_s", "words"), [(0.0123, "12.3 ms"), (0.9999, "1 s"), (1300, "1,300 s")])
def test_seconds(value_s: float, words: str) -> None:
    assert seconds(value_s) == words


def test_a_run_that_keeps_up() -> None:
    rows = rows_of(*chat(2, 310, slo__ttft_s=0.5, slo__e2e_s=0.001))
    assert rows["keeps up"] == "yes"
    assert rows["requests in a step, mean"].endswith(" (of 256)")
    assert rows["limited by"] == "arrivals 100 %"
    assert rows["preemptions"] == "0"
    assert rows["TTFT p99"].split("  ")[0].endswith("ms")
    assert rows["TTFT p50"].split()[-1] == "310"
    assert (rows["TTFT <= 500 ms"], rows["E2E <= 1 ms"], rows["within all limits"]) == ("100 %", "0 %", "0 %")
    assert "WARNING" not in " ".join(rows)
    assert "decode-only steps between plans" not in rows


def test_a_run_that_does_not() -> None:
    rows = rows_of(*chat(12, 600), "--policy", "orca-max")
    assert rows["keeps up"].startswith("no: ")
    assert re.fullmatch(r"no: queue grows by \d[\d.]*/s", rows["keeps up"])
    shares = [int(part.split()[-2]) for part in rows["limited by"].split(", ")]
    assert rows["limited by"].startswith("kv_blocks ")
    assert sum(shares) in (99, 100, 101)


def test_short_runs_and_closed_loops_have_no_verdict() -> None:
    rows = rows_of(*chat(8, 30))
    assert rows["keeps up"] == "not enough data"
    assert "(n small)" in rows["TTFT p99"]
    assert "(n small)" not in rows["TTFT mean"]
    closed = ["workload.generator=closed-loop", 'workload.prompt={dist="fixed",value=9}']
    more = ['workload.output={dist="fixed",value=9}', "workload.num_requests=300", "workload.concurrency=2"]
    assert rows_of(*settings(*closed, *more))["keeps up"] == "closed loop"


def test_preemptions_are_named_with_their_price() -> None:
    small = {"engine__num_gpu_blocks": 60}
    recomputed = rows_of(*chat(8, 40, **small))["preemptions"]
    assert "by recompute (" in recomputed
    assert recomputed.endswith(" tokens again)")
    swapped = rows_of(*chat(8, 40, **small), "--policy", "vllm-0.6-swap")["preemptions"]
    assert "by swap (" in swapped
    assert swapped.endswith(" GB moved)")


def test_a_run_that_served_few_leads_with_a_warning() -> None:
    Path("own.csv").write_text(own_csv((0, 5000, 5), (1, 10, 5), (2, 5000, 5)))
    stdout = batchscope("run", "--trace", "own.csv").stdout
    assert stdout.startswith("WARNING: 2 of 3 requests were not served (prompt_too_long 2)\nvllm-0.11, ")


def test_a_number_of_samples_is_shown_where_it_is_another() -> None:
    """Requests of one token have no TPOT; a few of them are no news, many are."""
    from sim.cli.tables import comparison_table

    few = json.loads(batchscope("run", *chat(2, 310), "--json").stdout)
    many = few | {"tpot_s": few["tpot_s"] | {"n": 100}}
    row = next(line for line in comparison_table([few, many]).splitlines() if line.startswith("TPOT mean"))
    assert row.count("(n ") == 1
    assert row.endswith("(n 100)")
