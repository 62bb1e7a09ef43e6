"""Replays what a measured engine was told through a fresh policy object: its decisions must be the same.

Times of plans, durations, and the arrivals, aborts, finishes and ends of transfers that each plan had seen come from
``events.jsonl`` of the run; nothing is simulated anew but the decisions.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from policies.conformance.decisions import DecisionWriter
from policies.conformance.decisions import Line as Decision
from policies.core.engine import Engine
from policies.core.errors import ContractError, RunError, UserError
from policies.core.plan import Idle, StepPlan, StepResult
from policies.core.protocols import Policy
from policies.core.request import RequestId
from sim.api import Setup, prepare
from sim.config import load_config
from sim.decisions import DECISIONS_NAME, first_difference, read_decisions, said
from traces.record.events import EVENTS_NAME, Line, plan_fields, read_events, request_of, result_of
from traces.workload.rows import TraceRow
from traces.workload.source import Workload

_FIELDS = (*StepPlan._fields, *(name for name in Idle._fields if name not in StepPlan._fields))


class Replay(NamedTuple):
    """``plans`` that were made again, in ``steps`` steps, with whatever came in between; the first difference in words,
    None if there is none. ``decisions`` counts the lines of the decision log that were compared as well."""

    plans: int
    steps: int
    arrivals: int
    aborts: int
    decisions: int
    difference: str | None


class RecordedBackend:
    """A backend that answers each plan with the result that was recorded for it."""

    max_in_flight = 1 << 30

    def __init__(self) -> None:
        self._tickets = 0
        self._results: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> int:
        """Nothing is computed."""
        self._tickets += 1
        return self._tickets

    def recorded(self, result: StepResult) -> None:
        """The result of the oldest plan is known."""
        self._results.append(result)

    def collect(self, ticket: int) -> StepResult:
        """The recorded result, with its times."""
        return self._results.popleft()


class _Differs(Exception):
    """The replay parts from the record here."""


def replay_run(folder: Path | str) -> Replay:
    """Replay a measured run. Raises a UserError where the folder is none, or its policy cannot be built again."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the folder of a run of 'batchscope execute'")
    path = folder / EVENTS_NAME
    if not path.is_file():
        raise UserError(f"{folder}: no {EVENTS_NAME}; only a run of 'batchscope execute' can be replayed")
    setup = _fresh(folder)
    lengths: dict[RequestId, int] = {}
    setup.services.lengths = lengths
    decisions = folder / DECISIONS_NAME
    return replay_events(
        read_events(path),
        setup.policy,
        lengths,
        deliver_at_batch_end=setup.options.deliver_at_batch_end,
        decisions=read_decisions(decisions) if decisions.is_file() else None,
    )


def replay_events(
    events: Iterable[Line],
    policy: Policy,
    lengths: dict[RequestId, int],
    *,
    deliver_at_batch_end: bool = False,
    decisions: Iterator[Decision] | None = None,
) -> Replay:
    """Drive a new ``policy`` by recorded events; ``lengths`` is filled with the output tokens of the requests that have
    no end, for oracles. ``decisions`` are step lines to be compared with those that it makes."""
    return _Replay(policy, lengths, deliver_at_batch_end=deliver_at_batch_end, decisions=decisions).run(events)


def _fresh(folder: Path) -> Setup:
    """The engine of a run, new."""
    toml = folder / "run.toml"
    if not toml.is_file():
        raise UserError(f"{folder}: no run.toml, so that its policy cannot be built again; run again")
    config = load_config(str(toml))
    return prepare(config, workload=_NOTHING, num_gpu_blocks=config.engine.num_gpu_blocks)


def _no_rows() -> Iterator[TraceRow]:
    return iter(())


_NOTHING = Workload(_no_rows, 0, (), None, 0.0, "what was recorded", "trace", "cut")


class _Replay:
    """One replay, event by event."""

    def __init__(
        self,
        policy: Policy,
        lengths: dict[RequestId, int],
        *,
        deliver_at_batch_end: bool,
        decisions: Iterator[Decision] | None,
    ) -> None:
        self._lengths = lengths
        self._recorded, self._compared = decisions, 0
        self._made: deque[Decision] = deque()
        self._writer = None if decisions is None else DecisionWriter(policy, self._made.append, config={})
        self._engine = Engine(policy, observer=self._writer, deliver_at_batch_end=deliver_at_batch_end)
        self._backend = RecordedBackend()
        self._tickets: deque[int] = deque()
        self._arrivals = self._aborts = self._finishes = self._plans = self._steps = 0
        self._handlers: dict[str, Callable[[Line], None]] = {
            "arrival": self._arrive,
            "abort": self._abort,
            "transfer": self._transfer,
            "plan": self._plan,
            "idle": self._plan,
            "result": self._result,
            "died": self._die,
            "end": self._end,
        }

    def run(self, events: Iterable[Line]) -> Replay:
        """Until the events end, or until something differs."""
        difference = None
        try:
            for event in events:
                handler = self._handlers.get(event["type"])
                if handler is not None:
                    handler(event)
                    self._compare_decisions()
        except _Differs as error:
            difference = str(error)
        except (KeyError, TypeError, IndexError, ContractError) as error:
            difference = f"after {self._plans:,} plans: the recorded events do not fit this policy ({error!r})"
        return Replay(self._plans, self._steps, self._arrivals, self._aborts, self._compared, difference)

    # -- what came in ------------------------------------------------------------------------------------------------

    def _arrive(self, event: Line) -> None:
        request, stop = request_of(event)
        self._arrivals += 1
        self._lengths[request.id] = stop.num_output_tokens
        now_s, refused = event["now_s"], event["refused"]
        if refused == "over_length":
            self._engine.turn_away(request, refused, now_s)
            return
        finish = self._engine.refuse(request, now_s)
        reason = None if finish is None else finish.reason
        if reason != refused:
            raise _Differs(f"request {request.id} at the door: recorded {said(refused)}, replayed {said(reason)}")
        if finish is None:
            self._engine.take(request, now_s)

    def _abort(self, event: Line) -> None:
        self._aborts += 1
        finish = self._engine.abort(event["id"], event["now_s"])
        self._lengths.pop(finish.id, None)
        if finish.num_output_tokens != event["output_tokens"]:
            raise _Differs(
                f"abort of request {finish.id}: recorded {event['output_tokens']} output tokens, replayed"
                f" {finish.num_output_tokens}"
            )

    def _transfer(self, event: Line) -> None:
        self._engine.transfer_done(self._engine.policy.kv.in_transit[event["key"]])

    # -- plans and results -------------------------------------------------------------------------------------------

    def _plan(self, event: Line) -> None:
        kind = event["type"]
        self._check_seen(event)
        try:
            plan = self._engine.plan(event["now_s"])
        except RunError as error:
            raise _Differs(f"plan {self._plans}: recorded one, replayed {type(error).__name__}: {error}") from None
        made = "idle" if isinstance(plan, Idle) else "plan"
        if made != kind:
            when = f"plan {self._plans} at {event['now_s']:.6f} s"
            raise _Differs(f"{when}: recorded {_kind(kind)}, replayed {_kind(made)}")
        self._compare(event[kind], json.loads(json.dumps(plan_fields(plan))), event["now_s"])
        self._finishes += len(plan.rejected)
        for finish in plan.rejected:
            self._lengths.pop(finish.id, None)
        if isinstance(plan, StepPlan):
            self._plans += 1
            self._tickets.append(self._backend.submit(plan))

    def _check_seen(self, event: Line) -> None:
        seen = [self._arrivals, self._aborts, self._finishes]
        if event["seen"] != seen:
            raise _Differs(
                f"plan {self._plans}: it had seen {event['seen']} arrivals, aborts and finishes, and before it {seen}"
                " are recorded"
            )

    def _compare(self, recorded: dict[str, Any], replayed: dict[str, Any], now_s: float) -> None:
        for name in _FIELDS:
            if recorded.get(name) != replayed.get(name):
                raise _Differs(
                    f"plan {self._plans} at {now_s:.6f} s: {name} differs\n"
                    f"  recorded {said(recorded.get(name))}\n  replayed {said(replayed.get(name))}"
                )

    def _result(self, event: Line) -> None:
        if event.get("carried"):
            self._engine.carry_on(event["start_s"])
            ticket = 0
        else:
            ticket = self._tickets.popleft()
        self._backend.recorded(result_of(event))
        result = self._backend.collect(ticket)
        self._steps += 1
        self._finishes += len(result.finished)
        for finish in self._engine.complete(result):
            self._lengths.pop(finish.id, None)

    def _die(self, event: Line) -> None:
        try:
            self._engine.plan(event["now_s"])
        except RunError as error:
            if type(error).__name__ != event["error"]:
                raise _Differs(f"recorded {event['error']}, replayed {type(error).__name__}: {error}") from None
            return
        raise _Differs(f"after {self._plans} plans: recorded {event['error']}, replayed a plan")

    def _end(self, event: Line) -> None:
        """The last line of the decision log may be complete only now."""
        if self._writer is not None:
            self._writer.close()

    def _compare_decisions(self) -> None:
        """The lines of the decision log that are complete."""
        while self._made and self._recorded is not None:
            made = self._made.popleft()
            if made["type"] != "step":
                continue
            recorded = next(self._recorded, None)
            if recorded is None:
                self._recorded = None  # a run that was killed wrote no more
                return
            found = first_difference(recorded, json.loads(json.dumps(made)), ("recorded", "replayed"))
            if found is not None:
                raise _Differs(found)
            self._compared += 1


def _kind(kind: str) -> str:
    return "no step" if kind == "idle" else "a step"
