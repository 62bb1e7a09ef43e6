"""Engines that refuse a request when too many are inside: a limit at the door, kept at the moment a request comes."""

from __future__ import annotations

from collections.abc import Iterable

from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import Finish, StepResult
from policies.core.request import Request, RequestId
from policies.core.rows import Row
from policies.systems.base import BatchingPolicy


@mypyc_attr(allow_interpreted_subclasses=True)
class Gated(BatchingPolicy):
    """A policy that lets in at most ``max_requests`` requests at a time (0: any number), waiting and running together;
    the next one is refused with ``overloaded``.

    A request counts from the moment it is let in, before the policy takes it at the end of a step, until it ends. That
    is the same at every instant whether the world steps or jumps, for jumps end where a request does.
    """

    def __init__(
        self, kv: KvManager, *, max_num_seqs: int, max_model_len: int, max_requests: int = 0, grows: bool = True
    ) -> None:
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len, grows=grows)
        self.max_requests = max_requests
        self.rejected: list[Finish] = []
        self._inside: set[RequestId] = set()

    def refusal(self, request: Request) -> str | None:
        """Too many inside, or too long; a request that is inside is not refused when asked for again."""
        inside = self._inside
        if request.id in inside:
            return None
        if self.max_requests and len(inside) >= self.max_requests:
            return "overloaded"
        reason = self.too_long(request)
        if reason is None:
            inside.add(request.id)
        return reason

    def too_long(self, request: Request) -> str | None:
        """Why the engine refuses a request of these lengths, if it does."""
        return super().refusal(request)

    def on_arrival(self, request: Request) -> None:
        """Queue a request; it is inside even if nobody asked whether it may be."""
        self._inside.add(request.id)
        super().on_arrival(request)

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request, wherever it is."""
        produced = super().on_abort(request_id)
        self._inside.discard(request_id)
        return produced

    def on_step_end(self, result: StepResult) -> None:
        """Book the step; those that finished are outside."""
        super().on_step_end(result)
        if result.finished:
            self._let_out(finish.id for finish in result.finished)

    def reject(self, row: Row, reason: str) -> None:
        """End a request that is in no queue any more; the next plan says so."""
        self.rejected.append(Finish(row.id, reason, row.num_tokens - row.prompt_tokens))
        self._inside.discard(row.id)

    def _let_out(self, ids: Iterable[RequestId]) -> None:
        self._inside.difference_update(ids)
