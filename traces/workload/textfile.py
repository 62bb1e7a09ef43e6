"""Lines of a text file, plain or gzip, in blocks; what is wrong with the file itself is a TraceError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from itertools import islice
from typing import NamedTuple

from policies.core.errors import TraceError

BLOCK_LINES = 8192

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Header(NamedTuple):
    """The first line that is not blank; ``line`` is its number from 1, and 0 in an empty file."""

    line: int
    text: str
    notices: tuple[str, ...]


class Lines(NamedTuple):
    """Consecutive lines; ``first`` is the number of the first one as an editor counts it."""

    first: int
    texts: list[str]


def read_header(path: str) -> Header:
    """The header and how the file departs from plain UTF-8 with LF line ends."""
    with _open_text(path) as (stream, has_mark):
        for number, text in enumerate(stream, start=1):
            if "\0" in text:
                raise _not_text(path)
            if text.strip():
                crlf = stream.newlines == "\r\n"
                notices = ("byte order mark ignored",) * has_mark + ("CRLF line ends",) * crlf
                return Header(number, text.strip(), notices)
    return Header(0, "", ())


def read_lines(path: str, after_line: int) -> Iterator[Lines]:
    """All lines after number ``after_line``, in blocks; blank lines are among them."""
    with _open_text(path) as (stream, _):
        first = after_line + 1
        rest = islice(stream, after_line, None)
        while texts := list(islice(rest, BLOCK_LINES)):
            yield Lines(first, texts)
            first += len(texts)


def line_of_row(path: str, after_line: int, row: int) -> int:
    """Line number of the row that is number ``row``, from 0, of those that are not blank."""
    for first, texts in read_lines(path, after_line):
        for number, text in enumerate(texts, start=first):
            row -= bool(text.strip())
            if row < 0:
                return number
    raise IndexError(row)


@contextmanager
def _open_text(path: str) -> Iterator[tuple[TextIOWrapper, bool]]:
    """The file as UTF-8 text with any line ends, and whether it begins with a byte order mark."""
    from gzip import BadGzipFile, GzipFile
    from pathlib import Path
    from zlib import error as ZlibError  # noqa: N812

    try:
        with Path(path).open("rb") as raw:
            packed = raw.peek(2)[:2] == _GZIP_MAGIC
            # GzipFile hands out small pieces; a buffer above it makes reading lines twice as fast.
            buffer = BufferedReader(GzipFile(fileobj=raw), 1 << 16) if packed else raw
            has_mark = buffer.peek(3)[:3] == _BYTE_ORDER_MARK
            with TextIOWrapper(buffer, encoding="utf-8-sig") as stream:
                yield stream, has_mark
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file; give the path of a trace") from None
    except UnicodeDecodeError:
        raise _not_text(path) from None
    except (EOFError, ZlibError, BadGzipFile):
        raise TraceError(f"{path}: the gzip file is cut off or damaged; fetch it again") from None
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read ({error.strerror or error}); give the path of a trace"
        ) from None


def _not_text(path: str) -> TraceError:
    return TraceError(f"{path}: not a text file in UTF-8; give a trace as CSV or JSON lines, plain or gzip")


def sha256_of(path: str) -> str:
    """Of a file as it lies there, in hexadecimal digits; "" if it cannot be read any more."""
    from hashlib import sha256  # 10 ms
    from pathlib import Path

    digest = sha256()
    try:
        with Path(path).open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()
