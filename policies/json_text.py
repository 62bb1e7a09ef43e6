"""JSON that a user wrote or got from elsewhere: whatever is wrong with it is a ValueError in a few words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from policies.core.errors import UserError

T = TypeVar("T")


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises ValueError also where Python's own reader gives up on text of the right form: brackets nested thousands deep,
    numbers of thousands of digits.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise ValueError("brackets are nested too deep") from None
    except ValueError:
        raise ValueError("a number has thousands of digits") from None


def read_json(path: Path) -> Any:
    """The value in a JSON file, in UTF-8 with or without a byte order mark. Raises OSError and ValueError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("not a text in UTF-8") from None
    return parse_json(text)


def log_rows(path: Path | str, what: str, read: Callable[[Any], T]) -> Iterator[tuple[int, T]]:
    """Number of each line of a log that a run writes, and what ``read`` makes of its value; the last line may be cut
    off by a kill, and is left out then. UserError for one that ``read`` cannot read: it is no ``what``."""
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        for number, text in enumerate(lines, 1):
            if not text.endswith("\n"):
                return
            try:
                row = read(parse_json(text))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(f"{path}, line {number}: no {what} ({error}); run again") from None
            yield number, row


def log_lines(path: Path | str, what: str) -> Iterator[tuple[int, str, Any]]:
    """Number, ``type`` and value of each line of a log; a UserError for one that is no object with a type."""
    for number, (kind, line) in log_rows(path, what, lambda line: (line["type"], line)):
        yield number, kind, line
