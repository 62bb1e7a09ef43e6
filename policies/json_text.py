"""JSON that a user wrote or got from elsewhere: whatever is wrong with it is a ValueError in a few words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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


def whole_lines(path: Path | str) -> Iterator[tuple[int, str]]:
    """Number and text of each line of a log that a run writes; the last one may be cut off by a kill, and is left out
    then."""
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        for number, text in enumerate(lines, 1):
            if not text.endswith("\n"):
                return
            yield number, text
