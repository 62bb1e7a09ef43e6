"""Ends a check, or a run, whose policy does not come back from a call."""

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

RUN_PATIENCE_S = 60.0
"""In a run a call may have thousands of requests to look at."""


@contextmanager
def ends_hangs(address: str, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Within, a call of the policy at ``address`` that lasts ``patience_s`` to twice that ends in a UserError, which
    says where it is. Outside the main thread, and where there are no alarms or somebody has set one, nothing is
    changed."""
    if not _may_set_an_alarm():
        yield
        return
    seen = -1

    def tick(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if CheckedPolicy.is_called and CheckedPolicy.num_calls == seen:
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


def _may_set_an_alarm() -> bool:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        return False
    return signal.getitimer(signal.ITIMER_REAL)[0] == 0


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "no Python code"
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}, line {frame.f_lineno})"
