"""Tables in Markdown pages that a command makes: they stand between two marks and are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

from policies.core.errors import ConfigError
from sim.runs import write_whole


def replace(path: Path, name: str, text: str) -> None:
    """Put ``text`` between ``<!-- NAME -->`` and ``<!-- end NAME -->`` of a page; ConfigError where they are not."""
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    page = path.read_text(encoding="utf-8")
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(end) < page.index(begin):
        raise ConfigError(f"{path}: needs one line '{begin}' and, below it, one line '{end}'")
    before, _, rest = page.partition(begin)
    write_whole(path, f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")
