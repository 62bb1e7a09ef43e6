"""docs/execute.md names every option of ``batchscope execute`` and every file of its run folders."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from calibrate.execute_cli import execute
from tests.command import batchscope, settings

TEXT = (Path(__file__).resolve().parents[2] / "docs/execute.md").read_text(encoding="utf-8")
WORK = settings(
    "workload.generator=closed-loop",
    "workload.concurrency=2",
    "workload.num_requests=2",
    'workload.prompt={dist="fixed",value=5}',
    'workload.output={dist="fixed",value=3}',
    "sim.record=decisions",
)


def test_every_option_is_named() -> None:
    names = {name for option in execute.params for name in (*option.opts, *option.secondary_opts) if name[:2] == "--"}
    switches = {"--graphs", "--overlap", "--report", "--no-report"}  # the others of these pairs are
    assert [name for name in sorted(names - switches) if name not in TEXT] == []


@pytest.mark.usefixtures("in_empty_folder")
def test_every_file_is_named() -> None:
    ended = batchscope("execute", "--model", "tiny", "--device", "cpu", *WORK, "--out", "run")
    assert ended.exit_code == 0, ended.stderr
    known = {"run.toml", "digest.json", "report.html"}  # as in docs/reports.md
    assert [path.name for path in sorted(Path("run").iterdir()) if path.name not in known and path.name not in TEXT] == []
