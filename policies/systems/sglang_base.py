"""SGLang's requests and where they are: the part of its scheduler that decides nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from policies.core.errors import ContractError
from policies.core.native import mypyc_attr
from policies.core.plan import BatchRow, Chunk, Finish, Grant, Load, PreemptionMode, Queues, Remap, StepResult
from policies.core.protocols import Details, Id, Ids, Policy
from policies.core.radix_kv import RadixKv
from policies.core.request import Request, RequestId
from policies.systems.sglang_admission import Made
from policies.systems.sglang_rows import Flight, RunningList, SlotRow

_new_tuple: Final = tuple.__new__

INPUT_MARGIN = 4
"""A prompt that leaves no more room for output than so many tokens is refused."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SgLangBase(Policy):
    """Queues, the running list, the rows of the last prefill (``joining``) and the one in mid-prefill (``chunked``).
    After a mixed step the running list ``rejoins``, behind the prefilled rows.

    With ``fits_requests`` prompt and output together stay two tokens below context and pool, as the server has it: its
    door refuses prompts that leave too little room, and lowers a ``max_tokens`` beyond it.
    """

    def __init__(self, kv: RadixKv, *, max_model_len: int, fits_requests: bool) -> None:
        self.kv = kv
        self._kv = kv  # the same by its own type, which compiled code must not put into an attribute of the parent
        self.max_model_len = max_model_len
        self.fits_requests = fits_requests
        if fits_requests:
            self.tokens_past_length = min(kv.num_blocks - max_model_len, 0) - 2
        self.is_full = False
        self.mode = "idle"
        self.ratio = 0.0
        self.waiting: deque[SlotRow] = deque()
        self.running = RunningList(kv)
        self.joining: list[SlotRow] = []
        self.rejoins = False
        self.chunked: SlotRow | None = None
        self._started: dict[RequestId, SlotRow] = {}
        self._flights: list[Flight] = []  # few: a list is quickest at both ends
        self._remaps: list[Remap] = []
        self._leaves: list[RequestId] = []
        self._joins: list[Grant] = []
        self._preempted: list[tuple[RequestId, PreemptionMode]] = []
        self._rejected: list[Finish] = []
        self._clear_plan()

    def _clear_plan(self) -> None:
        self._chunks: tuple[Chunk, ...] = ()
        self._decodes = False
        self._grants: Sequence[Grant] = ()
        if self._joins:
            self._joins = []
        if self._preempted:
            self._preempted = []
        if self._rejected:
            self._rejected = []

    # -- arrivals and aborts -----------------------------------------------------------------------------------------

    def refusal(self, request: Request) -> str | None:
        """A prompt that leaves too little room for output is refused."""
        margin = INPUT_MARGIN if self.fits_requests else 0
        room = self.max_model_len + self.tokens_past_length - request.prompt_tokens
        return "prompt_too_long" if room <= margin else None

    def on_arrival(self, request: Request) -> None:
        """Queue a request."""
        row = SlotRow(request)
        if self.fits_requests:
            room = self.max_model_len + self.tokens_past_length - request.prompt_tokens
            row.max_tokens = min(row.max_tokens, room)
        self.waiting.append(row)

    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request; what it has computed stays in the cache."""
        row = self._started.get(request_id)
        if row is None:
            row = next((row for row in self.waiting if row.id == request_id), None)
            if row is None:
                raise ContractError(f"abort of request {request_id}, which this policy does not hold")
            self.waiting.remove(row)
        else:
            self._end(row)
        return row.num_tokens - row.prompt_tokens

    def _known(self, row: SlotRow) -> int:
        """Tokens of a row without the one that a step in flight makes."""
        num_tokens = self.running.decode.num_tokens(row)
        return num_tokens - any(flight.makes_token_of(row) for flight in self._flights)

    def _made(self, rows: Iterable[SlotRow]) -> list[Made]:
        """Rows of the running list and the output tokens known of each."""
        if self._flights:
            return [(row, (row.num_tokens if row.ended else self._known(row)) - row.prompt_tokens) for row in rows]
        steps = self.running.decode.steps
        return [(row, (row.offset + steps if row.is_decoding else row.num_tokens) - row.prompt_tokens) for row in rows]

    def _end(self, row: SlotRow) -> None:
        """Keep the tokens of a row in the cache and let it go; its place in the running list is free later."""
        num_tokens = self._known(row)
        if row.is_decoding:
            self.running.decode.leave(row)
        row.num_tokens, num_stored = num_tokens, num_tokens - 1
        if row is self.chunked:
            num_stored, self.chunked = row.num_computed_tokens, None
        late = self._kv.finish(row.id, row.text, num_stored)
        if late:
            self._flights[-1].hold(late)
        self.running.end(row)
        del self._started[row.id]
        self._leaves.append(row.id)

    def _start_over(self, row: SlotRow) -> None:
        """A request whose table is closed waits at the end of the queue; a token in flight is made again."""
        num_tokens = self._known(row)
        if row.is_decoding:
            self.running.decode.leave(row)
        row.num_tokens, row.num_computed_tokens = num_tokens, 0
        for flight in self._flights:
            flight.dropped |= {row.id}
        del self._started[row.id]
        row.may_hit = True
        self.waiting.append(row)
        self._leaves.append(row.id)
        self._preempted.append((row.id, "recompute"))

    # -- results -----------------------------------------------------------------------------------------------------

    def on_step_end(self, result: StepResult) -> None:
        """Tokens of the oldest step in flight: prefilled rows enter the cache, ended ones go, in batch order."""
        steps, finished = result[3], result[4]
        flight = self._flights[0]
        slots = flight.let_go()  # those that end now give theirs to the steps that are left
        flight.steps -= steps
        if not flight.steps:
            self._flights.pop(0)
            if flight.decodes and not flight.is_booked:
                self.running.decode.advance(1)
        ended = {finish[0] for finish in finished} if finished else ()
        if flight.chunks:
            self._book_chunks(flight, ended)
        if ended:
            self._end_all(ended, flight)
        if slots:
            self._kv.release(slots)

    def _end_all(self, ended: Iterable[RequestId], flight: Flight) -> None:
        """Those that this step ended, in batch order."""
        rows = [self._started[key] for key in ended if key in self._started and key not in flight.dropped]
        if len(rows) > 1:
            rows.sort(key=lambda row: flight.places.get(row.id, row.order))
        for row in rows:
            self._end(row)

    def _book_chunks(self, flight: Flight, ended: Iterable[RequestId]) -> None:
        for request_id, start, count, emits in flight.chunks:
            row = self._started.get(request_id)
            if row is None or not emits or request_id in flight.dropped:
                continue
            if request_id in ended:
                self._end(row)
            else:
                self._remember(row, start + count)

    def _remember(self, row: SlotRow, num_tokens: int) -> None:
        """Enter a row's first tokens in the cache."""
        remap = self._kv.remember(row.id, row.text, num_tokens)
        if remap is not None:
            self._remaps.append(remap)

    # -- views -------------------------------------------------------------------------------------------------------

    def batch_order(self) -> list[BatchRow]:
        """Prefills, then decodes in running order."""
        order = [BatchRow(key, count, start, emits) for key, start, count, emits in self._chunks]
        if self._decodes:
            decode = self.running.decode
            order += [BatchRow(key, 1, decode.num_tokens(row) - 1, True) for key, row in decode.rows.items()]
        return order

    def load(self) -> Load:
        """Queue lengths, slots that are free or can be evicted, stored tokens."""
        decode = self.running.decode
        rows = len(decode.rows)
        stored = decode.sum_context + (self.chunked.num_computed_tokens if self.chunked is not None else 0)
        return _new_tuple(Load, (
            len(self.waiting), len(self._started), 0, self._kv.num_free, stored, 0, (rows,), rows, 0
        ))  # fmt: skip

    def queues(self) -> Queues:
        """Waiting requests, and those with slots: the running list, then the rows of the last prefill."""
        running, joining = self.running.live(), [row.id for row in self.joining if not row.ended]
        if self.chunked is not None and self.chunked not in self.joining:  # the engine died before its next chunk
            joining.append(self.chunked.id)
        started = (*joining, *running) if self.rejoins else (*running, *joining)
        return Queues(tuple(row.id for row in self.waiting), started)

    def plan_details(self) -> Details:
        """Free slots are those that need no eviction."""
        return {
            "mode": self.mode,
            "chunked": Id(self.chunked.id if self.chunked is not None else None),
            "free_after_schedule": self._kv.pool.num_free,
            "evictable_after_schedule": self._kv.evictable,
            "new_token_ratio": self.ratio,
        }

    def queue_details(self) -> Details:
        """``joining`` are the rows of the last prefill that will join the running list."""
        running = self.running.live()
        joining = [row.id for row in self.joining if not row.ended and row is not self.chunked]
        if self.rejoins:
            running, joining = [], joining + running
        return {
            "running": Ids(running),
            "joining": Ids(joining),
            "full": self.is_full,
            "free": self._kv.pool.num_free,
            "evictable": self._kv.evictable,
        }
