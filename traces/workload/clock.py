"""Calendar times such as ``2023-11-16 18:15:46.6805900`` as seconds; asks the calendar once a minute."""

from __future__ import annotations

from collections.abc import Sequence

_MINUTE = len("2023-11-16 18:15")
_LIKE = "2023-11-16 18:15:46.6805900"


class Clock(dict[str, float]):
    """Seconds since the first minute it was asked about; maps the text of a minute to its start.

    Relative, because a double that counts from 1970 keeps no tenth of a microsecond, which these traces give.
    """

    def __init__(self) -> None:
        super().__init__()
        self._origin: float | None = None

    def __missing__(self, minute: str) -> float:
        from datetime import UTC, datetime

        if len(minute) != _MINUTE:
            raise ValueError(f"is not a time like {_LIKE}")
        start = datetime.fromisoformat(minute).replace(tzinfo=UTC).timestamp()
        if self._origin is None:
            self._origin = start
        self[minute] = since = start - self._origin
        return since

    def many(self, texts: Sequence[str]) -> list[float]:
        """Seconds of each text; raises ValueError or IndexError if one of them needs a closer look."""
        within = [float(text[_MINUTE + 1 :]) for text in texts]
        # Any nan makes the sum nan, and no comparison with it holds.
        if not (min(within) >= 0 and max(within) < 60 and sum(within) >= 0):
            raise ValueError
        if {text[_MINUTE] for text in texts} != {":"}:
            raise ValueError
        return [self[text[:_MINUTE]] + second for text, second in zip(texts, within, strict=True)]

    def one(self, value: object) -> float:
        """Seconds of one text, which may end in ``Z`` or ``+00:00``; raises ValueError with a reason."""
        text = str(value).strip().removesuffix("Z").removesuffix("+00:00")
        try:
            second = float(text[_MINUTE + 1 :])
            if text[_MINUTE] == ":" and 0 <= second < 60:
                return self[text[:_MINUTE]] + second
        except (ValueError, IndexError):
            pass
        raise ValueError(f"is not a time like {_LIKE}")
