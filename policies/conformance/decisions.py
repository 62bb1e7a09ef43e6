"""Writes what a policy decides, one JSON object a line, in the schema of the recorded logs of real
schedulers.

``config`` first, then ``step`` lines, ``request`` lines and ``end``. Every step line has every field,
whichever engine the policy follows; a reader takes those that its engine has.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TextIO

from policies.core.errors import ContractError, EngineDied
from policies.core.plan import Finish, StepPlan, StepResult, Transfer
from policies.core.protocols import Counts, Details, Id, Ids, Policy
from policies.core.request import Request, RequestId

SCHEMA = 1
Line = dict[str, object]
"""One line of a log."""

_ENDED_BY_POLICY = ("prompt_too_long", "kv_capacity")
_NOTHING = StepPlan(0, 0, 0, 0, 0)


def request_name(request_id: RequestId) -> str:
    """Name of a request in a log written by this project."""
    return f"r{request_id:03d}"


def line_writer(stream: TextIO) -> Callable[[Line], object]:
    """Writes lines to a text stream, each flushed."""

    def write(line: Line) -> None:
        stream.write(json.dumps(line, separators=(",", ":")) + "\n")
        stream.flush()

    return write


class DecisionWriter:
    """A step observer that writes decisions; the comparison with recorded logs reads the same lines.

    It asks the policy for its batch order and queues, O(batch) a step, and needs a plan for every step: no
    step may be skipped or carried on, except in a group of ``num_scheduler_steps``, which is one line. ``t`` is
    the number of the next line; whoever drives may set it. Where the policy schedules ahead, a line holds a plan
    and the result of an earlier one, if one was due. ``close`` writes the requests, whose output lengths are known
    only then, and the end.
    """

    def __init__(
        self,
        policy: Policy,
        write: Callable[[Line], object],
        *,
        config: Mapping[str, object],
        name: Callable[[RequestId], str] = request_name,
    ) -> None:
        self.t = 0
        self._policy, self._write, self._name = policy, write, name
        self._requests: dict[RequestId, Line] = {}
        self._joined: set[RequestId] = set()
        self._arrived: list[RequestId] = []
        self._aborted: list[RequestId] = []
        self._ignored: list[RequestId] = []
        self._ignored_t = 0
        self._line: Line | None = None
        self._ahead: Line | None = None
        self._places: deque[dict[str, int]] = deque()
        # Of a plan that decodes for several steps: those without a result, and who ended in the others.
        self._steps_left = 0
        self._finished: list[Finish] = []
        self._steps = self._preemptions = self._swap_outs = 0
        self._died = False
        self._write({"type": "config", "schema": SCHEMA, **config})

    # -- step observer ---------------------------------------------------------------------------------------

    def on_arrival(self, request: Request, now_s: float) -> None:
        """A request the engine does not refuse arrives at the next step."""
        if self._policy.refusal(request) is not None:
            return
        self._flush_ignored()
        self._arrived.append(request.id)
        self._requests[request.id] = {
            "type": "request",
            "id": self._name(request.id),
            "arrival_step": self.t,
            "prompt_len": request.prompt_tokens,
            "output_len": request.max_tokens,
            "priority": request.priority,
            "segments": self._segments(request),
        }

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """First half of a line: what was planned."""
        if not fresh:
            if self._steps_left:
                return
            raise ContractError("decisions need a plan for every step; this one carries a quiet run on")
        self._flush_ahead()
        line = self._line = self._begun(plan, self.t)
        self._places.append({row[0]: index for index, row in enumerate(_rows(line))})
        if len(self._places) < self._policy.max_in_flight:
            self._ahead = {**line, "finished": [], **self._state()}

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """Second half of a line: what the step left behind."""
        if result.steps != 1 or not self._places:
            raise ContractError(
                f"decisions need one result for each plan; this one books {result.steps} steps"
            )
        if not self._steps_left:
            self._steps_left = self._policy.num_scheduler_steps if plan.num_seqs else 1
        self._finished += result.finished
        self._steps_left -= 1
        if self._steps_left:
            return
        place = self._places.popleft()
        names = [self._name(finish.id) for finish in self._finished]
        self._finished = []
        names.sort(key=lambda name: place.get(name, len(place)))
        line, self._line, self._ahead = self._line, None, None
        if line is not None:
            self._emit({**line, "finished": names, **self._state()})
        elif names:
            raise ContractError(f"{names[0]} ends in a step whose line is complete")

    def on_finish(self, finish: Finish, now_s: float) -> None:
        """Remember who went away and whom the policy ended; the next step line says so."""
        request = self._requests.get(finish.id)
        if request is None:
            return
        if finish.reason == "abort":
            self._aborted.append(finish.id)
            request["abort_step"] = self.t
        elif finish.reason in _ENDED_BY_POLICY:
            self._ignored.append(finish.id)
            self._ignored_t = self.t
        else:
            request["output_len"] = finish.num_output_tokens

    # -- other lines -----------------------------------------------------------------------------------------

    def die(self, error: EngineDied) -> None:
        """The engine ended inside its next step, unless the last line says that it did in that one."""
        if not self._died:
            self._write({**self._head(self.t), "error": str(error), "detail": type(error).__name__})

    def close(self, *, stopped: bool = False) -> None:
        """Write the requests and the end line. ``stopped``: what is unfinished would have gone on."""
        self._flush_ahead()
        self._flush_ignored()
        for request in self._requests.values():
            self._write(request)
        queues = self._policy.queues()
        unfinished = len(queues.waiting) + len(queues.running) + len(queues.swapped)
        end: Line = {
            "type": "end",
            "steps": self._steps,
            "preemptions": self._preemptions,
            "swap_outs": self._swap_outs,
            "unfinished": unfinished,
        }
        self._write({**end, "stopped": True} if stopped and unfinished else end)

    # -- step lines ------------------------------------------------------------------------------------------

    def _head(self, t: int) -> Line:
        line: Line = {"type": "step", "t": t, "arrived": self._names(self._arrived)}
        if self._aborted:
            line["aborted"] = self._names(self._aborted)
        self._arrived, self._aborted = [], []
        return line

    def _begun(self, plan: StepPlan, t: int) -> Line:
        rows = self._policy.batch_order()
        ignored, self._ignored = self._ignored, []
        blocks = {self._name(key): list(ids) for key, ids in (*plan.joins, *plan.grants) if ids}
        recomputed = [key for key, mode in plan.preempted if mode == "recompute"]
        swapped_out = [key for key, mode in plan.preempted if mode == "swap"]
        self._preemptions += len(recomputed)
        self._swap_outs += len(swapped_out)
        return {
            **self._head(t),
            "sched": [[self._name(row.id), row.num_tokens, row.context, int(row.emits)] for row in rows],
            "tokens": sum(row.num_tokens for row in rows),
            "batched_tokens": plan.num_tokens,
            **self._admitted(plan),
            "preempted": self._names(recomputed),
            "swapped_out": self._names(swapped_out),
            "swapped_in": self._names(transfer.id for transfer in plan.transfers if transfer.kind == "in"),
            "ignored": self._names(ignored),
            "blocks_out": _blocks(plan.transfers, "out"),
            "blocks_in": _blocks(plan.transfers, "in"),
            "new_blocks": blocks,
            "free_after_schedule": self._policy.kv.num_free,
            "cpu_free_after_schedule": self._policy.kv.cpu_pool.num_free,
            **self._named(self._policy.plan_details()),
        }

    def _admitted(self, plan: StepPlan) -> Line:
        """Ids taken from the waiting queue, by whether they had been before, and their cached tokens."""
        swapped_in = {transfer.id for transfer in plan.transfers if transfer.kind == "in"}
        ids = [key for key, _ in plan.joins if key not in swapped_in]
        new = [key for key in ids if key not in self._joined]
        resumed = [key for key in ids if key in self._joined]
        self._joined.update(new)
        starts = {chunk.id: chunk.start for chunk in plan.chunks}
        hits = {self._name(key): starts[key] for key in ids if starts.get(key, 0)}
        return {"new": self._names(new), "resumed": self._names(resumed), "hits": hits}

    def _state(self) -> Line:
        """The queues and free blocks as they are now."""
        queues, kv = self._policy.queues(), self._policy.kv
        return {
            "waiting": self._names(queues.waiting),
            "running": self._names(queues.running),
            "swapped": self._names(queues.swapped),
            "free": kv.num_free,
            "cpu_free": kv.cpu_pool.num_free,
            **self._named(self._policy.queue_details()),
        }

    def _emit(self, line: Line) -> None:
        """Write a step line."""
        self._write(line)
        self._died = "error" in line
        self._steps += 1
        self.t = max(self.t, _number(line["t"]) + 1)

    def _flush_ahead(self) -> None:
        """Write the line of a plan after which another one was made, before any result."""
        if self._ahead is not None:
            self._emit(self._ahead)
            self._line = self._ahead = None

    def _flush_ignored(self) -> None:
        """A pass that only ended requests makes no plan; write its line before anything else happens."""
        if self._ignored:
            self._emit({**self._begun(_NOTHING, self._ignored_t), "finished": [], **self._state()})

    def _named(self, details: Details) -> Line:
        """Fields with requests under their names."""
        fields: Line = {}
        for key, value in details.items():
            if isinstance(value, Ids):
                fields[key] = self._names(value)
            elif isinstance(value, Counts):
                fields[key] = [[self._name(request_id), count] for request_id, count in value]
            elif isinstance(value, Id):
                fields[key] = None if value.id is None else self._name(value.id)
            else:
                fields[key] = value
        return fields

    def _names(self, ids: Iterable[RequestId]) -> list[str]:
        return [self._name(key) for key in ids]

    def _segments(self, request: Request) -> list[list[object]]:
        """Prompt segments under the names of this log; none where the content is nobody else's and is not hashed."""
        return [[self._segment_name(key), length] for key, length in request.segments]

    def _segment_name(self, key: str) -> str:
        kind, _, rest = key.partition(":")
        return f"out:{self._name(int(rest))}" if kind == "out" and rest.isdecimal() else key


def _rows(line: Line) -> list[list[str]]:
    rows = line["sched"]
    assert isinstance(rows, list)
    return rows


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def _blocks(transfers: Sequence[Transfer], kind: str) -> int:
    return sum(len(transfer.src) for transfer in transfers if transfer.kind == kind)
