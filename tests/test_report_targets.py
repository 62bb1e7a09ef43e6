"""Where pages go: never over a file that is none, never in the place of a device; and pairs that are none."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from policies.core.errors import UserError
from sim.runs import write_whole
from tests.command import batchscope, chat

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def test_a_page_takes_the_place_of_a_page_alone() -> None:
    assert batchscope("run", *chat(30, 20), "--out", "a", "--json").exit_code == 0
    Path("trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n")
    for arguments in (("report", "a"), ("compare", "a", "a")):
        ended = batchscope(*arguments, "--out", "trace.csv")
        assert (ended.exit_code, ended.stderr) == (2, "batchscope: trace.csv: exists and is no page; name a new file\n")
        assert batchscope(*arguments, "--out", "page.html").exit_code == 0
        assert batchscope(*arguments, "--out", "page.html").exit_code == 0
        assert batchscope(*arguments, "--out", "a").stderr == "batchscope: a: is a folder; name a file\n"
    assert Path("trace.csv").read_text() == "arrival_s,prompt_tokens,output_tokens\n"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, "a page")
    reader.join(10)
    assert read == ["a page"]
    assert pipe.is_fifo()


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be written .*; name a file that you may write"):
        write_whole(tmp_path / ("x" * 252), "text")
    assert list(tmp_path.iterdir()) == []


def test_requests_whose_whole_answers_differ_are_no_pairs() -> None:
    longer = [text.replace("high=500", "high=900") for text in chat(30, 20)]
    for folder, arguments in (("a", chat(30, 20)), ("b", longer)):
        assert batchscope("run", *arguments, "--out", folder, "--json").exit_code == 0
    ended = batchscope("compare", "a", "b")
    assert ended.exit_code == 2
    assert "the workloads differ: the whole answer of request 0 has " in ended.stderr
    assert " in b; compare runs with the same [workload] and seed, or add --unpaired" in ended.stderr
    assert batchscope("compare", "a", "b", "--unpaired").exit_code == 0
