"""The table of policies and workloads: a row for each preset, and the page in docs is made by it."""

from __future__ import annotations

import datetime
from pathlib import Path

from tests.perf.policies_by_workloads import COLUMNS, TRAFFIC, Cell, cell, page, row

PAGE = Path(__file__).parents[1] / "docs" / "policies-by-workloads.md"


def test_a_row_has_the_figures_of_a_run() -> None:
    found = cell("vllm-0.11", TRAFFIC[0], 30)
    texts = row(found)
    assert len(texts) == len(COLUMNS)
    assert found.figures is not None
    assert texts[0] == "`vllm-0.11`"
    assert texts[1] == f"{found.figures['ttft_s']['p50']:.3g}"
    assert float(texts[3]) > 5.0


def test_answers_that_return_together_have_no_itl() -> None:
    assert row(cell("ft-static", TRAFFIC[0], 10))[3:5] == ["-", "-"]


def test_what_cannot_be_run_is_said() -> None:
    texts = row(Cell("some", "chat", None, "engine.max_model_len = 8192: too long"))
    assert texts[:2] == ["`some`", "engine.max_model_len = 8192: too long"]
    assert len(texts) == len(COLUMNS)


def test_the_page_in_docs_has_these_tables() -> None:
    text = PAGE.read_text(encoding="utf-8")
    empty = page([], datetime.date(2026, 1, 1)).splitlines()
    assert [line for line in empty if line.startswith(("#", "|"))] == [
        line for line in text.splitlines() if line.startswith(("#", "| preset", "| ---"))
    ]
    assert text.count("| `vllm-0.11` |") == len(TRAFFIC)
