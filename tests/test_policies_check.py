"""``policies check``: a line a check, the first failure in words, and policies that other distributions bring along."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.command import batchscope, chat, settings
from tests.examples import shortest_prompt_first

EXAMPLE = Path(shortest_prompt_first.__file__)
CODE = EXAMPLE.read_text(encoding="utf-8")

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def check(code: str, *options: object) -> tuple[int, list[str]]:
    """Exit code and lines of the check of a class in a file of its own."""
    Path("mine.py").write_text(code, encoding="utf-8")
    ended = batchscope("policies", "check", "mine.py:ShortestPromptFirst", *options)
    return ended.exit_code, ended.stdout.splitlines()


def test_a_good_policy_passes_with_a_line_for_each_check() -> None:
    exit_code, lines = check(CODE)
    assert exit_code == 0
    assert [line.split()[0] for line in lines[:-2]] == ["ok"] * (len(lines) - 2)
    assert len(lines) - 2 >= 30
    assert lines[-1] == f"all {len(lines) - 2} checks hold"


def test_the_first_failure_is_told_with_the_step_and_the_fewest_requests() -> None:
    wrong = CODE.replace("min(row.prompt_tokens + row.request.max_tokens, ", "min(row.prompt_tokens, ")
    exit_code, lines = check(wrong)
    assert exit_code == 1
    failed = [line.split()[1] for line in lines if line.startswith("FAIL")]
    assert failed[0] == "room"
    first = next(place for place, line in enumerate(lines) if "the first of them, room:" in line)
    assert lines[first + 1] == (
        "  step 3 of 'alone' (one request): request 0 decodes its 13th token with 3 blocks (12 tokens);"
        " pass grants=self.decode.grant() to make_plan"
    )
    assert lines[first + 3].strip() == "request 0 at step 0: prompt 10, makes 9 of at most 9"


def test_its_own_parameters_and_a_preset_may_be_set() -> None:
    exit_code, lines = check(CODE, *settings(policy__ageing_tokens=0))
    assert exit_code == 1
    assert [line.split()[1] for line in lines if line.startswith("FAIL")] == ["no_starvation"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.py:Mine",), "there is no file nothing.py"),
        (("vllm-0.11",), "it is a preset; name FILE.py:CLASS or an entry point to check"),
        (("mine.py:ShortestPromptFirst", "--set", "policy.most=1"), "takes no such argument; it takes ageing_tokens"),
        (("mine.py:ShortestPromptFirst", "--preset", "vllm"), "unknown preset"),
    ],
)
def test_a_mistake_ends_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    Path("mine.py").write_text(CODE, encoding="utf-8")
    ended = batchscope("policies", "check", *arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


# -- other distributions ---------------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of site-packages with one distribution that brings a policy."""
    site = tmp_path_factory.mktemp("site-packages")
    install(site, "acme-schedulers", "acme_schedulers", CODE)
    found_first(site, monkeypatch)
    return site


def found_first(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports look there, and nothing of it is imported yet."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "acme_schedulers", raising=False)


def install(site: Path, distribution: str, module: str, code: str) -> None:
    """What pip leaves of a distribution of one module."""
    (site / f"{module}.py").write_text(code, encoding="utf-8")
    info = site / f"{module}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n", encoding="utf-8")
    entry = f"[batchscope.policies]\nshort-first = {module}:ShortestPromptFirst\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")


@pytest.mark.usefixtures("installed")
def test_a_policy_of_another_distribution_is_listed_run_and_checked() -> None:
    listed = batchscope("policies", "list").stdout.splitlines()
    assert "  short-first  acme-schedulers 1.2  acme_schedulers:ShortestPromptFirst" in listed
    for name in ("short-first", "acme-schedulers:short-first"):
        summary = batchscope("run", "--policy", name, *chat(8, 30), "--json").summary
        assert summary["requests"]["finished"] == 30
        assert summary["policy"] == "acme-schedulers:short-first"
        assert summary["preset"] == "vllm-0.11"
    table = batchscope("run", "--policy", "short-first", *chat(8, 30)).stdout
    assert table.startswith("acme-schedulers:short-first (parameters and KV memory of vllm-0.11), ")
    ended = batchscope("policies", "check", "short-first", *settings(policy__most=1))
    assert "__init__ of ShortestPromptFirst takes no such argument; it takes ageing_tokens" in ended.stderr


def test_without_any_the_list_says_nothing_of_them() -> None:
    assert "batchscope.policies" not in batchscope("policies", "list").stdout


def test_a_name_that_two_distributions_have(installed: Path) -> None:
    install(installed, "other", "other_schedulers", CODE)
    ended = batchscope("run", "--policy", "short-first", *chat(8, 5))
    assert ended.exit_code == 2
    assert "write acme-schedulers:short-first or other:short-first" in ended.stderr


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "acme_schedulers:ShortestPromptFirst of acme-schedulers 1.2 cannot be imported: ZeroDivisionError"),
        ("ShortestPromptFirst = 1", "is no policy; derive it from"),
    ],
)
def test_what_another_distribution_gets_wrong_is_one_line(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "acme-schedulers", "acme_schedulers", code)
    found_first(tmp_path, monkeypatch)
    ended = batchscope("run", "--policy", "short-first", *chat(8, 5))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_mistake_of_another_distribution_names_its_file(installed: Path) -> None:
    broken = CODE.replace("rejected: list[Finish] = []", "rejected: list[Finish] = [][1]")
    (installed / "acme_schedulers.py").write_text(broken, encoding="utf-8")
    ended = batchscope("run", "--policy", "short-first", *chat(8, 5))
    assert ended.exit_code == 2
    assert f"step 0: schedule fails at {installed}/acme_schedulers.py, line 23 with IndexError" in ended.stderr
