"""What ``batchscope calibrate validate`` runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrate.validation.cases import read_cases
from calibrate.validation.compare import compare
from calibrate.validation.recorded import compare_run
from calibrate.validation.run_text import run_lines
from calibrate.validation.shipped import recipe_of
from calibrate.validation.text import by_engine_card_figure, left_lines, rows_table, summary_table
from policies.core.errors import TraceError, UserError, closest
from sim.config import load_config
from traces.imports.readers import FORMATS, read_served


def validate_set(name: str, data: str | None) -> str:
    """The table of a named set, from the folder of measured cases, or of one above it."""
    from calibrate.validation.sets import SETS

    if name not in SETS:
        raise UserError(f"--set {name}: known are {', '.join(SETS)}{closest(name, SETS)}")
    return "\n".join(SETS[name](Path() if name == "anchors" else data_folder(data)))


def data_folder(data: str | None) -> Path:
    """The folder that holds ``measured``, from --data or the environment variable BATCHSCOPE_DATA."""
    given = data or os.environ.get("BATCHSCOPE_DATA")
    if given is None:
        raise UserError("--data: name the folder of the measured cases, or set BATCHSCOPE_DATA (docs/validate.md)")
    for folder in (Path(given), Path(given).parent):
        if (folder / "measured").is_dir():
            return folder
    raise UserError(f"--data {given}: holds no folder 'measured' (docs/validate.md)")


def validate_files(paths: Sequence[str], *, vary_pool: bool) -> str:
    """Rows and summary of the cases of files."""
    cases = [case for path in paths for case in read_cases(Path(path))]
    if not cases:
        raise TraceError(f"{paths[0]}: holds no cases; one a line, see docs/validate.md")
    found = compare(cases, recipe_of, vary_pool=vary_pool)
    lines: list[str] = []
    if found.rows:
        groups = [*by_engine_card_figure(found.rows), ("all", list(found.rows))]
        lines = [*rows_table(found.rows), "", *summary_table("absolute error", groups)]
    return "\n".join([*lines, *left_lines(found)])


def validate_run(run: str, kind: str | None, config: str | None, *, part: int | None, fit_host: bool) -> str:
    """A recorded run against its simulation under a RUN.toml."""
    if kind is None:
        raise UserError(f"--run {run}: say what wrote it with --format, one of {', '.join(FORMATS)}")
    if config is None:
        raise UserError(f"--run {run}: name the RUN.toml of that server with --config: engine, model and hardware")
    served = read_served(Path(run), kind, part)
    tables = {name: table for name, table in _tables(config).items() if name != "workload"}
    return "\n".join(run_lines(served, compare_run(served, tables, fit_host=fit_host)))


def _tables(config: str) -> Mapping[str, Mapping[str, Any]]:
    from sim.config_toml import read_toml

    tables: dict[str, Any] = dict(read_toml(config))
    tables.setdefault("workload", {"generator": "closed-loop", "concurrency": 1, "num_requests": 1, **_ONE})
    return load_config(tables).to_dict()


_ONE = {"prompt": {"dist": "fixed", "value": 1}, "output": {"dist": "fixed", "value": 1}}
"""A configuration needs a workload; that of the recorded run takes its place."""
