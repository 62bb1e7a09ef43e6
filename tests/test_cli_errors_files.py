"""What a user reads after a mistake in a RUN.toml, a cost file, a folder or the command: one line, exit code 2."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.cli.main import VERBS
from sim.costs.load import shipped
from tests.command import OWN, POSITIVE, TRACE, batchscope, message_of, settings


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- RUN.toml -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("workload = 3\n", "workload = 3: this is a table; write [workload] or --set workload.KEY=VALUE"),
        ('[workload]\ntrace = "own.csv"\nlimit = 2020-01-01\n', f"workload.limit = 2020-01-01: {POSITIVE}"),
        (b"\xff\xfe", "run.toml: not a text file in UTF-8; give a RUN.toml"),
    ],
)
def test_run_toml(content: str | bytes, expected: str) -> None:
    assert message_of("run", "run.toml", files={"run.toml": content, "own.csv": OWN}) == expected


def test_run_toml_that_is_no_toml() -> None:
    twice = "[engine]\nmax_num_seqs = 3\nmax_num_seqs = 4\n"
    said = message_of("run", "run.toml", files={"run.toml": twice})
    # What stands between is the parser's.
    assert said.startswith("run.toml: not valid TOML: ")
    assert said.endswith("(at line 3, column 17); mend it")
    assert message_of("run", "none.toml") == (
        "none.toml: cannot be read (No such file or directory); give the path of a RUN.toml"
    )
    a_trace = message_of("run", "own.csv", files={"own.csv": OWN})
    assert a_trace.startswith("own.csv: not valid TOML: ")
    assert a_trace.endswith("; give a RUN.toml (a trace goes to --trace)")


# -- cost files ----------------------------------------------------------------------------------------------

SHIPPED = Path(__file__).resolve().parent.parent / "sim/costs/data/a100-80gb_llama-2-7b.json"


def _without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.pop(key)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_without("schema"), "key 'schema' is missing; fit the file again"),
        (_without("terms"), "key 'terms.linear.num_tokens' is missing; fit the file again"),
        (
            lambda content: content.update(card="h100-80gb"),
            "its card is 'h100-80gb', not 'a100-80gb'; use a file that matches",
        ),
        (
            lambda content: content.update(model="x"),
            "its model is 'x', not 'llama-2-7b'; use a file that matches",
        ),
        (
            lambda content: content["terms"]["head"].update(seconds=["x"]),
            "num_rows and seconds of 'terms.head' must be lists of one length",
        ),
        (
            lambda content: content["terms"]["swap"].update(copy_s=-1),
            "'terms.swap.copy_s' is -1; it must be a number >= 0",
        ),
    ],
)
def test_cost_files(change: Callable[[dict[str, Any]], object], expected: str) -> None:
    content = json.loads(SHIPPED.read_text())
    change(content)
    files: dict[str, str | bytes] = {"own.csv": OWN, "costs.json": json.dumps(content)}
    said = message_of("run", *TRACE, *settings("hardware.cost_model=costs.json"), files=files)
    assert said == f"costs.json: {expected}"


def test_cost_files_that_are_none() -> None:
    assert message_of("run", *TRACE, *settings("hardware.cost_model=none.json")) == (
        "none.json: cannot be read (No such file or directory); name a cost file"
    )
    assert message_of("run", *TRACE, *settings("hardware.cost_model=own.csv")) == (
        "own.csv: not JSON (Expecting value: line 1 column 1 (char 0)); write it with `batchscope calibrate fit`"
    )
    assert message_of("run", *TRACE, "--hardware", "l4-24gb", *settings("hardware.cost_model=calibrated")) == (
        f"no cost file is shipped for llama-2-7b on l4-24gb (shipped: {', '.join(shipped())}); set"
        ' hardware.cost_model = "roofline", or to a file that `batchscope calibrate fit` wrote'
    )
    assert message_of("hardware", "show", "a100-80gb", "--cost-model", "own.csv").startswith(
        "own.csv: not JSON ("
    )


def test_a_cost_file_without_a_held_out_error_is_used_and_says_none() -> None:
    content = json.loads(SHIPPED.read_text()) | {"held_out": {}}
    Path("costs.json").write_text(json.dumps(content))
    Path("own.csv").write_text(OWN)
    ended = batchscope("run", *TRACE, "--json", *settings("hardware.cost_model=costs.json"))
    assert ended.exit_code == 0
    assert "error" not in ended.summary["cost_model"]


# -- folders -------------------------------------------------------------------------------------------------


def test_folders_that_cannot_be_written() -> None:
    Path("file").touch()
    assert message_of("run", *TRACE, "--out", "file") == "--out file: is a file; name a new folder"
    assert message_of("run", *TRACE, "--out", "file/below") == (
        "--out file/below: cannot be created (Not a directory); name a folder that you may write"
    )
    assert message_of("run", *TRACE, "--out", "") == "--out .: the folder is not empty; name a new one"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_the_right_to_write() -> None:
    Path("closed").mkdir(mode=0o500)
    assert message_of("run", *TRACE, "--out", "closed/run") == (
        "--out closed/run: cannot be created (Permission denied); name a folder that you may write"
    )


# -- the command itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("rum",),
            f"unknown command 'rum'; known are {', '.join(VERBS)}; did you mean 'run'?; "
            "see 'batchscope --help'",
        ),
        (
            ("policies", "lst"),
            "unknown command 'lst'; known are check, conform, list, record, show; did you mean 'list'?; "
            "see 'batchscope policies --help'",
        ),
        (("run", "a.toml", "b.toml"), "Got unexpected extra argument (b.toml); see 'batchscope run --help'"),
        (("policies", "show"), "Missing argument 'NAME'; see 'batchscope policies show --help'"),
        (("policies", "show", "vllm-06"), "engine.preset = 'vllm-06': unknown preset; did you mean 'vllm-0.6'?"),
        (("policies", "conform"), "Missing argument 'LOG...'; see 'batchscope policies conform --help'"),
        (
            ("policies", "conform", "none.jsonl"),
            "none.jsonl: cannot be read (No such file or directory); give the path of a decision log",
        ),
        (("policies", "conform", "."), ".: cannot be read (Is a directory); give the path of a decision log"),
        (
            ("policies", "conform", "own.csv"),
            "own.csv:1: not a JSON object (Expecting value: line 1 column 1 (char 0)); give a decision log",
        ),
        (("hardware", "show", "a100"), "unknown card 'a100'; did you mean 'a100-80gb'?"),
        (
            ("hardware", "show", "a100-80gb", "--max-num-seqs", "0"),
            "Invalid value for '--max-num-seqs': 0 is not in the range x>=1; see 'batchscope hardware show --help'",
        ),
        (
            ("calibrate", "fit", "--out", "x.json"),
            "calibrate fit: give --profile FILE, or --data FOLDER of the known operator tables",
        ),
        (
            ("calibrate", "fit", "--data", "none", "--out", "x.json"),
            "--data none: no such folder; name the folder of the operator tables (docs/calibrate.md)",
        ),
    ],
)
def test_commands(arguments: tuple[str, ...], expected: str) -> None:
    assert message_of(*arguments, files={"own.csv": OWN}) == expected


def test_an_unknown_option_names_the_closest() -> None:
    said = message_of("run", "--jsn")
    assert said.startswith("No such option '--jsn'")
    assert said.endswith("; see 'batchscope run --help'")
    assert "'--json'" in said
    # Dashes alone make no two options alike.
    assert message_of("run", "--gpu", "h100-80gb") == "No such option '--gpu'; see 'batchscope run --help'"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
        ("self.kv.pool.take(10**9)", "ContractError: 1000000000 KV blocks asked for, "),
    ],
)
def test_an_error_in_a_class_from_a_file_names_its_line(body: str, error: str) -> None:
    code = (
        "from policies.systems.token_budget import TokenBudget\n\n\nclass Mine(TokenBudget):\n"
        f"    def schedule(self, now_s):\n        {body}\n"
    )
    files: dict[str, str | bytes] = {"own.csv": OWN, "mine.py": code}
    said = message_of("run", *TRACE, "--policy", "mine.py:Mine", "--json", files=files)
    assert said.startswith(f"engine.policy = 'mine.py:Mine': step 0: schedule fails at mine.py, line 6 with {error}")
