"""Runs ``batchscope`` in this process, and the workloads that several tests give it."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from sim.cli.main import main


class Ended(NamedTuple):
    """What a command left behind."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        """The JSON on stdout."""
        parsed: dict[str, Any] = json.loads(self.stdout)
        return parsed


def batchscope(*arguments: object) -> Ended:
    """Run the command line as a shell would; anything but a SystemExit comes through."""
    stdout, stderr = io.StringIO(), io.StringIO()
    exit_code: object = 0
    argv = ["batchscope", *map(str, arguments)]
    with patch.object(sys, "argv", argv), redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main()
        except SystemExit as end:
            exit_code = end.code
    assert isinstance(exit_code, int)
    return Ended(exit_code, stdout.getvalue(), stderr.getvalue())


def settings(*keys: str, **more: object) -> list[str]:
    """``--set`` options; ``section__key=value`` as keyword arguments."""
    named = [f"{name.replace('__', '.')}={_toml(value)}" for name, value in more.items()]
    return [part for key in (*keys, *named) for part in ("--set", key)]


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


CHAT = (
    "workload.generator=poisson",
    'workload.prompt={dist="uniform",low=50,high=200}',
    'workload.output={dist="uniform",low=100,high=500}',
)
"""Lengths of the chat workload P8; rate and number are still to be given."""


def chat(rate_per_s: float, num_requests: int, **more: object) -> list[str]:
    """Options of a chat workload."""
    return settings(*CHAT, workload__rate_per_s=rate_per_s, workload__num_requests=num_requests, **more)


def own_csv(*rows: tuple[object, ...], columns: str = "arrival_s,prompt_tokens,output_tokens") -> str:
    """A trace in our own format."""
    return "\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n"


OWN = own_csv((0, 10, 5), (1, 20, 6))
TRACE = ("--trace", "own.csv")
POSITIVE = "give a whole number of at least 1"


def message_of(*arguments: object, files: dict[str, str | bytes] | None = None) -> str:
    """The one line that a mistake ends in, without the program's name; checks everything else about it."""
    for name, content in ({"own.csv": OWN} if files is None else files).items():
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    before = sorted(Path().rglob("*"))
    ended = batchscope(*arguments)
    assert (ended.exit_code, ended.stdout) == (2, ""), ended
    assert sorted(Path().rglob("*")) == before
    assert ended.stderr.endswith("\n")
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith("batchscope: ")
    return ended.stderr.removeprefix("batchscope: ").removesuffix("\n")
