"""Reads report pages as a browser would, without one."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "hr", "img", "input", "path", "rect"}


class Page(HTMLParser):
    """A parsed page: its elements as (tag, attributes), the text of each tag, and unclosed or misnested tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.wrong: list[str] = []
        self._open: list[str] = []
        self._texts: dict[str, list[str]] = {}
        self.feed(html)
        self.close()
        self.wrong += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)
            self._texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self._open or self._open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self._texts[tag][-1] += data

    def texts(self, tag: str) -> list[str]:
        """Text of each element of that tag, in order."""
        return [re.sub(r"\s+", " ", text).strip() for text in self._texts.get(tag, [])]

    def all(self, tag: str) -> list[dict[str, str]]:
        """Attributes of each element of that tag."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def visible(self) -> str:
        """What can be read in the page, without plots."""
        body = re.sub(r"<(script|style)\b.*?</\1>", " ", self.html, flags=re.DOTALL)
        return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))

    @property
    def plots(self) -> dict[str, dict[str, Any]]:
        """Figure by the id of its place."""
        found = re.findall(r'<script type="application/json" id="([\w-]+)-data">(.*?)</script>', self.html, re.DOTALL)
        return {key: json.loads(text) for key, text in found}
