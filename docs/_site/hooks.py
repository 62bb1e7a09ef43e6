"""What mkdocs does beyond its settings: pages of files that live elsewhere, and tables and code for narrow screens."""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PROJECT = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_config(config: Any) -> Any:
    """Name the notebooks in the navigation by their titles."""
    titles = [nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].lstrip("# ") for path in NOTEBOOKS]
    pages = [{title: f"notebooks/{path.stem}.md"} for title, path in zip(titles, NOTEBOOKS, strict=True)]
    for group in config.nav:
        if "Notebooks" in group:
            group["Notebooks"] = pages
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add pages of the project's own files and of the notebooks, with their pictures."""
    for name in PROJECT:
        text = _moved((ROOT / name).read_text(encoding="utf-8"), name)
        files.append(File.generated(config, f"project/{name}", content=text))
    for path in NOTEBOOKS:
        pictures: dict[str, bytes] = {}
        text = "\n\n".join(_cells(nbformat.read(path, as_version=4), path.stem, pictures))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links of pages in docs to files elsewhere in the repository."""
    source = page.file.src_uri
    moved = markdown if source.startswith(("project/", "notebooks/")) else _moved(markdown, f"docs/{source}")
    return "\n".join(_deeper(moved.splitlines()))


def _deeper(lines: Iterable[str]) -> Iterator[str]:
    """Numbered points as mkdocs asks for them: what belongs to one stands four spaces in, where GitHub takes three, and
    a point that follows is told by an empty line."""
    numbered = False
    for line in lines:
        begins = bool(re.match(r"\d+\. ", line))
        if begins and numbered:
            yield ""
        numbered = begins or (numbered and line[:1] in ("", " "))
        yield f" {line}" if numbered and line.startswith("   ") else line


def on_page_content(html: str, **_: Any) -> str:
    """Let wide tables and code scroll by themselves, with the keyboard, too."""
    html = re.sub(r"<pre(?=[ >])", '<pre tabindex="0"', html)
    html = re.sub(r"<table[ >]", r'<div class="scroll" tabindex="0" role="group" aria-label="table">\g<0>', html)
    return html.replace("</table>", "</table></div>")


def _moved(text: str, source: str) -> str:
    """The text of a file of the repository with links to where their targets are on the site; what has no page there
    keeps its words alone."""
    here = posixpath.dirname(_page_of(source) or "")

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        page = _page_of(target)
        return found[0] if page is None else posixpath.relpath(page, here or ".") + (found[2] or "")

    return _LINK.sub(link, text)


def _page_of(path: str) -> str | None:
    """Where a file of the repository is in the site's sources."""
    if path in PROJECT:
        return f"project/{path}"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{path.removesuffix('.ipynb')}.md" if path.startswith("notebooks/") else None


def _cells(notebook: Any, stem: str, pictures: dict[str, bytes]) -> Iterator[str]:
    """A notebook as Markdown; pictures by their file names."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield _moved(cell.source, f"notebooks/{stem}.ipynb")
            continue
        yield f"```python\n{cell.source}\n```"
        for output in cell.outputs:
            yield _shown(output, stem, pictures)


def _shown(output: Any, stem: str, pictures: dict[str, bytes]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        name = f"{stem}-{len(pictures) + 1}.png"
        pictures[name] = base64.b64decode(data["image/png"])
        traces = data["application/vnd.plotly.v1+json"]["data"]
        names = ", ".join(dict.fromkeys(escape(str(trace["name"])) for trace in traces if trace.get("name")))
        # As wide as it was drawn: shrunk to a phone its words could not be read.
        picture = f'<img alt="Figure: {names}" src="{name}">'
        return f'<div class="scroll" tabindex="0" role="group" aria-label="figure">{picture}</div>'
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
        # Empty table heads, as those of row names, are cells to whoever listens.
        html = re.sub(r"<th[^>]*>\s*</th>", "<td></td>", html)
        html = html.replace(' border="1"', "")
        one_line = re.sub(r"\s*\n\s*", " ", html)
        return f'<div class="shown">{one_line}</div>'
    return f"```text\n{output.get('text', data.get('text/plain', '')).rstrip()}\n```"
