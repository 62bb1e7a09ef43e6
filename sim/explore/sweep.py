"""``sweep``: many runs that differ in some keys, from a SWEEP.toml to a table; resumable, on many cores or machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sim.config_toml import toml_document
from sim.explore.journal import Journal
from sim.explore.point import Row, Task, run_key, run_task
from sim.explore.search import Search
from sim.explore.space import Settings
from sim.explore.sweep_result import PointResult, SweepResult
from sim.explore.sweepfile import SweepSpec, load_sweep
from sim.explore.workers import Runner, Where, workers
from sim.summary import VERSION

SweepProgress = Callable[[int, Row | None], None]
"""Called with the number of runs that are finished, those of earlier starts included, and the last one (None: at the
start)."""


def sweep(
    source: str | Path | Mapping[str, object] | SweepSpec,
    *,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    ray: str | None = None,
    dask: str | None = None,
    progress: SweepProgress | None = None,
) -> SweepResult:
    """Run every point of a sweep and return its table.

    ``source`` is the path of a SWEEP.toml (docs/sweep.md), or its tables as a dictionary; ``overrides`` are
    ``"section.key=value"`` over its base. ``jobs`` processes (by default one a core) run the points, or the Ray or Dask
    cluster at an address. With ``out`` each run is kept in that folder as soon as it is finished, and a sweep that is
    started again there goes on where it was; table, page and study are written at its end.

    Raises a UserError for a sweep that cannot be run. A point that cannot is a row with its message.
    """
    spec = source if isinstance(source, SweepSpec) else load_sweep(source, overrides)
    where = Where(jobs, ray, dask)
    where.check()
    points: list[Settings] = [] if spec.method == "search" else list(spec.points())
    with ExitStack() as stack:
        folder = None if out is None else Path(out)
        journal = None if folder is None else stack.enter_context(Journal(folder, base_text(spec)))
        keeper = _Keeper(spec, journal, progress)
        run = stack.enter_context(workers(where, keeper.total))
        if spec.method == "search":
            search = Search(spec, folder)
            for generation in search.generations():
                keeper.run(run, generation)
                search.tell([keeper.rows_of(settings) for settings in generation])
                points += generation
        else:
            keeper.run(run, points)
        results = [PointResult(number, settings, keeper.rows_of(settings)) for number, settings in enumerate(points)]
    return SweepResult(spec, results, folder)


class _Keeper:
    """The rows of a sweep, in the journal if there is one."""

    def __init__(self, spec: SweepSpec, journal: Journal | None, progress: SweepProgress | None) -> None:
        self.total = spec.num_points * spec.config.repeats
        self._spec, self._journal, self._progress = spec, journal, progress
        self._rows = {} if journal is None else journal.rows
        self._folder = str(Path.cwd())
        self._finished = 0

    def run(self, run: Runner[Task, Row], points: Iterable[Settings]) -> None:
        """Run what has not run yet."""
        wanted = [Task(self._spec.base, point, seed, self._folder) for point in points for seed in self._spec.seeds()]
        missing = {task.key: task for task in wanted if task.key not in self._rows}
        known = sum(task.key in self._rows for task in wanted)
        self._finished += known
        self._tell(None)
        if missing:
            for row in run(run_task, list(missing.values())):
                self._rows[row.key] = row
                if self._journal is not None:
                    self._journal.add(row)
                self._finished += 1
                self._tell(row)
        self._finished += len(wanted) - known - len(missing)  # a search may draw a point twice

    def rows_of(self, settings: Settings) -> tuple[Row, ...]:
        """The runs of a point, by seed."""
        return tuple(self._rows[run_key(settings, seed)] for seed in self._spec.seeds())

    def _tell(self, row: Row | None) -> None:
        if self._progress is not None:
            self._progress(self._finished, row)


def base_text(spec: SweepSpec) -> str:
    """What lies under every point, with the version of the program, its cost files and the content of a trace: rows of
    another one do not belong into the same table."""
    facts: dict[str, Any] = {"version": VERSION, "costs_sha256": _sha256_of_costs()}
    trace = spec.base.get("workload", {}).get("trace")
    if isinstance(trace, str) and Path(trace).is_file():
        from traces.workload.textfile import sha256_of

        facts["trace_sha256"] = sha256_of(trace)
    return toml_document({"batchscope": facts, **spec.base})


def _sha256_of_costs() -> str:
    """Of all shipped cost files together."""
    import hashlib

    from sim.costs.load import DATA_DIR

    whole = hashlib.sha256()
    for path in sorted(DATA_DIR.glob("*.json")):
        whole.update(path.read_bytes())
    return whole.hexdigest()
