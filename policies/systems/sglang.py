"""SGLang's scheduler (0.4.9, page size 1): prefill first, optimistic admission, retraction, radix cache.

A pass either prefills waiting requests or runs one decode step of all running ones. Admission reserves only a part of
what running requests may still make; when a decode pass finds too few slots, requests are retracted.

The real engine may plan a step before it knows the tokens of the one before (overlap): then every test sees output
counts one behind, and a request that ends is run once more for nothing. That is a matter of who drives: the policy
keeps account of the steps in flight, and ``max_in_flight`` says how many the real engine has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.core.errors import ConfigError, ContractError, EngineDied
from policies.core.native import mypyc_attr
from policies.core.plan import Decode, Finish, Grant, Horizon, Idle, Remap, StepPlan
from policies.core.radix_kv import RadixKv
from policies.core.unnumbered import Ids
from policies.systems.sglang_admission import Admission, Made
from policies.systems.sglang_base import SgLangBase
from policies.systems.sglang_queue import SCHEDULING, Scheduling, reorder
from policies.systems.sglang_retract import retract
from policies.systems.sglang_rows import Flight, SlotRow

INITIAL_RATIO = 0.7
MIN_RATIO_FACTOR = 0.14
RATIO_DECAY_STEPS = 600.0

_ALL: Final = Decode.ALL
_NONE: Final = Decode.NONE
_NO_STEPS: Final = Horizon(0, True)
_new_tuple: Final = tuple.__new__
"""Makes a NamedTuple at a third of the cost of calling its class, in what runs every step."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SgLang(SgLangBase):
    """SGLang's scheduler.

    ``max_num_seqs`` is its max_running_requests, ``max_num_batched_tokens`` its max_prefill_tokens.
    ``chunked_prefill_size`` tokens of a prompt at a time, 0: no chunks. ``scheduling`` is the order of the waiting
    queue, ``schedule_conservativeness`` scales the part of the remaining output that is reserved.
    ``enable_mixed_chunk`` lets running requests decode beside a prefill. ``ignore_eos`` says that all requests run to
    ``max_tokens``, which without a prefix cache makes admission exact. ``overlap`` plans one step ahead.
    ``fits_requests``: see ``SgLangBase``.

    ``faithful`` keeps the real engine's deaths; otherwise a request alone in the pool that gets no slot ends with
    ``kv_capacity``, and where a mixed step lacks slots, its decodes wait or its chunk starts over.
    """

    def __init__(
        self,
        kv: RadixKv,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        chunked_prefill_size: int = 8_192,
        scheduling: Scheduling = "fcfs",
        schedule_conservativeness: float = 1.0,
        enable_mixed_chunk: bool = False,
        ignore_eos: bool = False,
        overlap: bool = False,
        fits_requests: bool = True,
        faithful: bool = False,
    ) -> None:
        super().__init__(kv, max_model_len=max_model_len, fits_requests=fits_requests)
        if scheduling not in SCHEDULING:
            raise ConfigError(f"scheduling is '{scheduling}'; SGLang's orders are {', '.join(SCHEDULING)}")
        self.max_num_seqs = max_num_seqs
        self.max_prefill_tokens = max_num_batched_tokens
        self.chunked_prefill_size = chunked_prefill_size
        self.scheduling = scheduling
        self.is_mixed = enable_mixed_chunk and chunked_prefill_size > 0
        self.replays = ignore_eos and kv.tree is None
        self.max_in_flight = 2 if overlap else 1
        self.faithful = faithful
        self.initial_ratio = min(INITIAL_RATIO * schedule_conservativeness, 1.0)
        self.min_ratio = min(self.initial_ratio * MIN_RATIO_FACTOR, 1.0)
        self.ratio_decay = (self.initial_ratio - self.min_ratio) / RATIO_DECAY_STEPS
        self.ratio = self.initial_ratio
        self._rests = False
        self._step = 0
        self._stopped_by = "arrivals"

    # -- passes ------------------------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Prefill what may be admitted; else decode all running requests."""
        for flight in self._flights:
            if flight.decodes and not flight.is_booked:
                self.running.decode.advance(1)
                flight.is_booked = True
        self._clear_plan()
        if self._rests:
            self.ratio, self._rests = self.initial_ratio, False
        self._merge()
        while not (self._prefill() or self._decode()):
            if not self._refuses_head():
                return self._idle()
        return self._make_plan()

    def _merge(self) -> None:
        """The rows of the last prefill join the running list, without ended ones and the one in mid-prefill."""
        chunked = self.chunked
        if chunked is not None:
            self._remember(chunked, chunked.num_computed_tokens)
        if not self.joining:
            return
        kept = [row for row in self.joining if not row.ended and row is not chunked]
        if self.rejoins or len(kept) < len(self.joining) or (kept and not self.running.rows):
            self.is_full = False
        self.joining = []
        if self.rejoins:
            self.running.drop_ended()
            self.running.put_before(kept)
            self.rejoins = False
        else:
            self.running.append(kept)

    def _refuses_head(self) -> bool:
        """True if the head of the queue does not even fit the empty pool and is ended; the real engine, whose latch
        nobody can clear, would never look at its queue again."""
        if self.faithful or not self.waiting or not self.is_full:
            return False
        self.is_full = False
        if any(flight.decodes or flight.chunks for flight in self._flights):
            return False  # what it holds comes back first
        row = self.waiting.popleft()
        self._rejected.append(Finish(row.id, "kv_capacity", row.num_tokens - row.prompt_tokens))
        return True

    def _idle(self) -> StepPlan | Idle:
        """Nothing runs: the ratio starts anew. An empty plan says that the next pass finds something else."""
        self._rests = not self._flights
        self.mode = "idle"
        if self.waiting and not self.is_full:
            return self._make_plan()
        leaves = tuple(self._leaves)
        self._leaves.clear()
        return Idle("blocked" if self.waiting else "no_requests", None, leaves, tuple(self._rejected))

    def _make_plan(self) -> StepPlan:
        num_seqs = num_tokens = sum_context = max_context = 0
        if self._decodes:
            num_seqs, sum_context, max_context = self.running.decode.totals()
            num_tokens = num_seqs
        for chunk in self._chunks:
            num_tokens += chunk[2]
        remaps: tuple[Remap, ...] = ()
        if self._remaps:
            remaps = tuple([remap for remap in self._remaps if remap[0] in self._kv.tables])
            self._remaps.clear()
        plan = _new_tuple(StepPlan, (
            self._step, num_seqs, num_tokens, sum_context, max_context, _ALL if self._decodes else _NONE, self._chunks,
            tuple(self._joins), self._grants, tuple(self._leaves), tuple(self._preempted),
            tuple(self._rejected), (), (), self._stopped_by if self.waiting else "arrivals", 0, remaps,
        ))  # fmt: skip
        self._leaves.clear()
        self._flights.append(Flight(self._chunks, decodes=self._decodes))
        self._step += 1
        return plan

    # -- prefill -----------------------------------------------------------------------------------------------------

    def _prefill(self) -> bool:
        """Put a prefill batch together; False if there is none."""
        if (self.is_full or not self.waiting) and self.chunked is None:
            return False
        if self.chunked is None and len(self.running.rows) >= self.max_num_seqs:
            self.is_full, self._stopped_by = True, "max_num_seqs"
            return False
        num_mixed = len(self.running.rows) if self.is_mixed else 0
        if self.chunked is not None and not self._chunk_fits(self.chunked, num_mixed):
            self._kv.retract(self.chunked.id)
            self._start_over(self.chunked)
            self.chunked = None
            return False
        self.waiting = reorder(self.waiting, self.scheduling, self._kv)
        batch = Admission(
            self._kv,
            ratio=self.ratio,
            running=self._running,
            max_running_tokens=self.running.max_tokens,
            num_mixed=num_mixed,
            max_prefill_tokens=self.max_prefill_tokens,
            chunk_tokens=self.chunked_prefill_size,
        )
        self._admit(batch)
        if batch.rows:
            self._start(batch)
        return bool(batch.rows)

    def _running(self) -> list[Made]:
        return self._made(self.running.rows.values())

    def _chunk_fits(self, row: SlotRow, num_mixed: int) -> bool:
        """The real engine does not look; its mixed steps die where decodes have used the memory of a prompt up."""
        count = min(row.num_tokens - row.num_computed_tokens, self.chunked_prefill_size - num_mixed)
        return self.faithful or count <= self._kv.num_free

    def _admit(self, batch: Admission) -> None:
        """The request in mid-prefill, then waiting ones until one does not fit."""
        if self.chunked is not None:
            batch.go_on(self.chunked, faithful=self.faithful)
        room = self.max_num_seqs - len(self.running.rows)
        self._stopped_by = "arrivals"
        for row in self.waiting:
            stop = "max_num_seqs" if len(batch.rows) >= room else batch.add(row, replay=self.replays)
            if stop:
                self._stopped_by = stop
                self.is_full = self.is_full or stop != "token_budget"
                break

    def _start(self, batch: Admission) -> None:
        """Take the slots of a prefill batch, and of the decodes that ride along."""
        prefixes = {row.id: prefix for row, prefix in batch.started}
        total = 0
        for chunk in batch.chunks:
            total += chunk[2]
        if not self._kv.make_room(total):
            raise EngineDied(f"prefill out of memory: {total} KV slots asked for, {self._kv.num_free} left")
        grants: list[Grant] = []
        for place, (request_id, start, count, emits) in enumerate(batch.chunks):
            row = batch.rows[place]
            if request_id in prefixes:
                self.waiting.popleft()
                self._started[request_id] = row
                self._joins.append((request_id, self._kv.start(request_id, prefixes[request_id], count)))
            elif count:
                grants.append((request_id, self._kv.extend(request_id, count)))
            row.num_computed_tokens = start + count
            row.num_tokens += emits
        self.chunked = batch.chunked
        self.joining = batch.rows
        self._chunks = tuple(batch.chunks)
        self._grants = tuple(grants)
        self.mode = "extend"
        if self.is_mixed and self.running.rows:
            self._mix()

    def _mix(self) -> None:
        """Let the running requests decode beside the prefill, behind whose rows they stand from now on."""
        running = self.running
        running.drop_ended()
        count = len(running.rows)
        if not self._kv.make_room(count):
            if self.faithful:
                raise EngineDied(f"decode out of memory: {count} KV slots asked for, {self._kv.num_free} left")
            return
        if count:
            grants = running.decode.take()
            self._grants = (*self._grants, *grants) if self._grants else grants
            self._decodes, self.mode = True, "mixed"
        self.rejoins = True

    # -- decode ------------------------------------------------------------------------------------------------------

    def _decode(self) -> bool:
        """One step of all running requests; False if there are none."""
        running = self.running
        before = len(running.rows)
        running.drop_ended()
        if running.rows:
            if self._kv.make_room(len(running.rows)):
                self._lower_ratio(1)
            else:
                self._retract()
        if len(running.rows) < before:
            self.is_full = False
        if not running.rows:
            return False
        self._grants = running.decode.take()
        self._decodes, self.mode = True, "decode"
        return True

    def _lower_ratio(self, steps: int) -> None:
        """Step by step, as the engine subtracts it."""
        ratio, decay, least = self.ratio, self.ratio_decay, self.min_ratio
        for _ in range(steps):
            ratio -= decay
            if ratio <= least:
                ratio = least
                break
        self.ratio = ratio

    def _retract(self) -> None:
        found = retract(self._kv, self._running())
        for flight in self._flights:
            flight.places = {key: row.order for key, row in self.running.rows.items()}
        for row in found.retracted:
            self._start_over(row)
        self.running.reseat(found.kept)
        self.ratio = found.ratio
        if found.is_stuck:
            row = found.kept[0]
            if self.faithful:
                raise EngineDied(f"no KV slot left for request {row.id}, the only one that runs")
            self._end(row)
            self._rejected.append(Finish(row.id, "kv_capacity", row.num_tokens - row.prompt_tokens))
            self.running.drop_ended()

    def horizon(self) -> Horizon:
        """Slots only shrink in a quiet run; while the latch is set nobody looks at the queue, and who waits hides later
        arrivals."""
        if not self._decodes or self._chunks or (self.waiting and not self.is_full):
            return _NO_STEPS
        if any(flight.gives_back for flight in self._flights):
            return _NO_STEPS
        return _new_tuple(Horizon, (self._kv.num_free // len(self.running.decode.rows), not self.waiting))

    def skip(self, steps: int) -> Sequence[Grant]:
        """Slots of further steps of a quiet run. Each evicts as the real one does, and lowers the ratio."""
        decode, kv = self.running.decode, self._kv
        count, left = len(decode.rows), steps
        slots: Ids = []
        while left:
            if not kv.make_room(count):
                raise ContractError(f"steps booked beyond the horizon: {count} slots a step, {kv.num_free} left")
            now = min(left, kv.pool.num_free // count)
            taken = kv.pool.take(now * count)
            if slots:
                slots.extend(taken)
            else:
                slots = taken
            left -= now
        self._lower_ratio(steps)
        self._step += steps
        if self._flights:
            decode.advance(steps)
            self._flights[-1].steps += steps
        else:  # further steps of a quiet run whose last one is booked
            decode.advance(steps - 1)
            self._flights.append(Flight((), decodes=True, steps=steps))
        return decode.share_out(slots)
