"""How rows become requests: what holds in simulated time and in real time alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from typing import Final

from policies.core.request import Request, RequestId, Slo
from traces.workload.rows import TraceRow

_new_tuple: Final = tuple.__new__


def request_of(number: int, row: TraceRow, now_s: float, slo: Slo | None) -> Request:
    """Row ``number`` of a workload as it is sent at ``now_s``; ``slo`` are the limits where the row has none."""
    _, prompt_tokens, output_tokens, limit, priority, client_id, _, _, segments, _, ttft_s, tpot_s = row
    if limit is None:
        limit = output_tokens
    if ttft_s is not None or tpot_s is not None:
        slo = (slo or Slo()).with_own(ttft_s, tpot_s)
    return _new_tuple(Request, (number, now_s, prompt_tokens, limit, priority, client_id, slo, segments))


class Followers:
    """Rows whose time comes before the row that they follow (``TraceRow.parent_id``) has its answer. They are held back
    until then; ``unanswered`` are the requests that have been sent and have no answer."""

    def __init__(self, unanswered: Container[RequestId]) -> None:
        self._unanswered = unanswered
        self._held: set[int] = set()
        self._by_parent: dict[RequestId, list[tuple[int, TraceRow]]] = defaultdict(list)

    def hold(self, number: int, row: TraceRow) -> bool:
        """Whether the row, whose time has come, is held back."""
        parent = row[7]  # parent_id
        if parent is None or (parent not in self._unanswered and parent not in self._held):
            return False
        self._held.add(number)
        self._by_parent[parent].append((number, row))
        return True

    def of(self, answered: RequestId) -> Sequence[tuple[int, TraceRow]]:
        """The rows that may be sent now that this request has been answered; until ``let_go`` they count as held."""
        return self._by_parent.pop(answered, ())

    def let_go(self, number: int) -> bool:
        """A row comes: whether it had been held back, which it no longer is."""
        if number not in self._held:
            return False
        self._held.remove(number)
        return True
