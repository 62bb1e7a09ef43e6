"""Links between README, guides, notebooks and the project's pages lead somewhere; nothing is asked of a network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")), *DOCS]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<(?:img|a) [^>]*(?:src|href)=\"([^\"]+)\"")


def prose(path: Path) -> str:
    """The Markdown of a page or notebook, without code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^( {4}|\t).*$", "", text, flags=re.MULTILINE)


def links(path: Path) -> Iterator[str]:
    """Targets of a page's links, those inside code spans left out."""
    for target, source in _LINK.findall(re.sub(r"`[^`\n]*`", "code", prose(path))):
        yield target or source


def anchors(path: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(path), flags=re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_inside_the_project_leads_somewhere(path: Path) -> None:
    for link in links(path):
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{link}: no such file"
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading; there are {sorted(anchors(target))}"


def test_every_guide_and_notebook_is_on_the_first_page_of_the_documentation() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert set(DOCS) - {index} <= linked
    assert set(NOTEBOOKS) <= linked


def test_the_readme_leads_to_the_documentation() -> None:
    assert "docs/index.md" in set(links(ROOT / "README.md"))


def test_the_glossary_has_every_word_of_tables_and_pages() -> None:
    from sim.latencies import LATENCIES
    from sim.report.words import CAUSES, GLOSSARY, OUTCOMES, TERMS

    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    words = {word.strip(" `").lower() for row in rows for word in row.split(",")}
    titles = [latency.short.lower() for latency in LATENCIES.values()]
    own = [part.strip().lower() for name in GLOSSARY for part in name.split(",")]
    known = {"token", "request", "scheduling policy"}  # everyday words there, and the policy's shorter name
    assert {*CAUSES, *OUTCOMES, *titles, *own} - known <= words
    assert {"linear", "head"} <= set(TERMS) & words
    assert rows == sorted(rows, key=lambda row: re.sub(r"[`,()]", "", row).lower()), "in alphabetical order"
