"""vLLM V0 where the running list is sorted before it decodes, so that the end of it is the worst, not the latest."""

from __future__ import annotations

from abc import abstractmethod

from policies.core.native import mypyc_attr
from policies.core.plan import Idle, StepPlan
from policies.core.rows import Row
from policies.systems.paged import Paged


@mypyc_attr(allow_interpreted_subclasses=True)
class SortedPaged(Paged):
    """``Paged`` with a running list in the order of ``place`` in every decode step; in prefill steps new requests
    stand at its end."""

    _is_sorted = True

    @abstractmethod
    def place(self, row: Row) -> tuple[float, ...]:
        """Key of a request in the running list, smallest first."""

    def enter(self, row: Row) -> None:
        """Append a row to the running list."""
        if self.running and self.place(row) < self.place(self.running[next(reversed(self.running))]):
            self._is_sorted = False
        super().enter(row)

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """As of ``Paged``; a step that can only decode is sorted beforehand."""
        if not self.waiting and not self.swapped:
            self._sort_running()
        return super().schedule(now_s)

    def _decode_running(self) -> None:
        self._sort_running()
        super()._decode_running()

    def _sort_running(self) -> None:
        if self._is_sorted:
            return
        self._is_sorted = True
        rows = sorted(self.running.values(), key=self.place)
        self.running = {row.id: row for row in rows}
        for row in rows:
            self._last_order += 1
            row.order = self._last_order
        self.decode.reordered()
