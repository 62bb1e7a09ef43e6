"""The examples of the README and of docs/reports.md run, and the page names every verb and constant it explains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.cli.main import VERBS
from sim.report.page import SECTIONS
from tests.test_docs import blocks
from traces.metrics.digest import MAX_BINS
from traces.metrics.intervals import LEAST_SAMPLES, NUM_WINDOWS, STUDENT_T

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/reports.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    (toml,) = blocks(README, "toml")
    (example,) = blocks(README, "python")
    assert example.count("\n") <= 20
    Path("run.toml").write_text(toml, encoding="utf-8")
    exec(compile(example, "README.md", "exec"), {})
    assert "'p99'" in capsys.readouterr().out
    assert Path("swap.html").exists()


def test_the_example_of_the_page() -> None:
    (example,) = blocks(PAGE, "python")
    exec(compile(example, "docs/reports.md", "exec"), {})
    assert Path("swap.html").exists()
    assert Path("compare.html").exists()


def test_it_explains_what_there_is() -> None:
    for verb in ("demo", "run", "report", "compare", "explain"):
        assert verb in VERBS
        assert f"`batchscope {verb}" in PAGE
    assert re.findall(r"^\d\. \*\*(.*?)\*\*", PAGE, re.MULTILINE) == list(SECTIONS.values())
    assert f"{NUM_WINDOWS} windows" in PAGE
    assert f"{STUDENT_T} (Student's t" in PAGE
    few = [f"{LEAST_SAMPLES[name]:,}" for name in ("mean", "p50", "p99")]
    assert f"Fewer than {few[0]} samples for a mean, {few[1]} for a median or\n{few[2]} for a p99" in PAGE
    assert f"at most {MAX_BINS} intervals" in PAGE
