"""Queues of a multi-level feedback queue: who is in which, who goes down, who starves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import ceil

from policies.core.protocols import Services
from policies.core.request import RequestId
from policies.core.rows import Row
from policies.systems.ranked import Rank

_FOREVER = 1 << 40


class LevelRow(Row):
    """A request in queue ``level`` since decode step ``since``; it goes down when it has made ``level_end`` tokens.
    ``queued`` is the step since which it does not run, -1 while it does."""

    level = 0
    level_end = 0
    since = 0
    queued = -1


def level_rank(row: Row) -> Rank:
    """First the queue, then since when in it."""
    assert isinstance(row, LevelRow)
    return row.level, row.since, row.id


class Levels:
    """``quanta[i]`` decode steps are what a request may use in queue i. Times are decode steps, as those of a
    ``DecodeSet``, but for waiting, which is counted in steps of any kind."""

    def __init__(self, quanta: list[int], starvation_limit_steps: int, services: Services | None) -> None:
        self.quanta = quanta
        self.starvation_limit_steps = starvation_limit_steps
        self._services = services
        self._last = len(quanta) - 1
        self._queued: deque[tuple[int, LevelRow]] = deque()

    def place(self, row: LevelRow, decode_steps: int) -> None:
        """Put a new request in the first queue whose quantum covers its prompt."""
        steps = self._prompt_steps(row.prompt_tokens)
        row.level = next((level for level, quantum in enumerate(self.quanta) if quantum >= steps), self._last)
        row.level_end = max(1, self.quanta[row.level] - steps + 1)
        row.since = decode_steps

    def _prompt_steps(self, prompt_tokens: int) -> int:
        """Lone decode steps that the prompt takes as long as."""
        if self._services is None:
            return 1
        step_s = self._services.step_time_s(1, 1, 1, 1, ())
        return max(1, ceil(self._services.recompute_time_s(prompt_tokens, 0) / step_s)) if step_s > 0.0 else 1

    def settle(self, row: LevelRow, decode_steps: int) -> None:
        """Bring a decoding row to its queue. The step at which it went down follows from its tokens, so that it does
        not matter when this is called."""
        first = row.offset - row.prompt_tokens
        while first + decode_steps >= row.level_end and row.level < self._last:
            row.since = row.level_end - first
            row.level += 1
            row.level_end += self.quanta[row.level]

    def steps_to_demotion(self, rows: Iterable[LevelRow], decode_steps: int) -> int:
        """Steps until the first of these decoding rows goes down."""
        due = [row.level_end - (row.offset - row.prompt_tokens) for row in rows if row.level < self._last]
        return min(due, default=_FOREVER) - decode_steps

    # -- starvation --------------------------------------------------------------------------------------------------

    def queue(self, row: LevelRow, step: int) -> None:
        """A request does not run from this step on. Calls come in order of the steps."""
        row.queued = step
        self._queued.append((step, row))

    def steps_to_promotion(self, step: int) -> int:
        """Steps until the next one that still waits has starved."""
        queued = self._queued
        while queued and queued[0][1].queued != queued[0][0]:
            queued.popleft()
        return queued[0][0] + self.starvation_limit_steps - step if queued else _FOREVER

    def pop_starved(self, step: int) -> list[LevelRow]:
        """Those below the first queue that have starved by now."""
        starved: list[LevelRow] = []
        while self.steps_to_promotion(step) <= 0:
            row = self._queued.popleft()[1]
            starved += (row,) if row.level else ()
        return starved

    def promote(self, row: LevelRow, decode_steps: int) -> None:
        """Up to the first queue, behind those who are there, with a whole quantum."""
        row.level, row.since = 0, decode_steps
        row.level_end = row.num_tokens - row.prompt_tokens + self.quanta[0]


def find(rows: Iterable[Row], request_id: RequestId) -> LevelRow | None:
    """The request of that number among these."""
    found = next((row for row in rows if row.id == request_id), None)
    return found if isinstance(found, LevelRow) else None
