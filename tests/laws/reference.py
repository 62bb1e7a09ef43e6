"""The same systems again, in the fewest lines: no engine, no events, no closed forms, one step after the other."""

from __future__ import annotations

from collections import deque

import numpy as np

from tests.laws.draws import Floats


def batch_finish_s(arrivals_s: Floats, lengths: Floats, base_s: float, per_row_s: float, max_rows: int) -> Floats:
    """When each request ends if up to ``max_rows`` at once, first come first served, gain a token in each step of
    ``base_s + per_row_s * rows``; who comes within a step waits for its end."""
    coming = deque(enumerate(arrivals_s.tolist()))
    left: dict[int, int] = {}
    finish_s, now_s = np.empty(len(arrivals_s)), 0.0
    while coming or left:
        if not left:
            now_s = max(now_s, coming[0][1])
        while coming and coming[0][1] <= now_s and len(left) < max_rows:
            number, _ = coming.popleft()
            left[number] = int(lengths[number])
        now_s += base_s + per_row_s * len(left)
        for number in list(left):
            left[number] -= 1
            if not left[number]:
                finish_s[number] = now_s
                del left[number]
    return finish_s
