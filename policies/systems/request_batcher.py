"""Request-level batching in front of a static batch: Ray Serve's ``serve.batch`` and Triton's dynamic batcher."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import inf
from typing import NamedTuple

from policies.core.errors import ConfigError
from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import Chunk, Grant, Idle, StepPlan, StepResult
from policies.core.protocols import NO_DETAILS, Details
from policies.core.request import Request, RequestId
from policies.core.rows import Row
from policies.systems.static import Static


class Formed(NamedTuple):
    """A batch closed at ``formed_s``, when ``num_left`` requests were behind it in the queue."""

    formed_s: float
    rows: tuple[Row, ...]
    num_left: int


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestBatcher(Static):
    """A batcher collects waiting requests; a batch of at most ``max_num_seqs`` (and as many as there are slots) runs as
    a static batch, prompts padded to the longest, and answers together. When a batch is closed is the rule of the
    subclass, which may let requests wait for company for ``batch_wait_timeout_s``.
    """

    def __init__(
        self, kv: KvManager, *, max_num_seqs: int, max_model_len: int, batch_wait_timeout_s: float
    ) -> None:
        if not 0 <= batch_wait_timeout_s < inf:
            raise ConfigError(f"batch_wait_timeout_s is {batch_wait_timeout_s}; give seconds, at least 0")
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self.max_batch_size = min(max_num_seqs, kv.num_blocks)
        self.batch_wait_timeout_s = batch_wait_timeout_s
        self.queue: deque[Row] = deque()
        self.formed: deque[Formed] = deque()
        self._started: Formed | None = None

    @abstractmethod
    def form(self, now_s: float) -> float | None:
        """Close the batches that are due by now. If none is closed, the time at which one will be if nothing else
        happens."""

    def close_batch(self, formed_s: float, size: int) -> None:
        """Take a batch from the head of ``queue``. Requests that came since it was due tell when they came."""
        rows = tuple([self.queue.popleft() for _ in range(size)])
        num_left = len(self.queue)
        for row in reversed(self.queue):
            if row.request.arrival_s <= formed_s:
                break
            num_left -= 1
        self.formed.append(Formed(formed_s, rows, num_left))

    def on_arrival(self, request: Request) -> None:
        """Append a request to the queue of the batcher; it waits until its batch starts."""
        super().on_arrival(request)
        self.queue.append(self.waiting[-1])

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Go on with the batch, start the next one, or wait until it is closed."""
        self._started = None
        if not self.running and self.waiting:
            wake_at_s = self.form(now_s)
            if not self.formed:
                return self.idle("batch_window", wake_at_s=wake_at_s)
        return super().schedule(now_s)

    def _start_batch(self) -> tuple[list[Grant], list[Chunk]]:
        """The oldest batch that is closed; its requests stand first in ``waiting``."""
        self._started = batch = self.formed.popleft()
        joins: list[Grant] = []
        for row in batch.rows:
            self.waiting.popleft()
            self.enter(row)
            joins.append((row.id, self.kv.open(row.id, 1)))
            row.num_computed_tokens = row.prompt_tokens
        return joins, [Chunk(row.id, 0, row.prompt_tokens, True) for row in batch.rows]

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request; one of a closed batch leaves its place in it empty."""
        if request_id not in self.running:
            self.queue = deque([row for row in self.queue if row.id != request_id])
            left = [
                batch._replace(rows=tuple([row for row in batch.rows if row.id != request_id]))
                for batch in self.formed
            ]
            self.formed = deque([batch for batch in left if batch.rows])
        return super().on_abort(request_id)

    def plan_details(self) -> Details:
        """When the batch that starts was closed, and how many requests it left behind."""
        if self._started is None:
            return NO_DETAILS
        return {"formed_s": self._started.formed_s, "left": self._started.num_left}


@mypyc_attr(allow_interpreted_subclasses=True)
class RayServeBatch(RequestBatcher):
    """Ray Serve's ``serve.batch``: a window of ``batch_wait_timeout_s`` opens when the batcher takes its first request,
    and closes early at ``max_num_seqs`` requests; without a timeout it takes what is there.

    ``forms_ahead=False`` (2.40.0): the next window opens when the batch before has returned. ``True`` (2.60.0): when
    the batch before was closed, so that batches are closed while others run, and wait in line.
    """

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_model_len: int,
        batch_wait_timeout_s: float = 0.0,
        forms_ahead: bool = False,
    ) -> None:
        super().__init__(
            kv,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            batch_wait_timeout_s=batch_wait_timeout_s,
        )
        self.forms_ahead = forms_ahead
        self._free_s = -inf

    def form(self, now_s: float) -> float | None:
        """Close the windows that end by now, one after the other."""
        while self.queue and (self.forms_ahead or not self.formed):
            closes_s = max(self._free_s, self.queue[0].request.arrival_s) + self.batch_wait_timeout_s
            size, formed_s = 0, closes_s
            for row in islice(self.queue, self.max_batch_size):
                if row.request.arrival_s > closes_s:
                    break
                size += 1
                if size == self.max_batch_size:
                    formed_s = max(self._free_s, row.request.arrival_s)
            if formed_s > now_s:
                return closes_s
            self.close_batch(formed_s, size)
            self._free_s = formed_s
        return None

    def on_step_end(self, result: StepResult) -> None:
        """Book the step; a batch that is through lets the next window open, if only one at a time is formed."""
        super().on_step_end(result)
        if not self.running and not self.forms_ahead:
            self._free_s = result.end_s


@mypyc_attr(allow_interpreted_subclasses=True)
class TritonDynamic(RequestBatcher):
    """Triton's dynamic batcher with one model instance: a batch is formed when the instance is free.

    The largest of ``preferred_batch_sizes`` (default: ``max_num_seqs``) that the queue fills goes at once. A queue that
    fills none waits until its oldest request has waited for ``batch_wait_timeout_s`` (Triton's
    max_queue_delay_microseconds), then goes as it is; so does any queue whose oldest request has waited that long.
    """

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_model_len: int,
        batch_wait_timeout_s: float = 0.0,
        preferred_batch_sizes: str | Sequence[int] = (),
    ) -> None:
        super().__init__(
            kv,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            batch_wait_timeout_s=batch_wait_timeout_s,
        )
        sizes = _sizes(preferred_batch_sizes)
        for size in sizes:
            if not 1 <= size <= max_num_seqs:
                raise ConfigError(
                    f"preferred_batch_sizes has {size}; give sizes from 1 to max_num_seqs = {max_num_seqs}"
                )
        self.preferred_batch_sizes = tuple(sorted(min(size, self.max_batch_size) for size in sizes)) or (
            self.max_batch_size,
        )

    def form(self, now_s: float) -> float | None:
        """Take a preferred size, or all there is if it has waited long enough."""
        if self.formed:
            return None
        most = min(len(self.queue), self.max_batch_size)
        best = max([size for size in self.preferred_batch_sizes if size <= most], default=0)
        expires_s = self.queue[0].request.arrival_s + self.batch_wait_timeout_s
        if now_s < expires_s and not best:
            return expires_s
        is_late = self.batch_wait_timeout_s > 0 and now_s >= expires_s
        self.close_batch(now_s, most if is_late or not best else best)
        return None


def _sizes(sizes: str | Sequence[int]) -> Sequence[int]:
    """``"4,8"`` as numbers; numbers as they are."""
    if not isinstance(sizes, str):
        return sizes
    parts = [part.strip() for part in sizes.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"preferred_batch_sizes is '{sizes}'; give whole numbers with commas, such as '4,8'")
    return [int(part) for part in parts]
