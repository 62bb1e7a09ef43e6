"""The file in which a sweep keeps each run as soon as it has finished: one JSON line each, only ever added to."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from policies.core.errors import UserError
from sim.explore.point import Row, row_of
from sim.runs import write_whole

ROWS_NAME = "points.jsonl"
BASE_NAME = "base.toml"
_SYNC_S = 1.0
"""Rows of this long may be lost where the machine itself fails; none where the program is killed."""


class Journal:
    """The rows of a sweep in a folder, of this start and of those before. A context manager.

    A line is written in one piece, so that a kill leaves whole lines and at most a torn last one, which is cut off.
    ``base`` is the text of what lies under every point: rows over another base are refused, and so is a folder that
    another sweep is writing into. Raises a UserError.
    """

    def __init__(self, folder: Path, base: str) -> None:
        self.rows: dict[str, Row] = {}
        self._folder = folder
        self._path = folder / ROWS_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _check_base(folder, base)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be written ({error.strerror}); name another folder") from None
        try:
            self._lock()
            self._read()
        except BaseException:
            os.close(self._file)
            raise
        self._synced_s = time.monotonic()

    def _lock(self) -> None:
        """A lock ends with the process that holds it, however that ends."""
        try:
            from fcntl import LOCK_EX, LOCK_NB, flock
        except ImportError:  # no such locks on this system
            return
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
        except OSError:
            raise UserError(f"--out {self._folder}: another sweep is writing into it; wait, or name another") from None

    def _read(self) -> None:
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.ftruncate(self._file, len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = row_of(json.loads(line))
            except (ValueError, TypeError):
                raise UserError(f"{self._path}: line {number} is no row of a sweep; remove that line") from None
            self.rows[row.key] = row

    def add(self, row: Row) -> None:
        """Keep a row."""
        self._write((json.dumps(row._asdict(), allow_nan=False) + "\n").encode())
        now_s = time.monotonic()
        if now_s - self._synced_s >= _SYNC_S:
            os.fsync(self._file)
            self._synced_s = now_s
        self.rows[row.key] = row

    def _write(self, line: bytes) -> None:
        """The whole line or nothing: a full disk may take a part of it, which a next line must not follow."""
        before = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) == len(line):
                return
            reason = "No space left on device"
        except OSError as error:
            reason = error.strerror or "cannot be written"
        os.ftruncate(self._file, before)
        raise UserError(
            f"{self._path}: {reason}; what has finished before is kept: make room, and the same command goes on"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        os.fsync(self._file)
        os.close(self._file)


def _check_base(folder: Path, base: str) -> None:
    """The folder is new, or a sweep over this base."""
    path = folder / BASE_NAME
    if path.is_file():
        if path.read_text(encoding="utf-8", errors="replace") != base:
            raise UserError(
                f"--out {folder}: holds a sweep over another base (see {path}); name another folder, or remove this one"
            )
        return
    if any(not one.name.startswith(BASE_NAME) for one in folder.iterdir()):
        raise UserError(f"--out {folder}: the folder is not empty and holds no sweep; name a new one")
    write_whole(path, base)
