"""Tables in Markdown pages that a command makes: they stand between two marks and are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

from policies.core.errors import ConfigError
from sim.runs import write_whole


def check_marks(path: Path, name: str) -> None:
    """ConfigError unless ``<!-- NAME -->`` stands once in the page and ``<!-- end NAME -->`` once below it: to be known
    before a run that takes minutes."""
    _around(path, name)


def replace(path: Path, name: str, text: str) -> None:
    """Put ``text`` between ``<!-- NAME -->`` and ``<!-- end NAME -->`` of a page; ConfigError where they are not."""
    before, after = _around(path, name)
    write_whole(path, f"{before}\n{text}\n{after}")


def _around(path: Path, name: str) -> tuple[str, str]:
    """What of a page stays, both marks included."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    page = path.read_text(encoding="utf-8")
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(end) < page.index(begin):
        raise ConfigError(f"{path}: needs one line '{begin}' and, below it, one line '{end}'")
    return page[: page.index(begin)] + begin, page[page.index(end) :]
