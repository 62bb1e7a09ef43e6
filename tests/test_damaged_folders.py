"""Run folders with something missing, cut off, or of another run: report, compare and explain say which file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from policies.core.errors import UserError
from sim import simulate
from sim.report.view import load_view
from tests.command import batchscope

WORKLOAD = {
    "generator": "poisson",
    "rate_per_s": 20,
    "num_requests": 30,
    "prompt": {"dist": "uniform", "low": 50, "high": 300},
    "output": {"dist": "exponential", "mean": 60, "cap": 200},
}
NAMES = ("summary.json", "digest.json", "requests.parquet", "steps.parquet", "stalls.parquet", "segments.parquet")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that a run can leave."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    engine = {"num_gpu_blocks": 100, "max_model_len": 1000}
    simulate({"workload": WORKLOAD, "engine": engine}, out=folder, record="tokens")
    digest = tmp_path_factory.mktemp("runs") / "digest"
    simulate({"workload": WORKLOAD, "engine": engine}, out=digest)
    shutil.copy(digest / "digest.json", folder)
    load_view(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return shutil.copytree(whole, tmp_path / "run")


def refused(folder: Path, name: str) -> str:
    """The message on a broken file, which it names."""
    with pytest.raises(UserError) as caught:
        load_view(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / name}: not as a run of this version writes it (")
    assert message.endswith("); run again")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "damage",
    [lambda content: content[: len(content) // 2], lambda content: b"", lambda content: b"\xff" * 300],
    ids=["cut off", "empty", "junk"],
)
def test_files_that_are_cut_off_or_junk(folder: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    path = folder / name
    path.write_bytes(damage(path.read_bytes()))
    refused(folder, name)


@pytest.mark.parametrize("name", ["summary.json", "digest.json"])
@pytest.mark.parametrize("value", [[], 3, {}])
def test_json_of_another_shape(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value))
    refused(folder, name)


@pytest.mark.parametrize("change", ["missing", "null", "text"])
def test_every_key_of_summary_and_digest_may_be_wrong(folder: Path, change: str) -> None:
    """A key that may be absent may go; nothing else passes for a run."""
    optional = {"version", "notes", "stability", "groups", "wall"}
    for name in ("summary.json", "digest.json"):
        content: dict[str, Any] = json.loads((folder / name).read_text())
        texts = {key for key, value in content.items() if isinstance(value, str)}
        for key in content:
            changed = dict(content)
            if change == "missing":
                if key in optional or (key.endswith("_s") and key != "duration_s"):
                    continue
                del changed[key]
            else:
                if key in ("version", "wall") or (change == "text" and key in texts):
                    continue
                changed[key] = None if change == "null" else "x"
            (folder / name).write_text(json.dumps(changed))
            refused(folder, name)
        (folder / name).write_text(json.dumps(content))
    load_view(folder)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("parquet")])
def test_tables_without_a_column_or_with_texts_for_numbers(folder: Path, name: str) -> None:
    table = pd.read_parquet(folder / name)
    number = next(column for column in table.columns if column.endswith("_s") or column == "id")
    table.drop(columns=number).to_parquet(folder / name)
    assert f"no column {number}" in refused(folder, name)
    table.astype({number: str}).to_parquet(folder / name)
    assert f"column {number} holds no numbers" in refused(folder, name)


@pytest.mark.parametrize(("name", "what"), [("requests.parquet", "requests"), ("steps.parquet", "steps")])
def test_tables_of_another_run_are_not_shown_as_this_one(folder: Path, name: str, what: str) -> None:
    table = pd.read_parquet(folder / name)
    table.head(len(table) // 2).to_parquet(folder / name)
    assert f" {what}, of which summary.json counts " in refused(folder, name)


def test_a_run_into_which_no_request_came_says_so(tmp_path: Path) -> None:
    simulate({"workload": WORKLOAD, "sim": {"max_time_s": 1e-6}}, out=tmp_path / "none")
    with pytest.raises(UserError, match="no request arrived before this run ended, so that there is nothing to show"):
        load_view(tmp_path / "none")


def test_all_three_commands_end_in_one_line(folder: Path) -> None:
    (folder / "steps.parquet").write_bytes(b"PAR1")
    for arguments in (("report", folder), ("explain", folder, "--request", 3), ("compare", folder, folder)):
        ended = batchscope(*arguments)
        assert (ended.exit_code, ended.stdout) == (2, "")
        assert ended.stderr.count("\n") == 1
        assert "steps.parquet: not as a run of this version writes it (no Parquet file, or cut off)" in ended.stderr
