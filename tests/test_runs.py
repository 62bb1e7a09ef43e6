"""Folders of runs: the next free name, and nothing that is there already."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from policies.core.errors import UserError
from sim.config import EngineConfig, RunConfig, WorkloadConfig
from sim.runs import check_new, claim, make_new, make_next, next_folder, next_page

CONFIG = RunConfig(WorkloadConfig(trace="own.csv"), EngineConfig(preset="orca-max"))


pytestmark = pytest.mark.usefixtures("in_empty_folder")


@pytest.mark.parametrize(
    ("taken", "free"),
    [
        ([], "orca-max-1"),
        (["orca-max-1"], "orca-max-2"),
        (["orca-max-2"], "orca-max-1"),
        (["orca-max-1", "orca-max-2", "orca-max-4"], "orca-max-3"),
        ([f"orca-max-{number}" for number in range(1, 12)], "orca-max-12"),
        (["orca-max", "orca-max-01", "static-1"], "orca-max-1"),
    ],
)
def test_the_next_folder_has_the_first_free_number(taken: list[str], free: str) -> None:
    for name in taken:
        (Path("runs") / name).mkdir(parents=True)
    before = sorted(Path().rglob("*"))
    assert next_folder(CONFIG) == Path("runs") / free
    assert sorted(Path().rglob("*")) == before


def test_a_file_takes_a_name_too() -> None:
    Path("runs").mkdir()
    Path("runs/orca-max-1").touch()
    assert next_folder(CONFIG) == Path("runs/orca-max-2")


@pytest.mark.parametrize(("policy", "name"), [("mine.py:Mine", "Mine"), ("C:/my/policy.py:Other", "Other")])
def test_a_policy_from_a_file_names_the_folder(policy: str, name: str) -> None:
    config = CONFIG._replace(engine=EngineConfig(preset="orca-max", policy=policy))
    assert next_folder(config) == Path("runs") / f"{name}-1"


def test_a_new_folder_is_made_with_those_above_it_and_an_empty_one_is_taken() -> None:
    folder = Path("deep/er/run")
    check_new(folder)
    assert not Path("deep").exists()
    assert make_new(folder) == folder
    assert make_new(folder) == folder
    assert folder.is_dir()


def test_nothing_that_is_there_is_written_over() -> None:
    Path("used").mkdir()
    Path("used/notes.txt").write_text("mine")
    for check in (check_new, make_new):
        with pytest.raises(UserError, match=r"^--out used: the folder is not empty; name a new one$"):
            check(Path("used"))
        with pytest.raises(UserError, match=r"^--out used/notes\.txt: is a file; name a new folder$"):
            check(Path("used/notes.txt"))
    with pytest.raises(UserError, match=r"^--out used/notes\.txt/run: cannot be created"):
        make_new(Path("used/notes.txt/run"))
    assert [path.read_text() for path in Path("used").iterdir()] == ["mine"]


def test_runs_that_start_at_once_get_folders_of_their_own() -> None:
    with ThreadPoolExecutor(16) as threads:
        folders = list(threads.map(lambda number: make_next(CONFIG), range(64)))
    assert sorted(folders) == sorted(Path("runs") / f"orca-max-{number}" for number in range(1, 65))
    assert all(folder.is_dir() for folder in folders)


def test_a_folder_that_another_run_has_claimed_is_not_taken() -> None:
    claim(make_new(Path("mine")), "a = 1\n")
    with pytest.raises(UserError, match=r"^--out mine: the folder is not empty; name a new one$"):
        claim(Path("mine"), "a = 2\n")
    assert Path("mine/run.toml").read_text() == "a = 1\n"


def test_a_file_in_the_place_of_the_runs_is_told() -> None:
    Path("runs").touch()
    with pytest.raises(UserError, match=r"^runs: is a file; name a folder with --out$"):
        make_next(CONFIG)


@pytest.mark.usefixtures("in_empty_folder")
def test_the_next_page_has_the_first_free_number() -> None:
    assert next_page("claims") == Path("runs/claims-1.html")
    Path("runs/claims-1.html").touch()
    assert next_page("claims") == Path("runs/claims-2.html")


@pytest.mark.usefixtures("in_empty_folder")
def test_no_page_goes_into_a_file() -> None:
    Path("runs").touch()
    with pytest.raises(UserError, match="runs: is a file; name a page with --out"):
        next_page("claims")
