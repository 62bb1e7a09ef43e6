"""Fair shares among clients by a counter of service each, on the engine of vLLM V1 (0.11.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import ceil
from typing import SupportsIndex

from policies.core.kv import KvManager
from policies.core.plan import Finish, Horizon
from policies.core.request import Request
from policies.core.rows import Row
from policies.systems.token_budget import TokenBudget

_FOREVER = 1 << 40


class Account:
    """What one client has been served: ``tokens_in`` prompt tokens that were admitted, ``tokens_out`` output tokens up
    to step ``settled``; ``num_rows`` of its requests gain one in each step since. ``lift`` is credit it lost by being
    away."""

    def __init__(self) -> None:
        self.tokens_in = self.tokens_out = self.settled = self.num_rows = 0
        self.lift = 0.0


class ClientQueue(deque[Row]):
    """Waiting requests, first come, first served within a client; the head is that of the client with the least
    ``counter``, equal ones in order of their names. To whoever holds it, a deque."""

    def __init__(self, counter: Callable[[str], float]) -> None:
        super().__init__()
        self.clients: dict[str, deque[Row]] = {}
        self.last_left = ""
        self._counter = counter
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Row]:
        order = sorted(self.clients, key=self._key)
        return chain.from_iterable(self.clients[name] for name in order)

    def __getitem__(self, place: SupportsIndex) -> Row:  # type: ignore[override]
        if place != 0 or not self._size:
            raise IndexError("a queue of clients knows only its head")
        return self.clients[self.next_client()][0]

    def _key(self, name: str) -> tuple[float, str]:
        return self._counter(name), name

    def next_client(self) -> str:
        """Whose turn it is; there must be a request."""
        return min(self.clients, key=self._key)

    def append(self, row: Row) -> None:
        """Behind the others of its client."""
        self.clients.setdefault(row.request.client_id, deque()).append(row)
        self._size += 1

    def appendleft(self, row: Row) -> None:
        """Before the others of its client."""
        self.clients.setdefault(row.request.client_id, deque()).appendleft(row)
        self._size += 1

    def extendleft(self, rows: Iterable[Row]) -> None:
        """Each before the others of its client."""
        for row in rows:
            self.appendleft(row)

    def popleft(self) -> Row:
        """Take the head."""
        return self._take(self[0], first=True)

    def remove(self, row: Row) -> None:
        """Take a request that went away."""
        self._take(row, first=False)

    def _take(self, row: Row, *, first: bool) -> Row:
        name = row.request.client_id
        queue = self.clients[name]
        if first:
            queue.popleft()
        else:
            queue.remove(row)
        self._size -= 1
        if not queue:
            del self.clients[name]
            self.last_left = name
        return row


class VirtualTokenCounter(TokenBudget):
    """VTC (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024).

    The client with the least counter is served next. A counter grows by ``w_in`` for each prompt token when a request
    is admitted, and by ``w_out`` for each token that it makes. A client that comes back to an empty queue of its own
    starts at the least counter of those who wait, or of the last that left the queue where nobody waits, so that nobody
    saves up credit. Work conserving; a request that does not fit hides those behind it.

    What differs from the paper: the engine below is vLLM V1's, with prompts in chunks and preemption by recompute.
    A preempted request waits before the others of its client; what is computed again is not charged again.
    """

    waiting: ClientQueue

    def __init__(
        self,
        kv: KvManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        w_in: float = 1.0,
        w_out: float = 2.0,
        enable_chunked_prefill: bool = True,
        faithful: bool = False,
    ) -> None:
        super().__init__(
            kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=enable_chunked_prefill,
            faithful=faithful,
        )
        self.w_in = w_in
        self.w_out = w_out
        self.accounts: dict[str, Account] = {}
        self.waiting = ClientQueue(self.counter)

    def counter(self, client_id: str) -> float:
        """Service that a client has had, in weighted tokens, as of the last step."""
        account = self.accounts[client_id]
        tokens_out = account.tokens_out + account.num_rows * (self.decode.steps - account.settled)
        return account.lift + self.w_in * account.tokens_in + self.w_out * tokens_out

    # -- charges -----------------------------------------------------------------------------------------------------

    def on_arrival(self, request: Request) -> None:
        """Queue a request; a client that did not wait yet takes no credit along."""
        client_id, queue = request.client_id, self.waiting
        account = self.accounts.setdefault(client_id, Account())
        if client_id not in queue.clients:
            if queue:
                least = self.counter(queue.next_client())
            else:
                least = self.counter(queue.last_left) if queue.last_left in self.accounts else 0.0
            account.lift += max(0.0, least - self.counter(client_id))
        super().on_arrival(request)

    def enter(self, row: Row) -> None:
        """A request is admitted; its prompt is charged for the first time only."""
        is_new = row.order == 0  # a row's place in the running list, counted from 1
        super().enter(row)
        if is_new:
            self.accounts[row.request.client_id].tokens_in += row.prompt_tokens

    def _count(self, row: Row, change: int, made: int = 0) -> None:
        """``change`` more requests of its client gain a token a step from now on; ``made`` came otherwise."""
        account, steps = self.accounts[row.request.client_id], self.decode.steps
        account.tokens_out += made + account.num_rows * (steps - account.settled)
        account.settled = steps
        account.num_rows += change

    def _book_chunks(self, finished: Sequence[Finish]) -> None:
        emitting = [chunk.id for chunk in self._chunks if chunk.emits]
        super()._book_chunks(finished)
        for request_id in emitting:
            row = self.running[request_id]
            self._count(row, int(row.is_decoding), made=1)

    def detach(self, row: Row) -> None:
        """Off the running list."""
        if row.is_decoding:
            self._count(row, -1)
        super().detach(row)

    def pause(self, row: Row) -> None:
        """Out of the next step."""
        self._count(row, -1)
        super().pause(row)

    def unpause(self) -> None:
        """In again."""
        for row in self._paused:
            self._count(row, 1)
        super().unpause()

    # -- horizon -----------------------------------------------------------------------------------------------------

    def horizon(self) -> Horizon:
        """Where blocks are short, until another client's turn comes, whose request may fit."""
        steps, arrivals_matter = super().horizon()
        if not self.waiting or len(self.running) >= self.max_num_seqs:
            return Horizon(steps, arrivals_matter)
        return Horizon(min(steps, self._steps_of_turn()), True)

    def _steps_of_turn(self) -> int:
        """Steps for which the head of the queue surely stays the head."""
        clients, accounts = self.waiting.clients, self.accounts
        head = self.waiting.next_client()
        rows, counter = accounts[head].num_rows, self.counter(head)
        steps = _FOREVER
        for name in clients:
            slower = rows - accounts[name].num_rows
            if slower > 0 and self.w_out > 0:
                gap = (self.counter(name) - counter) / (self.w_out * slower)
                steps = min(steps, max(0, ceil(gap) - 2))
        return steps
