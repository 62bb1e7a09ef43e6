"""One run of one point of a sweep: a task that travels to a worker, and the row that comes back."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NamedTuple

from policies.core.errors import UserError
from sim.explore.space import Settings, canonical

FAILED = "user_error"
"""Status of a row whose settings cannot be run."""


class Task(NamedTuple):
    """A run: the tables under it, the settings of its point, the seed of its workload, and the folder from which
    relative paths are seen."""

    base: Mapping[str, Mapping[str, object]]
    settings: Settings
    seed: int
    folder: str

    @property
    def key(self) -> str:
        """The same for the same run."""
        return run_key(self.settings, self.seed)


class Row(NamedTuple):
    """What a run gave, in JSON types. ``status`` is that of its summary, or ``user_error``; ``message`` says why it is
    no success. ``stable`` is the stability verdict (None: none). Metrics without samples are absent."""

    settings: Settings
    seed: int
    status: str
    message: str
    stable: bool | None
    metrics: dict[str, float]

    @property
    def key(self) -> str:
        """That of its task."""
        return run_key(self.settings, self.seed)

    def __str__(self) -> str:
        return f"{canonical(self.settings)} seed {self.seed}: {self.status} {self.message}".rstrip()


def row_of(facts: Any) -> Row:
    """The row in parsed JSON; raises ValueError or TypeError for what is none."""
    row: Any = Row(**facts)
    whole = isinstance(row.seed, int) and isinstance(row.status, str) and isinstance(row.message, str)
    if not (whole and isinstance(row.settings, dict) and row.stable in (True, False, None)):
        raise ValueError("not the facts of a run")
    values = row.metrics.values() if isinstance(row.metrics, dict) else [None]
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise ValueError("a metric is a finite number")
    return Row(*row)


def run_key(settings: Settings, seed: int) -> str:
    """The same text for the same run of a sweep."""
    return f"{canonical(settings)}{seed}"


def run_task(task: Task) -> Row:
    """Run it; what is wrong with its settings becomes the message of its row."""
    from sim.api import prepare, run_setup
    from sim.config import load_config
    from sim.config_toml import toml_value
    from sim.explore.metrics import metrics_of

    _enter(task.folder)
    # A class from a file may print, and standard output belongs to whoever started the sweep. Threads share it.
    quiet = redirect_stdout(sys.stderr) if current_thread() is main_thread() else nullcontext()
    overrides = [f"{name}={toml_value(value)}" for name, value in task.settings.items()]
    try:
        with quiet:
            config = load_config(task.base, [*overrides, f"workload.seed={task.seed}"])
            result = run_setup(prepare(config))
    except UserError as error:
        return Row(task.settings, task.seed, FAILED, " ".join(str(error).split()), None, {})
    summary: dict[str, Any] = result.summary
    stable = summary.get("stability", {}).get("stable")
    return Row(task.settings, task.seed, result.status, result.message, stable, metrics_of(summary))


def _enter(folder: str) -> None:
    """Workers on other machines, or of a cluster that was started elsewhere, see relative paths from here, where there
    is such a folder."""
    if str(Path.cwd()) != folder:
        with suppress(OSError):
            os.chdir(folder)
