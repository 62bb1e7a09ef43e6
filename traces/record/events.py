"""What an engine was told and what it planned, in order: enough to drive a fresh policy the same way again.

One JSON object a line, flushed with every result: ``arrival``, ``abort`` and ``transfer`` as the engine saw them,
``plan`` or ``idle`` with the time of the call and the ordinals of the arrivals, aborts and finishes it had seen,
``result`` of each step, ``died`` where planning ended the run, ``end``. Requests keep their ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from policies.core.errors import UserError
from policies.core.plan import Decode, Finish, Idle, StepPlan, StepResult, StepTime
from policies.core.request import Request, RequestId, Slo
from policies.core.stops import Stop
from policies.json_text import log_lines

SCHEMA: Final = 1
EVENTS_NAME: Final = "events.jsonl"
"""Its file in a run folder."""

Line = Mapping[str, Any]

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_PLAN_DEFAULTS: Final = StepPlan._field_defaults
_IDLE_DEFAULTS: Final = Idle._field_defaults


class EventLog:
    """Writes the events of one run to ``path``."""

    def __init__(self, path: Path | str) -> None:
        self._file = Path(path).open("w", encoding="utf-8", newline="\n")  # noqa: SIM115 (close closes it)
        self._arrivals = self._aborts = self._finishes = 0
        self._write({"type": "run", "schema": SCHEMA})

    def arrival(self, request: Request, stop: Stop, now_s: float, refused: str | None) -> None:
        """A request came in; ``refused`` says why it was turned away, if it was."""
        self._arrivals += 1
        self._write({"type": "arrival", "now_s": now_s, "request": request, "stop": stop, "refused": refused})

    def abort(self, finish: Finish, now_s: float) -> None:
        """A client went away."""
        self._aborts += 1
        self._write({"type": "abort", "now_s": now_s, "id": finish.id, "output_tokens": finish.num_output_tokens})

    def transfer(self, key: int) -> None:
        """A non-blocking transfer ended."""
        self._write({"type": "transfer", "key": key})

    def plan(self, plan: StepPlan | Idle, now_s: float) -> None:
        """The policy was asked at ``now_s`` and decided this."""
        kind = "idle" if isinstance(plan, Idle) else "plan"
        seen = [self._arrivals, self._aborts, self._finishes]
        self._finishes += len(plan.rejected)
        self._write({"type": kind, "now_s": now_s, "seen": seen, kind: plan_fields(plan)})

    def result(self, result: StepResult, *, carried: bool = False) -> None:
        """A step was booked; ``carried`` for one that carries its plan on."""
        self._finishes += len(result.finished)
        line: dict[str, Any] = {"type": "result", "step": result.step, "start_s": result.start_s, "end_s": result.end_s}
        if carried:
            line["carried"] = True
        if result.time is not None:
            line["time"] = result.time
        if result.finished:
            line["finished"] = result.finished
        if result.emitted:
            line["emitted"] = list(result.emitted.items())
        self._write(line)
        self._file.flush()

    def died(self, error: str, message: str, now_s: float) -> None:
        """Planning ended the run."""
        self._write({"type": "died", "now_s": now_s, "error": error, "message": message})

    def close(self, status: str, now_s: float) -> None:
        """The run is over."""
        self._write({"type": "end", "status": status, "now_s": now_s})
        self._file.close()

    def release(self) -> None:
        """Close the file of a run that has no end."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(_encode(line) + "\n")


def plan_fields(plan: StepPlan | Idle) -> dict[str, Any]:
    """The fields of a plan that say something, in JSON types but for tuples."""
    defaults = _IDLE_DEFAULTS if isinstance(plan, Idle) else _PLAN_DEFAULTS
    values: dict[str, Any] = dict(zip(plan._fields, plan, strict=True))
    fields = {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}
    decode = fields.get("decode")
    if isinstance(decode, Decode):
        fields["decode"] = decode.value
    if "grants" in fields:
        fields["grants"] = list(fields["grants"])  # grants of a jump are a sequence of their own
    return fields


def read_events(path: Path | str) -> Iterator[Line]:
    """The lines of a log; the last one may be cut off by a kill, and is left out then. Raises UserError with the line
    of the first bad one."""
    for number, kind, line in log_lines(path, "event of a run"):
        if number == 1 and (kind != "run" or line.get("schema") != SCHEMA):
            raise UserError(f"{path}, line 1: no log of events of this version (schema {SCHEMA}); run again")
        yield line


def request_of(line: Line) -> tuple[Request, Stop]:
    """The request of an ``arrival``, and how it stops."""
    request = Request(*line["request"])
    slo = None if request.slo is None else Slo(*request.slo)
    segments = tuple((key, length) for key, length in request.segments)
    return request._replace(slo=slo, segments=segments), Stop(*line["stop"])


def result_of(line: Line) -> StepResult:
    """The result that a line keeps."""
    time = line.get("time")
    emitted: dict[RequestId, int] = dict(line.get("emitted", ()))
    return StepResult(
        line["step"],
        line["start_s"],
        line["end_s"],
        finished=tuple(Finish(*finish) for finish in line.get("finished", ())),
        time=None if time is None else StepTime(*time),
        emitted=emitted,
    )
