"""Turns what an engine reports into the run record. One of these runs in either world; it only watches."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any, Final

from policies.core.plan import AllBut, Chunk, Decode, Finish, Load, QuietRun, StepPlan, StepResult, end_of
from policies.core.protocols import Policy
from policies.core.request import Request, RequestId
from traces.record.live import Live
from traces.record.packed import RequestPacker, StepPacker
from traces.record.schema import RecordSink

_BATCH: Final = 16_384
_NOTES: Final = 400
_ARRIVAL: Final = 0
_BEGIN: Final = 1
_STEP: Final = 2
_FINISH: Final = 3
_ALL: Final = Decode.ALL
_NONE: Final = Decode.NONE


class Recorder:
    """Observer that writes rows of steps, requests and irregular token gaps to sinks, in batches.

    All decoding rows that a step advances had their last token at the same time, except *stragglers* (a prompt's first
    token, a pause, a preemption), which are kept apart: so the gaps of a step cost O(changes).
    """

    def __init__(
        self,
        policy: Policy,
        sinks: Sequence[RecordSink],
        *,
        block_bytes: int = 0,
        keep_segments: bool = False,
        deliver_at_batch_end: bool = False,
    ) -> None:
        self._policy = policy
        self._sinks = sinks
        self._block_bytes = block_bytes
        self._keep_segments = keep_segments
        self._at_batch_end = deliver_at_batch_end
        self._live: dict[RequestId, Live] = {}
        self._stragglers: dict[RequestId, tuple[float, str]] = {}
        self._paused: set[RequestId] = set()
        self._num_late_frees = 0
        self._last_emit_s = 0.0
        self._ordinal = 0
        self._row = StepPacker()
        self._requests = RequestPacker()
        self._stalls: list[Any] = []
        self._run: QuietRun | None = None
        self._load = Load(0, 0, 0, 0, 0, 0, (), 0, 0)
        self._decodes = False
        self._notes: list[tuple[Any, ...]] = []
        self._note = self._notes.append
        # Of an engine that plans ahead: begun steps whose results are not in, and rows that left the first of them.
        self._is_begun = False
        self._begun_later: deque[tuple[Any, ...]] = deque()
        self._plan: StepPlan | None = None
        self._num_gone = self._num_ended = 0

    # -- what happens ------------------------------------------------------------------------------------------------

    def on_arrival(self, request: Request, now_s: float) -> None:
        """Start the account of a request."""
        self._note((_ARRIVAL, request))

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """Note who joins and leaves, and the state of the policy as the step begins."""
        policy, decode = self._policy, plan.decode
        idle: Sequence[RequestId] = ()
        if decode is not _ALL and decode is not _NONE:
            idle = decode.left_out if isinstance(decode, AllBut) else _left_out(plan, policy.queues().running)
        self._note((_BEGIN, plan, now_s, fresh, policy.load(), policy.kv.num_late_frees, idle))

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """Extend the current row or start one; book tokens and gaps."""
        self._note((_STEP, plan, result))
        if len(self._notes) >= _NOTES:
            self._account()

    def on_finish(self, finish: Finish, now_s: float) -> None:
        """A request's account is complete."""
        self._note((_FINISH, finish, now_s))
        if len(self._notes) >= _NOTES:
            self._account()

    def flush(self) -> None:
        """Hand over all that has happened, the last row of steps too: for a driver whose run may be killed, and which
        carries no quiet run on."""
        self._account()
        self._run = None
        self._flush(last=True)

    def _account(self) -> None:
        """Work off the notes. Not one by one as things happen: code that runs some hundred times in a row stays in the
        processor's caches, which halves its time, and it does not push the engine's code out of them each time."""
        for note in self._notes:
            kind: int = note[0]
            if kind == _BEGIN:
                if self._is_begun:
                    self._begun_later.append(note)
                else:
                    self._open(note, note[2], ())
            elif kind == _STEP:
                result: StepResult = note[2]
                self._step(note[1], result)
                self._is_begun = False
                if self._begun_later:
                    self._open(self._begun_later.popleft(), result[2], result[4])
            elif kind == _FINISH:
                self._finish(note[1], note[2])
            else:
                self._live[note[1].id] = Live(note[1])
        self._notes.clear()

    # -- plans -------------------------------------------------------------------------------------------------------

    def _open(self, note: tuple[Any, ...], start_s: float, ended: Sequence[Finish]) -> None:
        """A step begins: when it was planned, or, where the engine plans ahead, when the step before it has ended, and
        with it the requests ``ended``, of which nothing is left to book but that."""
        plan: StepPlan = note[1]
        idle: Sequence[RequestId] = note[6]
        if note[3]:
            if idle and ended:
                gone = {finish[0] for finish in ended}
                idle = [key for key in idle if key not in gone]
            self._begin(plan, start_s, note[5], idle)
        self._plan, self._load, self._decodes = plan, note[4], plan[5] is not _NONE
        self._is_begun = True
        self._num_gone = self._num_ended = 0

    def _begin(self, plan: StepPlan, now_s: float, num_late_frees: int, idle: Sequence[RequestId]) -> None:
        if plan.preempted:
            self._preempt(plan, now_s)
        if plan.joins:
            self._join(plan, now_s)
        if plan.chunks:
            self._chunk(plan.chunks)
        if self._paused or idle:
            self._pause(plan, idle)
        if num_late_frees != self._num_late_frees or plan.remaps:
            self._num_late_frees = num_late_frees
            self._run = None  # a row of the record knows only blocks that are taken
        if not self._load.residues and plan.grants:
            self._run = None  # a reservation was extended, which no residue foretells

    def _preempt(self, plan: StepPlan, now_s: float) -> None:
        for request_id, mode in plan.preempted:
            live = self._live[request_id]
            straggler = self._stragglers.pop(request_id, None)
            if live.decoding:
                live.emitted_s = straggler[0] if straggler else max(live.emitted_s, self._last_emit_s)
                self._stop_decoding(live)
            live.waiting_since_s = now_s
            if mode == "swap":
                live.swaps += 1
            else:
                live.recomputes += 1
                live.lost, live.computed = max(live.lost, live.computed), 0

    def _join(self, plan: StepPlan, now_s: float) -> None:
        for request_id, _ in plan.joins:
            live = self._live[request_id]
            live.stop_waiting(now_s)
            if live.first_scheduled_s != live.first_scheduled_s:
                live.first_scheduled_s = now_s
            if (
                live.output_tokens
                and live.computed >= live.request.prompt_tokens + live.output_tokens - 1
                and all(chunk.id != request_id for chunk in plan.chunks)
            ):
                # All that is known of it has KV, so it was swapped in.
                self._stragglers[request_id] = (live.emitted_s, "swap")
                self._start_decoding(live, nan)

    def _chunk(self, chunks: Sequence[Chunk]) -> None:
        for request_id, start, num_tokens, _ in chunks:
            live = self._live[request_id]
            if start and not live.computed:
                # Nothing was computed, or all of it was lost: these tokens were found in the prefix cache.
                if live.recomputes:
                    live.hit_resumed += start
                else:
                    live.hit_new += start
            live.computed = end = start + num_tokens
            if live.lost > start:
                live.recomputed += min(end, live.lost) - start

    def _pause(self, plan: StepPlan, idle: Sequence[RequestId]) -> None:
        """Rows that a step leaves out: their next gap is longer, and their stretch of decode steps is broken."""
        if plan.decode is _NONE:
            return
        paused = {key for key in idle if self._live[key].decoding}
        for request_id in sorted(paused - self._paused):
            live = self._live[request_id]
            self._stragglers.setdefault(request_id, (max(live.emitted_s, self._last_emit_s), "decode"))
            self._stop_decoding(live)
            live.decoding, live.since = True, -1
        for request_id in sorted(self._paused - paused):
            live_again = self._live.get(request_id)
            if live_again is not None and live_again.decoding:
                self._start_decoding(live_again, nan)
        self._paused = paused

    # -- results -----------------------------------------------------------------------------------------------------

    def _step(self, plan: StepPlan, result: StepResult) -> None:
        # One by one and by place: compiled, that is the cheapest way into a tuple.
        end_s, steps, run, first, emitted = result[2], result[3], result[5], result[6], result[8]
        if emitted:
            self._drop(emitted)
        load, chunks, row = self._load, plan[6], self._row
        emitting = load[7] - self._num_gone if self._decodes else 0
        if run is not None and run is self._run and not self._stragglers and self._is_like_before(plan, emitting):
            row.steps += steps
            row.end_s = end_s
        else:
            self._run = run
            row.begin()
            row.step, row.steps, row.start_s, row.end_s = result[0], steps, result[1], end_s
            num_seqs = plan.num_seqs
            if run is None:
                row.first, row.sum_context = -1, plan.sum_context
                row.anchor_s, row.base_s, row.slope_s, row.anchor_context = result[1], 0.0, 0.0, 0
            else:
                anchor_s, base_s, slope_s, context, num_seqs = run
                row.anchor_s, row.base_s, row.slope_s, row.anchor_context = anchor_s, base_s, slope_s, context
                row.first, row.sum_context = first, context + first * num_seqs
            row.num_seqs, row.num_tokens, row.emitting = num_seqs, plan.num_tokens, emitting
            row.irregular = 0
            if self._stragglers and emitting:
                row.irregular = self._release_stragglers(end_of(run, first + 1) if run is not None else end_s)
            row.moved_bytes = 0
            if plan.transfers:
                row.moved_bytes = sum([len(transfer.src) for transfer in plan.transfers]) * self._block_bytes
            num_emits = chunk_tokens = 0
            for request_id, _, num_tokens, emits in chunks:
                if emits and request_id in self._live:
                    num_emits += emitted.get(request_id, 1) if emitted else 1
                chunk_tokens += num_tokens
            row.chunk_emits, row.chunk_tokens = num_emits, chunk_tokens
            row.previous_emit_s = self._last_emit_s
            row.waiting, row.running, row.swapped = load[0], load[1] - self._num_ended, load[2]
            row.free_blocks, row.stored_tokens, row.phase, row.residues = load[3], load[4], load[5], load[6]
            row.limited_by = plan.limited_by
        if emitting:
            self._last_emit_s = end_s
            self._ordinal += steps
        if chunks:
            self._emit_chunks(plan, end_s, emitted, alone=not emitting)
        if self._at_batch_end:
            # Their clients learn of it later, and other rows go on decoding until then.
            for finish in result.finished:
                live = self._live.get(finish.id)
                if live is not None and live.decoding:
                    self._stop_decoding(live)

    def _is_like_before(self, plan: StepPlan, emitting: int) -> bool:
        """True if a step of the same run belongs to the current row."""
        row, load = self._row, self._load
        same: bool = (
            load[0] == row.waiting
            and load[2] == row.swapped
            and emitting == row.emitting
            and plan.limited_by == row.limited_by
        )
        return same

    def _release_stragglers(self, end_s: float) -> int:
        """Gaps of the rows that rejoin the others with this step."""
        stragglers = self._stragglers
        active = [key for key in stragglers if self._live[key].since >= 0]
        for request_id in active:
            last_s, cause = stragglers.pop(request_id)
            self._stalls.append((end_s - last_s, 1, cause))
        return len(active)

    def _drop(self, emitted: Mapping[RequestId, int]) -> None:
        """Decoding rows that get nothing from this step, because their engine has taken them back meanwhile."""
        for request_id, count in emitted.items():
            live = self._live.get(request_id)
            if live is not None and live.decoding and not count:
                straggler = self._stragglers.pop(request_id, None)
                live.emitted_s = straggler[0] if straggler else max(live.emitted_s, self._last_emit_s)
                self._stop_decoding(live)
                self._num_gone += 1

    def _emit_chunks(
        self, plan: StepPlan, end_s: float, emitted: Mapping[RequestId, int], *, alone: bool
    ) -> None:
        """First tokens, or the next ones after a preemption; ``alone`` if no decoding row gained one beside them."""
        for request_id, _, _, emits in plan.chunks:
            live = self._live.get(request_id)
            if emits and live is not None and emitted.get(request_id, 1):
                if live.first_token_s != live.first_token_s:
                    live.first_token_s = end_s
                else:
                    self._stalls.append((end_s - live.emitted_s, 1, "preemption"))
                live.emitted_s = end_s
                live.output_tokens += 1
                self._start_decoding(live, end_s)
                if alone:
                    self._stragglers[request_id] = (end_s, "decode")

    def _start_decoding(self, live: Live, token_s: float) -> None:
        live.decoding = True
        live.since = self._ordinal
        if self._keep_segments:
            live.segments += ((token_s, self._ordinal, 0),)

    def _stop_decoding(self, live: Live) -> None:
        """Close a stretch of decode steps."""
        live.decoding = False
        if live.since < 0:
            return
        steps = self._ordinal - live.since
        live.output_tokens += steps
        live.computed += steps
        if self._keep_segments:
            token_s, start, _ = live.segments[-1]
            live.segments = (*live.segments[:-1], (token_s, start, steps))

    # -- ends --------------------------------------------------------------------------------------------------------

    def _finish(self, finish: Finish, now_s: float) -> None:
        request_id, reason, num_output_tokens = finish
        live = self._live.pop(request_id)
        if live.waiting_since_s == live.waiting_since_s:
            live.stop_waiting(now_s)
        elif self._is_begun:
            self._num_ended += 1
        if self._stragglers:
            self._stragglers.pop(request_id, None)
        if live.decoding:
            self._stop_decoding(live)
            if self._is_begun:
                self._num_gone += self._is_in_step(request_id)
        if self._at_batch_end:
            delivered = num_output_tokens and reason in ("stop", "length")
            live.first_token_s = now_s if delivered else nan
            if delivered and num_output_tokens > 1:
                self._stalls.append((0.0, num_output_tokens - 1, "batch"))
        self._write(live, now_s, reason, num_output_tokens)

    def _is_in_step(self, request_id: RequestId) -> bool:
        """True if the step that runs decodes this row, which ended with the step before: that is wasted."""
        decode = self._plan.decode if self._plan is not None else _NONE
        if isinstance(decode, AllBut):
            return request_id not in decode.left_out
        return decode is _ALL or (not isinstance(decode, Decode) and request_id in decode)

    def _write(self, live: Live, finish_s: float, reason: str, output_tokens: int) -> None:
        if self._requests.num_rows >= _BATCH or self._row.num_closed >= _BATCH:
            self._flush()
        self._requests.add(live, finish_s, reason, output_tokens)

    def _flush(self, *, last: bool = False) -> None:
        """Hand over what there is; the current row of steps, which may still grow, only as the ``last``."""
        steps, requests = self._row.take(last=last), self._requests.take()
        for sink in self._sinks:
            sink.steps(steps)
            sink.requests(requests)
            sink.stalls(self._stalls)
        self._stalls = []

    def close(self, now_s: float) -> None:
        """The run is over: what still runs or waits is unfinished."""
        self._account()
        for live in self._live.values():
            if live.decoding:
                self._stop_decoding(live)
            live.stop_waiting(now_s)
            self._write(live, nan, "unfinished", live.output_tokens)
        self._live.clear()
        self._flush(last=True)
        for sink in self._sinks:
            sink.close()


def _left_out(plan: StepPlan, running: Sequence[RequestId]) -> Sequence[RequestId]:
    """The rows of the running list that a plan which names its rows does not compute."""
    decode = plan.decode
    assert not isinstance(decode, Decode)
    active = {*decode, *[chunk.id for chunk in plan.chunks]}
    return [key for key in running if key not in active]
