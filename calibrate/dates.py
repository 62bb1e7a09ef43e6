"""The date that measurements and fits carry; needs the standard library only."""

from __future__ import annotations

import datetime


def today() -> str:
    """The date in UTC, as ISO 8601 has it."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()
