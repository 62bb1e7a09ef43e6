"""What each target installs, as ``make --dry-run`` tells it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def planned(target: str, venv: Path) -> list[str]:
    """The commands that make would run for ``target``."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make here")
    command = [make, "--no-print-directory", "--dry-run", target, f"VENV={venv}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def place(lines: list[str], words: str) -> int:
    """Where ``words`` first stand."""
    return next(number for number, line in enumerate(lines) if words in line)


def test_demo_says_that_it_installs_and_leaves_the_development_tools_out(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    lines = planned("demo", venv)
    said = place(lines, f'echo "installing into {venv} (about a minute)"')
    assert said < place(lines, "-m venv") < place(lines, "--editable .") < place(lines, "/batchscope demo")
    assert not any("[dev]" in line for line in lines)


def test_test_adds_the_development_tools(tmp_path: Path) -> None:
    lines = planned("test", tmp_path / "venv")
    assert place(lines, "--editable .") < place(lines, "'.[dev]'") < place(lines, "-m pytest")


def test_the_executor_adds_torch_before_all_that_needs_it(tmp_path: Path) -> None:
    lines = planned("test-executor", tmp_path / "venv")
    assert place(lines, "'.[dev]'") < place(lines, "constraints.txt torch") < place(lines, "'.[dev,gpu,gguf]'")
    assert place(lines, "'.[dev,gpu,gguf]'") < place(lines, "-m pytest")


def test_later_calls_install_nothing(tmp_path: Path) -> None:
    for stamp in (".installed", ".installed-dev"):
        (tmp_path / stamp).touch()
    assert planned("demo", tmp_path) == [f"{tmp_path}/bin/batchscope demo"]
    assert planned("test", tmp_path) == [f"{tmp_path}/bin/python -m pytest -q -n 2"]
