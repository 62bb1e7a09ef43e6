"""Ends a check whose policy does not come back from a call."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from policies.core.errors import UserError
from policies.kit.checked import CheckedPolicy

PATIENCE_S = 10.0
"""The scenarios of the kit are small: a call takes thousandths of a second."""


@contextmanager
def ends_hangs(address: str, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Within, a call of the policy at ``address`` that lasts ``patience_s`` to twice that ends in a UserError, which
    says where it is. Outside the main thread, and where there are no alarms, nothing is changed."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    seen = -1

    def tick(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if CheckedPolicy.num_calls == seen:
            seen = -1
            raise UserError(
                f"engine.policy = '{address}': a call does not come back: after {patience_s:g} s it is in"
                f" {_place(frame)}; leave the loop, or return self.idle(reason)"
            )
        seen = CheckedPolicy.num_calls

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, patience_s, patience_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "no Python code"
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}, line {frame.f_lineno})"
