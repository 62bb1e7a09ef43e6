"""Signals that end a run at its next step boundary."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupting(interrupt: Callable[[], object]) -> Iterator[None]:
    """The first SIGINT or SIGTERM (what batch systems send) calls ``interrupt``, the second one does what it always
    does. Outside the main thread, where signals cannot be handled, nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        restore()
        interrupt()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()
