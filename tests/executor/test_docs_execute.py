"""docs/execute.md names every option of ``batchscope execute`` and every file of its run folders."""

from __future__ import annotations

import re
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
    names = {path.name for path in Path("run").iterdir()}
    assert [name for name in sorted(names - known) if name not in TEXT] == []


@pytest.mark.usefixtures("in_empty_folder")
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    lengths = 'prompt = { dist = "fixed", value = 5 }\noutput = { dist = "fixed", value = 3 }\n'
    Path("run.toml").write_text(f'[workload]\ngenerator = "constant"\nrate_per_s = 50\nnum_requests = 2\n{lengths}')
    exec(code.replace("15m", "tiny"), {})
    assert capsys.readouterr().out.endswith(" 6\n")
    assert Path("runs/real/summary.json").exists()
