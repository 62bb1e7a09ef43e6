"""Every verb of the command line: its help, what it prints, and how it gets along with pipes and terminals."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from policies.presets import presets
from sim import progress
from sim.cli.main import VERBS, cli
from sim.config import SECTIONS
from sim.notes import NO_HOST_TERM
from tests.command import batchscope, chat

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden"


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sim.cli.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def every_command(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """Paths of a command and all below it."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from every_command(below, *path, name)


def test_every_verb_helps() -> None:
    paths = list(every_command(cli))
    assert {path[0] for path in paths if path} == VERBS.keys()
    for path in paths:
        for option in ("--help", "-h"):
            ended = batchscope(*path, option)
            assert (ended.exit_code, ended.stderr) == (0, ""), path
            assert ended.stdout.startswith(f"Usage: {' '.join(('batchscope', *path))} ")


def test_without_a_command_the_overview_is_shown() -> None:
    for path in ((), ("policies",), ("hardware",), ("calibrate",)):
        ended = batchscope(*path)
        assert (ended.exit_code, ended.stdout) == (2, "")
        assert ended.stderr.startswith(f"Usage: {' '.join(('batchscope', *path))} ")


def test_the_version() -> None:
    ended = batchscope("--version")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.startswith("batchscope, ")


def test_a_process_of_its_own_says_the_same() -> None:
    done = shell("run", "--trace", "there-is-no-such.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "batchscope: there-is-no-such.csv: no such file; give the path of a trace\n"
    done = shell("run", *chat(8, 5), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["requests"]["finished"] == 5


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m sim.cli.main policies show vllm-0.11 | head -c 10"
    pipe = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert pipe.stdout == "vllm-0.11:"
    assert pipe.stderr == ""


# -- what verbs print ----------------------------------------------------------------------------------------


def test_demo_shows_three_systems_side_by_side() -> None:
    ended = batchscope("demo")
    assert (ended.exit_code, ended.stderr) == (0, "")
    header = next(line for line in ended.stdout.splitlines() if "vllm-0.11" in line)
    assert re.split(r"  +", header.strip()) == ["static (ft-static)", "Orca (orca-max)", "paged (vllm-0.11)"]
    assert ended.stdout.count("1,000 of 1,000 finished") == 3
    notes = [line for line in ended.stdout.splitlines() if line.startswith("note: ")]
    assert len(notes) == len(set(notes))
    assert f"note: static, Orca: {NO_HOST_TERM}" in notes


def test_demo_as_json_and_its_order() -> None:
    static, orca, paged = json.loads(batchscope("demo", "--json").stdout)
    assert static["ttft_s"]["mean"] > orca["ttft_s"]["mean"] > paged["ttft_s"]["mean"]
    rates = [summary["throughput"]["output_tokens_per_s"] for summary in (static, orca, paged)]
    assert rates == sorted(rates)
    assert static["steps"]["slot_waste"] > 0.5
    assert paged["steps"]["slot_waste"] == 0.0


def test_keys_lists_every_key_with_default_and_meaning() -> None:
    everything = batchscope("keys").stdout
    blocks = everything.removesuffix("\n").split("\n\n")
    assert len(blocks) == len(SECTIONS)
    for block, (name, section) in zip(blocks, SECTIONS.items(), strict=True):
        title, *lines = block.splitlines()
        assert title == f"[{name}]"
        assert batchscope("keys", name).stdout == block + "\n"
        for key, line, about in zip(section.all_keys() or ["KEY"], lines[::2], lines[1::2], strict=True):
            assert line.startswith(f"  {name}.{key} = ")
            assert line.endswith(")") or key == "KEY"
            assert about.startswith("      ")
            assert about.endswith(".")
    assert "  workload.over_length = cut | reject  (default: \"cut\")\n" in everything
    assert "  slo.ttft_s = seconds > 0  (default: none)\n" in everything
    assert "  engine.block_size = whole number >= 1  (default: the preset's)\n" in everything
    assert batchscope("keys", "slow").stderr == (
        "batchscope: slow: unknown section; known are workload, engine, model, hardware, sim, slo, policy, price; "
        "did you mean 'slo'?\n"
    )
    assert "batchscope keys" in batchscope("run", "--help").stdout


def test_policies_list_and_show_every_preset() -> None:
    listed = batchscope("policies", "list").stdout.splitlines()[1:]
    assert [line.split()[0] for line in listed if line.startswith("  ")] == [preset.name for preset in presets()]
    as_json = json.loads(batchscope("policies", "list", "--json").stdout)
    assert [entry["name"] for entry in as_json] == [preset.name for preset in presets()]
    for preset in presets():
        shown = batchscope("policies", "show", preset.name)
        assert shown.exit_code == 0
        assert shown.stdout.startswith(f"{preset.name}: ")
        for key in preset.defaults:
            assert f"    {key} " in shown.stdout
        assert json.loads(batchscope("policies", "show", preset.name, "--json").stdout) in as_json


def test_short_helps_of_verbs_are_whole_and_every_option_has_help() -> None:
    import click

    from sim.cli.calibrate import calibrate
    from sim.cli.hardware import hardware
    from sim.cli.policies import policies

    for group in (policies, hardware, calibrate):
        assert "..." not in batchscope(str(group.name), "--help").stdout.replace("[ARGS]...", "")
        for command in group.commands.values():
            options = [option for option in command.params if isinstance(option, click.Option)]
            assert all(option.help for option in options), command.name


def test_conform_counts_steps_and_shows_the_first_difference(tmp_path: Path) -> None:
    log = GOLDEN / "v1_tight.0.11.2.jsonl.gz"
    ended = batchscope("policies", "conform", log)
    name, counts = ended.stdout.split()
    matched, total = counts.split("/")
    assert (ended.exit_code, name, matched) == (0, "v1_tight", total)

    lines = gzip.decompress(log.read_bytes()).decode().splitlines()
    step = next(i for i, line in enumerate(lines) if '"type":"step"' in line)
    changed = {**json.loads(lines[step]), "free": -1}
    other = tmp_path / "changed.jsonl"
    other.write_text("\n".join([*lines[:step], json.dumps(changed), *lines[step + 1 :]]) + "\n")
    both = batchscope("policies", "conform", log, other)
    assert both.exit_code == 1
    first, second, *difference = both.stdout.splitlines()
    assert first == f"v1_tight {total}/{total}"
    assert second == f"v1_tight {int(total) - 1}/{total}"
    assert difference[:2] == ["step t=0: field 'free' differs", "  expected free: -1"]


def test_hardware_lists_cards_and_prints_every_term_of_the_pool() -> None:
    listed = batchscope("hardware", "list").stdout
    assert "a100-80gb " in listed
    assert "llama-3-8b " in listed
    shown = batchscope("hardware", "show", "a100-80gb").stdout
    for term in ("usable memory", "- weights", "- activations", "- reserve", "= left for KV"):
        assert term in shown
    assert "= 7,393 blocks = 118,288 tokens" in shown
    without_costs = batchscope("hardware", "show", "l4-24gb", "--model", "llama-2-70b")
    assert without_costs.exit_code == 0
    assert "KV pool: none. llama-2-70b on l4-24gb leaves no room" in without_costs.stdout
    assert "cost model: roofline version 1, no measurement of this model on this card" in without_costs.stdout


# -- progress ------------------------------------------------------------------------------------------------


class Seconds:
    """A clock that is a quarter of a second later each time it is looked at."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.25
        return self.now_s


def test_short_runs_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "monotonic", lambda: 0.0)
    assert batchscope("run", *chat(8, 400), "--json").stderr == ""


def test_long_runs_write_plain_lines_to_a_pipe_and_keep_stdout_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "monotonic", Seconds())
    ended = batchscope("run", *chat(8, 8_000), "--json")
    assert ended.summary["requests"]["finished"] == 8_000
    lines = ended.stderr.splitlines()
    assert 1 <= len(lines) <= 4  # after one second, then every five
    assert all(" of 8,000 requests, " in line and line.endswith(" s left") for line in lines)
    assert "\r" not in ended.stderr
    assert "\x1b" not in ended.stderr


def _all_of(terminal: int) -> str:
    """What was written to the closed other side of a terminal, which hands it over in pieces."""
    pieces = []
    with suppress(OSError):  # how a terminal says that this was all
        while piece := os.read(terminal, 65_536):
            pieces.append(piece)
    os.close(terminal)
    return b"".join(pieces).decode()


def test_on_a_terminal_the_line_is_rewritten_in_place_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "monotonic", Seconds())
    ours, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream, progress.ProgressLine(1_000, "orca", stream) as line:
        assert stream.isatty()
        for ended in range(100, 1_001, 100):
            line(ended / 10, ended)
    written = _all_of(ours)
    start = "\r\x1b[K"
    assert "\n" not in written
    assert written.startswith(f"{start}orca: 400 of 1,000 requests, 40 s simulated, about ")
    assert f"{start}orca: 1,000 of 1,000 requests, 100 s simulated, about 0 s left" in written
    assert written.endswith(start)
    assert written.count(start) == 8


def test_the_line_is_cleared_when_a_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "monotonic", Seconds())
    ours, terminal = os.openpty()

    def fail() -> None:
        with os.fdopen(terminal, "w") as stream, progress.ProgressLine(10, "", stream) as line:
            for ended in range(1, 8):
                line(1.0, ended)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert _all_of(ours).endswith("\r\x1b[K")
