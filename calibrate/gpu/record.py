"""What a check leaves behind: one JSON file a stage, written whole each time something is known."""

from __future__ import annotations

import datetime
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from policies.core.errors import ConfigError
from sim.runs import write_whole

COMPLETE, RUNNING, OVERRAN, FAILED = "complete", "running", "overran", "failed"
SCHEMA = "batchscope-gpu-check/1"
_SETTINGS = "check.json"


class Settings(NamedTuple):
    """What a check runs on, where its results go, and the seconds it may take in all."""

    device: str
    model: str
    out: Path
    deadline_s: float

    @property
    def on_cuda(self) -> bool:
        """Whether times are those of a card."""
        return self.device.startswith("cuda")


class StageRecord:
    """The file of a stage that runs. ``keep`` adds to what was found and writes it at once."""

    def __init__(self, folder: Path, stage: str, settings: Settings) -> None:
        self._path, self._began_s = _path(folder, stage), time.monotonic()
        self._content: dict[str, Any] = {
            "schema": SCHEMA,
            "stage": stage,
            "status": RUNNING,
            "seconds": 0.0,
            "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
            "error": "",
            "device": settings.device,
            "model": settings.model,
            "found": {},
        }
        self._write()

    @property
    def found(self) -> dict[str, Any]:
        """Everything kept so far."""
        found: dict[str, Any] = self._content["found"]
        return found

    def keep(self, **values: Any) -> None:
        """Add or replace what was found."""
        self.found.update(values)
        self._write()

    def end(self, status: str, error: str = "") -> None:
        """The stage is over."""
        self._content.update(status=status, error=error)
        self._write()

    def _write(self) -> None:
        self._content["seconds"] = round(time.monotonic() - self._began_s, 3)
        write_json(self._path, self._content)


def close_stage(settings: Settings, stage: str, status: str, error: str, seconds: float) -> None:
    """Say of a stage whose process is gone how it ended; what it had kept stays."""
    content = read_stage(settings.out, stage)
    if content is None:
        StageRecord(settings.out, stage, settings).end(status, error)
        return
    content.update(status=status, error=error, seconds=round(seconds, 3))
    write_json(_path(settings.out, stage), content)


def read_stage(folder: Path, stage: str) -> dict[str, Any] | None:
    """The file of a stage; None where there is none, or none that can be read."""
    try:
        content: dict[str, Any] = json.loads(_path(folder, stage).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


def found_in(folder: Path, stage: str) -> dict[str, Any]:
    """What a stage found, complete or not; empty where it did not run."""
    content = read_stage(folder, stage)
    return {} if content is None else dict(content["found"])


def is_complete(folder: Path, stage: str) -> bool:
    """Whether a stage needs no repetition."""
    content = read_stage(folder, stage)
    return content is not None and content["status"] == COMPLETE


def open_folder(settings: Settings, stages: list[str], *, resume: bool) -> None:
    """Make the folder of a check, or look whether it is one of the same device and model; without ``resume`` the
    results of the ``stages`` that are to run are removed. ConfigError where it cannot be used."""
    folder = settings.out
    before = recorded_settings(folder)
    if before is not None and before != (settings.device, settings.model):
        raise ConfigError(
            f"--out {folder}: holds a check of {before[1]} on {before[0]}, this one is of {settings.model} on"
            f" {settings.device}; choose another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stage in () if resume else stages:
            _path(folder, stage).unlink(missing_ok=True)
        write_json(folder / _SETTINGS, {"schema": SCHEMA, "device": settings.device, "model": settings.model})
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be written ({error.strerror}); choose another folder") from None


def discard(settings: Settings) -> None:
    """Remove the folder of a check that could not begin, unless there is more in it."""
    (settings.out / _SETTINGS).unlink(missing_ok=True)
    with suppress(OSError):
        settings.out.rmdir()


def recorded_settings(folder: Path) -> tuple[str, str] | None:
    """Device and model of the check in a folder; None where there is none."""
    try:
        content = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
        return str(content["device"]), str(content["model"])
    except (OSError, ValueError, KeyError):
        return None


def write_json(path: Path, content: Any) -> None:
    """Write a file that is there whole or not at all."""
    write_whole(path, json.dumps(content) + "\n")


def _path(folder: Path, stage: str) -> Path:
    return folder / f"{stage}.json"
