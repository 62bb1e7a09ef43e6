"""Folders of runs: where they go when nobody says (``runs/PRESET-N``), and that none is written over, not even by
runs that start at the same moment."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path

from policies.core.errors import UserError
from sim.config import RunConfig

RUNS = Path("runs")


def next_folder(config: RunConfig) -> Path:
    """The first folder of that pattern that does not exist yet; nothing is created."""
    name = config.engine.preset
    if config.engine.policy is not None:
        name = config.engine.policy.rpartition(":")[2]
    return next(folder for number in count(1) if not (folder := RUNS / f"{name}-{number}").exists())


def make_next(config: RunConfig) -> Path:
    """Create the first folder of that pattern that nobody has. Raises a UserError."""
    while True:
        folder = next_folder(config)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError:
            if not folder.parent.is_dir():
                raise UserError(f"{RUNS}: is a file; name a folder with --out") from None
        except OSError as error:
            raise _unusable(folder, error) from None
        else:
            return folder


def next_page(verb: str) -> Path:
    """The first of ``runs/VERB-1.html``, ``runs/VERB-2.html``, ... that does not exist yet; their folder is made.
    Raises a UserError."""
    try:
        RUNS.mkdir(exist_ok=True)
    except FileExistsError:
        raise UserError(f"{RUNS}: is a file; name a page with --out") from None
    except OSError as error:
        raise _unusable(RUNS, error) from None
    return next(page for number in count(1) if not (page := RUNS / f"{verb}-{number}.html").exists())


def claim(folder: Path, run_toml: str) -> None:
    """Write ``run.toml`` into a folder, by which a run makes it its own. Raises a UserError if another run has."""
    try:
        with (folder / "run.toml").open("x", encoding="utf-8") as stream:
            stream.write(run_toml)
    except FileExistsError:
        raise _not_empty(folder) from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that has its name only when it is complete; a device or pipe is written to as it is. Text is UTF-8.
    Raises a UserError where there is no such folder, or a folder of that name."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}; make it, or name a file in another one")
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):  # there may be none
            part.unlink()
        raise UserError(f"{path}: cannot be written ({error.strerror}); name a file that you may write") from None


def remove(folder: Path) -> None:
    """Remove the files, and the folder, of a run whose figures are worth nothing."""
    for path in folder.iterdir():
        path.unlink()
    with suppress(OSError):  # a link to a folder, say
        folder.rmdir()


def check_new(folder: Path) -> None:
    """Raise a UserError unless ``folder`` does not exist or is empty; creates nothing."""
    try:
        if not folder.exists():
            return
        if not folder.is_dir():
            raise UserError(f"--out {folder}: is a file; name a new folder")
        if any(folder.iterdir()):
            raise _not_empty(folder)
    except OSError as error:
        raise _unusable(folder, error) from None


def make_new(folder: Path) -> Path:
    """Create an empty folder for a record, with the folders above it. Raises a UserError."""
    check_new(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from None
    return folder


def _not_empty(folder: Path) -> UserError:
    return UserError(f"--out {folder}: the folder is not empty; name a new one")


def _unusable(folder: Path, error: OSError) -> UserError:
    return UserError(f"--out {folder}: cannot be created ({error.strerror}); name a folder that you may write")
