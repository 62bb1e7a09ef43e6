"""A progress line for long runs: rewritten in place on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Self, TextIO

_FIRST_S = 1.0


def on_terminal(text: str = "") -> None:
    """Show a text on standard error in place of the last one, if that is a terminal; no text clears the line."""
    if sys.stderr.isatty():
        _rewrite(sys.stderr, text)


def _rewrite(stream: TextIO, text: str = "") -> None:
    stream.write(f"\r\x1b[K{text}")
    stream.flush()


class ProgressLine:
    """Says on ``stream`` how far a run is, from its first second on. ``total`` requests are expected; ``passed`` says
    what kind of seconds passed.

    A context manager: at the end, whatever it is, the line is cleared from a terminal.
    """

    def __init__(
        self, total: int, label: str = "", stream: TextIO | None = None, *, passed: str = " simulated"
    ) -> None:
        self._total, self._passed = total, passed
        self._label = f"{label}: " if label else ""
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._every_s = 0.2 if self._is_terminal else 5.0
        self._started_s = monotonic()
        self._next_s = self._started_s + _FIRST_S
        self._shown = False

    def __call__(self, simulated_s: float, ended: int) -> None:
        """``ended`` requests, one or more, have ended by ``simulated_s`` of the run's own time."""
        now_s = monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        took_s = now_s - self._started_s
        left_s = took_s * (self._total - ended) / ended
        text = f"{self._label}{ended:,} of {self._total:,} requests, {simulated_s:,.0f} s{self._passed}"
        text += f", about {left_s:.0f} s left"
        if self._is_terminal:
            _rewrite(self._stream, text)
            self._shown = True
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            _rewrite(self._stream)
