"""Classes from files that leave the program, never come back, or print: one line, an exit code, clean JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.core.errors import UserError
from policies.kit.hang import ends_hangs
from policies.kit.own import own_kit
from policies.kit.runner import run_checks
from tests.command import batchscope, chat

pytestmark = pytest.mark.usefixtures("in_empty_folder")

SOURCE = """
import sys
from policies.systems.token_budget import TokenBudget

class Leaves(TokenBudget):
    def schedule(self, now_s):
        sys.exit(0)

class LeavesAtOnce(TokenBudget):
    def __init__(self, kv, **more):
        raise SystemExit

class Hangs(TokenBudget):
    def schedule(self, now_s):
        while True:
            pass

class Prints(TokenBudget):
    def schedule(self, now_s):
        print("a plan")
        return super().schedule(now_s)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [("Leaves", "step 0: schedule fails at own.py, line 7 with SystemExit: 0"), ("LeavesAtOnce", "__init__ fails at ")],
)
def test_a_class_that_leaves_the_program_has_failed(name: str, message: str) -> None:
    Path("own.py").write_text(SOURCE)
    ended = batchscope("run", *chat(5, 5), "--policy", f"own.py:{name}", "--json")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert batchscope("policies", "check", f"own.py:{name}").exit_code in (1, 2)


def test_a_file_that_leaves_the_program_has_failed() -> None:
    Path("own.py").write_text("import sys\nsys.exit(0)\n")
    for verb in (("run", *chat(5, 5), "--json", "--policy"), ("policies", "check")):
        ended = batchscope(*verb, "own.py:Any")
        assert (ended.exit_code, ended.stdout) == (2, "")
        assert "own.py, line 2 fails with SystemExit: 0" in ended.stderr


def test_files_that_are_no_source() -> None:
    Path("own.py").write_bytes(b"x = 1\0")
    assert "own.py fails with SyntaxError: source code string" in batchscope("policies", "check", "own.py:Any").stderr
    Path("other_source.py").write_text("\n\nx = (\n")
    Path("own.py").write_text(
        "from pathlib import Path\nexec(compile(Path('other_source.py').read_text(), 'other_source.py', 'exec'))\n"
    )
    assert "own.py, line 2 fails with SyntaxError: " in batchscope("policies", "check", "own.py:Any").stderr


def test_a_call_that_never_comes_back_ends_the_check() -> None:
    Path("own.py").write_text(SOURCE)
    kit = own_kit("own.py:Hangs", "vllm-0.11", {}, {}, chunked=False, deliver_at_batch_end=False)
    said: list[object] = []
    with (
        pytest.raises(UserError, match=r"after 0\.1 s it is in schedule \(own\.py, line 1[56]\); leave the loop"),
        ends_hangs("own.py:Hangs", 0.1),
    ):
        run_checks(kit, said.append)


def test_what_a_class_prints_does_not_get_into_the_json() -> None:
    Path("own.py").write_text("print('imported')\n" + SOURCE)
    ended = batchscope("run", *chat(5, 5), "--policy", "own.py:Prints", "--json")
    assert ended.exit_code == 0
    assert json.loads(ended.stdout)["policy"] == "own.py:Prints"
    assert "a plan" in ended.stderr
    assert "imported" in ended.stderr
