"""What ``batchscope calibrate fit`` and ``import`` run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrate.dates import today
from calibrate.fit import Fit, fit_profile, fit_tables
from policies.catalog import card, model
from policies.core.errors import CostFileError
from sim.runs import write_whole

_NOISY = 0.1
"""Median error of the held-out steps beyond which a fit is said to be of no use."""
_ROWS = {
    "step": "step, held out, all",
    "step_decode": "step, held out, decode",
    "step_prefill": "step, held out, prefill",
    "step_chunk_on_context": "step, held out, chunk on cached tokens",
    "step_mixed": "step, held out, decode and prefill",
    "step_whole": "step, whole, decode and prefill",
    "linear_between_sizes": "linear term, between measured sizes",
    "decode_attention": "decode attention alone, all points",
    "prefill_attention": "prefill attention alone, all points",
}


def run_fit(
    data: str | None,
    model_name: str | None,
    hardware: str | None,
    out: str,
    tp: int | None = None,
    *,
    profile: str | None = None,
    report: str | None = None,
) -> str:
    """Fit a cost file, write it to ``out``, and return the table of its errors; ``report`` is a page of residuals.

    The points are those of a ``profile``, which says what model, card and ``tp`` it is of, or of the known tables in
    ``data``, the folder of the operator tables or the one above its ``profiles``.
    """
    if (data is None) == (profile is None):
        raise CostFileError("calibrate fit: give --profile FILE, or --data FOLDER of the known operator tables")
    _check_paths(profile, out, report)
    if profile is not None:
        found = _fit_file(Path(profile), model_name, hardware, tp)
    else:
        folder = tables_folder(str(data))
        found = fit_tables(model(model_name or "llama-2-7b"), card(hardware or "a100-80gb"), folder, tp or 1)
    # The report first: where it cannot be written, there is no cost file of a command that failed.
    if report is not None:
        from calibrate.residuals import write_report

        write_report(found, Path(report))
    write_json(found.cost_file, Path(out))
    return "\n".join([describe_fit(found.cost_file), *(f"written: {path}" for path in (out, report) if path)])


def _check_paths(profile: str | None, out: str, report: str | None) -> None:
    """CostFileError where one file would be written over another, or into no folder."""
    named: dict[Path, str] = {}
    for option, path in (("--profile", profile), ("--out", out), ("--report", report)):
        if path is None:
            continue
        if (first := named.setdefault(Path(path).resolve(), option)) != option:
            raise CostFileError(f"{option} {path}: is the file of {first}, too; choose another path")
        if option != "--profile" and not Path(path).absolute().parent.is_dir():
            raise CostFileError(f"{option} {path}: cannot be written (no such folder); choose another path")


def _fit_file(path: Path, model_name: str | None, hardware: str | None, tp: int | None) -> Fit:
    """What the profile is of may be said again, and must then agree."""
    from calibrate.profile_file import check_possible, read_profile

    profile = read_profile(path)
    for key, given, found in (
        ("--model", model_name, profile.model),
        ("--hardware", hardware, profile.card),
        ("--tp", tp, profile.tp),
    ):
        if given is not None and given != found:
            raise CostFileError(f"{path.name}: is a profile of {found!r}, not of {key} {given}; leave {key} out")
    device = card(profile.card)
    shape = model(profile.model).shard(profile.tp)
    check_possible(profile, path, shape, device)
    return fit_profile(profile, shape, device, name=path.name, date=today())


def tables_folder(data: str) -> Path:
    """The folder of the operator tables, or the ``profiles`` in it; CostFileError if it is none."""
    folder = Path(data)
    if (folder / "profiles").is_dir():
        folder = folder / "profiles"
    if not folder.is_dir():
        raise CostFileError(
            f"--data {data}: no such folder; name the folder of the operator tables (docs/calibrate.md)"
        )
    return folder


def run_import(
    tool: str, files: Sequence[str], model_name: str, hardware: str, tp: int, out: str, date: str | None = None
) -> str:
    """Write the profile that other tools' tables make, and say what it holds."""
    from calibrate.importing import TOOLS, import_profile
    from calibrate.profile import OPERATORS, Origin, ranges
    from calibrate.profile_file import write_profile

    said = TOOLS.get(tool)
    origin = Origin(said.origin, said.licence, date) if said is not None and date else None
    profile = import_profile(tool, [Path(file) for file in files], model(model_name).shard(tp), card(hardware), origin)
    write_profile(profile, Path(out))
    counts = {name: len(profile.of(name)) for name in OPERATORS if profile.of(name)}
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    lines = [f"{len(profile.rows):,} rows of {model_name} on {tp} x {hardware}: {shown}"]
    lines += [f"  {name}: {least:,} to {most:,}" for name, least, most in ranges(profile.rows)]
    return "\n".join([*lines, f"written: {out}"])


def write_json(content: dict[str, Any], path: Path) -> None:
    """Write JSON whole, lists of numbers on one line; UserError where it cannot be written."""
    write_whole(path, _joined_lists(json.dumps(content, indent=1)) + "\n")


def describe_fit(cost_file: dict[str, Any]) -> str:
    """The relative errors of a cost file by term, as a plain table."""
    lines = [f"{cost_file['name']} version {cost_file['version']}: relative error, %"]
    lines.append(f"{'':40}{'median':>8}{'p95':>8}{'max':>8}{'points':>8}")
    for key, title in _ROWS.items():
        row = cost_file["held_out"].get(key)
        if row is None:
            continue
        figures = "".join(f" {100 * row[name]:7.2f}" for name in ("median", "p95", "max"))
        lines.append(f"{title:40}{figures}{row['points']:8d}")
    # Without a point that was held out nobody knows what the file is worth.
    for kind in ("step", "step_decode", "step_prefill"):
        if cost_file["held_out"].get(kind) is None and not (kind != "step" and "step_whole" in cost_file["held_out"]):
            lines.append(f"{_ROWS[kind]:40}  no error is known: too few points to hold some out")
    step = cost_file["held_out"].get("step")
    if step is not None and step["median"] > _NOISY:
        lines.append("the step is off by more than is of use: measure again, longer, and while nothing else runs")
    return "\n".join(lines)


def _joined_lists(text: str) -> str:
    """Put the numbers of each list on one line: the tables have hundreds."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if inside:
            lines[-1] += (" " if lines[-1].endswith(",") else "") + line.strip()
        else:
            lines.append(line)
        inside = line.endswith("[") or (inside and not line.lstrip().startswith("]"))
    return "\n".join(lines)
