"""What the recorder keeps of a request until it ends."""

from __future__ import annotations

from math import nan

from policies.core.request import Request


class Live:
    """What the record knows of a request that has not ended.

    ``since`` is the ordinal of the emitting step from which on it decodes (-1: it pauses), ``lost`` the tokens whose KV
    a preemption threw away, ``segments`` as of ``RequestRow``. Times are NaN until they happen.
    """

    __slots__ = (
        "computed", "decoding", "emitted_s", "first_scheduled_s", "first_token_s", "hit_new", "hit_resumed", "lost",
        "output_tokens", "recomputed", "recomputes", "request", "segments", "since", "swaps", "waited_s",
        "waiting_since_s",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.request = request
        self.waiting_since_s = request.arrival_s
        self.waited_s = 0.0
        self.first_scheduled_s = self.first_token_s = self.emitted_s = nan
        self.decoding = False
        self.since = self.output_tokens = self.computed = self.lost = 0
        self.recomputes = self.swaps = self.recomputed = self.hit_new = self.hit_resumed = 0
        self.segments: tuple[tuple[float, int, int], ...] = ()

    def stop_waiting(self, now_s: float) -> None:
        """Book the time outside the batch, if it is there (NaN: it is not)."""
        if self.waiting_since_s == self.waiting_since_s:
            self.waited_s += now_s - self.waiting_since_s
            self.waiting_since_s = nan
