"""Values from files of other tools: what is missing or of the wrong kind is a TraceError that names file and place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from policies.core.errors import TraceError
from policies.json_text import read_json


def load(path: Path) -> Any:
    """The value in a JSON file."""
    try:
        return read_json(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); name the file of the results") from None
    except ValueError as error:
        raise TraceError(f"{path}: not JSON ({error}); name the file as the tool wrote it") from None


def lines_of(path: Path) -> list[str]:
    """The lines of a text file."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise TraceError(f"{path}: cannot be read ({reason}); name the file of the results") from None


class Fields:
    """The keys of one object of a file, ``where`` in it."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise TraceError(f"{where}: not an object with keys; name the file as the tool wrote it")
        self._data = data
        self.where = where

    def get(self, key: str) -> Any:
        """A value, or None."""
        return self._data.get(key)

    def number(self, *keys: str) -> float:
        """The number of at least 0 under the first of ``keys`` that has one."""
        for key in keys:
            value = self._data.get(key)
            if value is not None:
                return self._checked(key, value)
        raise TraceError(f"{self.where}: '{keys[0]}' is missing; save the results of each request, too")

    def optional(self, *keys: str) -> float | None:
        """The same; None where there is none."""
        return self.number(*keys) if any(self._data.get(key) is not None for key in keys) else None

    def count(self, *keys: str) -> int:
        """A number of tokens."""
        return round(self.number(*keys))

    def list(self, key: str) -> Sequence[Any]:
        """A list."""
        value = self._data.get(key)
        if not isinstance(value, list):
            raise TraceError(f"{self.where}: '{key}' is missing or no list; save the results of each request, too")
        return value

    def numbers(self, key: str) -> Sequence[float]:
        """A list of numbers of at least 0."""
        return [self._checked(f"{key}[{i}]", value) for i, value in enumerate(self.list(key))]

    def inner(self, key: str) -> Fields:
        """An object under a key."""
        return Fields(self._data.get(key), f"{self.where}, {key}")

    def _checked(self, key: str, value: Any) -> float:
        number = value
        if isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                number = None
        is_number = isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < float("inf")
        if not is_number:
            raise TraceError(f"{self.where}: '{key}' is {value!r}; it must be a number >= 0")
        return float(number)
