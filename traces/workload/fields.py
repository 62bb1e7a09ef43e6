"""From the text or JSON value of one field to what a TraceRow holds.

Each converter raises ValueError whose message says what is wrong with the value and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from sys import intern

from policies.core.request import Segments
from traces.workload.lengths import MAX_TOKENS

MAX_SECONDS = 1e10
"""The latest time. A double keeps a microsecond up to here, and clocks that count from 1970 stay well below."""

MAX_PRIORITY = 1 << 31
"""The record keeps priorities in 64 bits, and policies add to them."""

HASH_BLOCK_TOKENS = 512
"""Tokens of a block of Mooncake's traces."""

Converter = Callable[[object], object]
"""Takes a text (CSV) or a JSON value; an optional field may get ``""`` or None for none."""


def seconds(value: object) -> float:
    """A time, at least 0: from the start, or of a clock that counts seconds."""
    number = _number(value, "seconds")
    if number < 0:
        raise ValueError("is negative; times start at 0 seconds")
    if number > MAX_SECONDS:
        raise ValueError(f"is above {MAX_SECONDS:g} seconds; give seconds, not parts of them")
    return number


def milliseconds(value: object) -> float:
    """A time in milliseconds, at least 0, in seconds."""
    number = _number(value, "milliseconds")
    if number < 0:
        raise ValueError("is negative; times start at 0 milliseconds")
    if number > 1e3 * MAX_SECONDS:
        raise ValueError(f"is above {1e3 * MAX_SECONDS:g} milliseconds; give milliseconds, not parts of them")
    return number / 1e3


def tokens(value: object) -> int:
    """A number of tokens, at least 1."""
    number = _whole(value, "the number of tokens")
    if number < 1:
        raise ValueError("is below 1; give at least one token or remove the row")
    if number > MAX_TOKENS:
        raise ValueError(f"is above {MAX_TOKENS}; give the number of tokens")
    return number


def optional_tokens(value: object) -> int | None:
    """A number of tokens, or None for no value."""
    return None if value is None or value == "" else tokens(value)


def priority(value: object) -> int:
    """A whole number of at most ``MAX_PRIORITY`` either way; 0 for no value."""
    number = 0 if value is None or value == "" else _whole(value, "a priority such as 0")
    if abs(number) > MAX_PRIORITY:
        raise ValueError(f"is not within -{MAX_PRIORITY} and {MAX_PRIORITY}; give a priority such as 0")
    return number


def name(value: object) -> str:
    """A name of a client or session; equal ones share memory."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("is no name; give a text")
    return intern(str(value))


def parent(value: object) -> int | None:
    """A row number from 0, or None for no value."""
    if value is None or value == "":
        return None
    number = _whole(value, "a row number")
    if number < 0:
        raise ValueError("is negative; rows are numbered from 0")
    return number


def patience(value: object) -> float | None:
    """Seconds above 0, or None for no value."""
    if value is None or value == "":
        return None
    number = _number(value, "seconds")
    if number <= 0:
        raise ValueError("is not above 0; leave it empty for a client that waits for ever")
    return number


def limit(value: object) -> float | None:
    """Seconds above 0, or None for no value."""
    if value is None or value == "":
        return None
    number = _number(value, "seconds")
    if number <= 0:
        raise ValueError("is not above 0; leave it empty for a request without this limit")
    return number


def segments(value: object) -> Segments:
    """``key:length|key:length`` or ``[[key, length], ...]``; a key may hold colons but no bar."""
    if value is None or value == "":
        return ()
    pairs: Sequence[object]
    if isinstance(value, str):
        pairs = [part.rpartition(":")[::2] for part in value.split("|")]
    elif isinstance(value, list):
        pairs = value
    else:
        raise ValueError("is no list of segments; write [[key, length], ...]")
    return tuple(map(_segment, pairs))


def hash_ids(value: object) -> tuple[int, ...]:
    """One whole number for each block of a prompt; none for a prompt that shares nothing."""
    if value is None or value == "":
        return ()
    if isinstance(value, list) and all(type(part) is int for part in value):
        return tuple(value)
    raise ValueError("is no list of whole numbers; give one id for each block of the prompt")


def block_segments(ids: Sequence[int], prompt_tokens: int) -> Segments:
    """A segment for each block, the last one as long as what is left; raises ValueError unless ids and blocks match."""
    full, left = divmod(prompt_tokens, HASH_BLOCK_TOKENS)
    blocks = full + (left > 0)
    if not ids:
        return ()
    if len(ids) != blocks:
        raise ValueError(
            f"has {len(ids)} ids, but {prompt_tokens} tokens are {blocks} blocks of {HASH_BLOCK_TOKENS}; give one each"
        )
    lengths = [HASH_BLOCK_TOKENS] * full + [left] * (left > 0)
    return tuple(zip(map(intern, map(str, ids)), lengths, strict=True))


def check_segments(parts: Segments, prompt_tokens: int) -> None:
    """Raises ValueError unless the segments add up to the prompt; none at all are right."""
    total = sum(length for _, length in parts)
    if parts and total != prompt_tokens:
        raise ValueError(f"adds up to {total} tokens, but the prompt has {prompt_tokens}; make them equal")


def _segment(pair: object) -> tuple[str, int]:
    if isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) and pair[0]:
        try:
            return intern(pair[0]), tokens(pair[1])
        except ValueError:
            pass
    raise ValueError(
        "has a part that is no key and length; write key:length|key:length or [[key, length], ...]"
    )


def _number(value: object, what: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"is not a number; give {what}") from None
    if not isfinite(number):
        raise ValueError(f"is not finite; give {what}")
    return number


def _whole(value: object, what: str) -> int:
    number = _number(value, what)
    try:
        return int(value) if isinstance(value, str | int) else _exact(number)
    except ValueError:
        try:
            return _exact(number)
        except ValueError:
            raise ValueError(f"is not a whole number; give {what}") from None


def _exact(number: float) -> int:
    if number != int(number):
        raise ValueError
    return int(number)
