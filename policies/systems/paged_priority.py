"""Priorities of vLLM V0 (0.6.3): a better request that waits pushes worse running ones out."""

from __future__ import annotations

from collections import deque

from policies.core.native import mypyc_attr
from policies.core.plan import Horizon
from policies.core.request import RequestId
from policies.core.rows import Row
from policies.systems.paged_sorted import SortedPaged
from policies.systems.ranked import rank


@mypyc_attr(allow_interpreted_subclasses=True)
class PagedPriority(SortedPaged):
    """vLLM V0's scheduler with ``scheduling_policy`` ``priority``; parameters as of ``Paged``.

    A pass that starts no prompt looks at the head of the queue: while it does not fit and the worst running request
    ranks behind it, that one gives way, to be computed again. Only then is the queue sorted, so the head starts in the
    next step at the earliest, and an arrival pushes somebody out one step later still.
    """

    _forced: list[RequestId]

    def place(self, row: Row) -> tuple[float, ...]:
        """Order of priority, then of arrival."""
        return rank(row)

    def _begin(self) -> None:
        super()._begin()
        self._forced = []
        self._head_changed = False

    def horizon(self) -> Horizon:
        """As everywhere, unless the next pass finds another head, or one that swapped requests hold back and that
        may yet stop to fit; an arrival may push somebody out."""
        if self._head_changed or (self.swapped and self.waiting):
            return Horizon(0, True)
        return Horizon(super().horizon().steps, True)

    def _decode_running(self) -> None:
        self._sort_running()
        if self.waiting:
            self._force_out()
        super()._decode_running()

    def _force_out(self) -> None:
        """Make room for the head of the queue, then sort the queue."""
        head = self.waiting.popleft()
        count, num_blocks = self._prompt_tokens(head), self.kv.blocks_for(head.num_tokens)
        while self.running:
            worst = self.running[next(reversed(self.running))]
            if rank(worst) < rank(head) or not self._obstacle(count, num_blocks):
                break
            self.remove(worst)
            worst.num_computed_tokens = 0
            self._num_seqs -= 1
            self._forced.append(worst.id)
            self.waiting.appendleft(worst)
        self.waiting.appendleft(head)
        self.waiting = deque(sorted(self.waiting, key=rank))
        self._head_changed = self.waiting[0] is not head

    def _requeue(self) -> None:
        """Victims of the walk wait at the front; those forced out, which do not keep swapped ones out, are sorted
        in already."""
        super()._requeue()
        if self._forced:
            self._preempted = [*((key, "recompute") for key in self._forced), *self._preempted]
