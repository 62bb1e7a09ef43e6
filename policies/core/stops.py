"""When requests stop: the calendar every backend without a model keeps, and the length rule of those with one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from policies.core.plan import AllBut, Chunk, Decode, Finish, StepPlan
from policies.core.request import Request, RequestId

_ALL: Final = Decode.ALL
_NONE: Final = Decode.NONE
_NEVER: Final = 1 << 40
_ID_BITS: Final = 32
_ID_MASK: Final = (1 << 32) - 1
"""The heap holds a step and the number of a request in one number, which compares faster than a tuple."""
_new_tuple: Final = tuple.__new__


class Stop(NamedTuple):
    """After how many output tokens a request stops, and why."""

    num_output_tokens: int
    reason: str


def stop_of(request: Request, output_tokens: int, max_total_tokens: int) -> Stop:
    """``stop`` when the request makes all its ``output_tokens``; ``length`` when ``max_tokens`` or the most tokens that
    it may have (``max_model_len`` and the policy's ``tokens_past_length``) cut it before."""
    limit = min(request.max_tokens, max_total_tokens - request.prompt_tokens)
    if output_tokens <= limit:
        return _new_tuple(Stop, (output_tokens, "stop"))
    return _new_tuple(Stop, (limit, "length"))


class StopCalendar:
    """Knows which rows stop at the end of which step.

    Decoding rows gain one token in each step, so a row that starts to decode is entered once, at the step in which it
    stops. A step costs O(rows that stop).
    """

    def __init__(self) -> None:
        self._steps = 0
        self._stops: dict[RequestId, Stop] = {}
        self._left: dict[RequestId, int] = {}
        self._due: dict[RequestId, int] = {}
        self._heap: list[int] = []

    def __contains__(self, request_id: RequestId) -> bool:
        """True while the request has tokens to make."""
        return request_id in self._stops

    def add(self, request_id: RequestId, stop: Stop) -> None:
        """A request of which ``stop`` says how it ends."""
        self._stops[request_id] = stop

    def remove(self, request_id: RequestId) -> None:
        """Forget a request that ended otherwise."""
        self._stops.pop(request_id, None)
        self._left.pop(request_id, None)
        self._due.pop(request_id, None)

    def apply(self, plan: StepPlan) -> None:
        """Rows that leave the batch keep what they have left. Only a plan that preempts, or brings back rows that have
        nothing to prefill, changes anything here."""
        for request_id in plan.leaves:
            due = self._due.pop(request_id, None)
            if due is not None and request_id in self._stops:
                self._left[request_id] = due - self._steps
        if plan.joins:
            prompts = {chunk[0] for chunk in plan[6]}
            for request_id, _ in plan.joins:
                if request_id not in prompts:
                    self._enter(request_id, self._tokens_left(request_id))

    def steps_to_stop(self) -> int:
        """Steps until the next decoding row stops, that step included; a huge number when none decodes."""
        heap, due = self._heap, self._due
        while heap:
            first = heap[0]
            step, request_id = first >> _ID_BITS, first & _ID_MASK
            if due.get(request_id) == step:
                return step - self._steps
            heappop(heap)
        return _NEVER

    def complete(self, plan: StepPlan, steps: int, later: Collection[StepPlan] = ()) -> tuple[Finish, ...]:
        """Book ``steps`` steps of a plan; the requests that stop at the end of the last one.

        ``later`` are the plans in flight behind it: prompts that leave with one of them, and those of requests that
        are not known any more, emit nothing.
        """
        finished: tuple[Finish, ...] = ()
        decode = plan.decode
        if decode is not _NONE:
            if decode is not _ALL and not isinstance(decode, Decode):
                due = self._due
                self._hold(decode.left_out if isinstance(decode, AllBut) else due.keys() - set(decode))
            self._steps = now = self._steps + steps
            heap = self._heap
            if heap and heap[0] < (now + 1) << _ID_BITS:
                finished = self._stop_rows(now)
        chunks: Sequence[Chunk] = plan.chunks
        if not chunks:
            return finished
        if later:
            gone = {request_id for other in later for request_id in other[9]}
            chunks = [chunk for chunk in chunks if chunk[0] not in gone]
        return finished + self._emit(chunks)

    def _stop_rows(self, now: int) -> tuple[Finish, ...]:
        heap, due, stops = self._heap, self._due, self._stops
        finished = []
        end = (now + 1) << _ID_BITS
        while heap and heap[0] < end:
            first = heappop(heap)
            step, request_id = first >> _ID_BITS, first & _ID_MASK
            if due.get(request_id) == step:
                del due[request_id]
                num_output_tokens, reason = stops.pop(request_id)
                finished.append(_new_tuple(Finish, (request_id, reason, num_output_tokens)))
        return tuple(finished)

    def _emit(self, chunks: Sequence[Chunk]) -> tuple[Finish, ...]:
        """The first tokens of completed prompts."""
        finished = []
        for request_id, _, _, emits in chunks:
            if emits and request_id in self._stops:
                left = self._tokens_left(request_id) - 1
                if left:
                    self._enter(request_id, left)
                else:
                    num_output_tokens, reason = self._stops.pop(request_id)
                    finished.append(Finish(request_id, reason, num_output_tokens))
        return tuple(finished)

    def _tokens_left(self, request_id: RequestId) -> int:
        """Tokens that a row which does not decode has yet to make."""
        return self._left.pop(request_id, 0) or self._stops[request_id].num_output_tokens

    def _enter(self, request_id: RequestId, left: int) -> None:
        due = self._due[request_id] = self._steps + left
        heappush(self._heap, due << _ID_BITS | request_id)

    def _hold(self, left_out: Iterable[RequestId]) -> None:
        """Rows left out of a step stop one step later."""
        for request_id in left_out:
            due = self._due.get(request_id)
            if due is not None:
                self._enter(request_id, due - self._steps + 1)
