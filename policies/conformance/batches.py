"""Logs of request-level batchers: when each batch was closed, with whom, and when its handler ran."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf

from policies.conformance.decisions import Line
from policies.core.engine import Engine
from policies.core.plan import Finish, Idle, StepPlan, StepResult
from policies.core.protocols import Policy
from policies.core.request import Request, RequestId


class BatchWriter:
    """A step observer that writes one line a batch, in the schema of the recorded logs; times in whole microseconds.

    ``close`` writes the end.
    """

    def __init__(
        self,
        policy: Policy,
        write: Callable[[Line], object],
        *,
        config: Mapping[str, object],
        name: Callable[[RequestId], str],
    ) -> None:
        self._policy, self._write, self._name = policy, write, name
        self._line: Line = {}
        self._batches = self._unfinished = 0
        self._write({"type": "config", **config})

    def on_arrival(self, request: Request, now_s: float) -> None:
        """One more request that has no answer."""
        self._unfinished += 1

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """A batch starts with the step that takes its requests in."""
        if fresh and plan.joins:
            details = self._policy.plan_details()
            self._line = {
                "type": "batch",
                "k": self._batches,
                "formed_us": _microseconds(details["formed_s"]),
                "ids": [self._name(request_id) for request_id, _ in plan.joins],
                "left": details["left"],
                "start_us": _microseconds(now_s),
            }

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """A batch ends with the step after which nothing runs."""
        if not self._policy.load().running:
            self._write({**self._line, "end_us": _microseconds(result.end_s)})
            self._batches += 1

    def on_finish(self, finish: Finish, now_s: float) -> None:
        """One more answer."""
        self._unfinished -= 1

    def close(self) -> None:
        """Write the end line."""
        self._write({"type": "end", "batches": self._batches, "unfinished": self._unfinished})


def decide_batches(
    policy: Policy,
    requests: Iterable[Request],
    *,
    base_s: float,
    per_item_s: float,
    config: Mapping[str, object],
    name: Callable[[RequestId], str],
) -> list[Line]:
    """All lines that a batcher writes for requests in order of arrival, whose handler takes ``base_s`` and
    ``per_item_s`` for each request of a batch."""
    lines: list[Line] = []
    writer = BatchWriter(policy, lines.append, config=config, name=name)
    engine = Engine(policy, observer=writer, deliver_at_batch_end=True)
    arrivals = deque(requests)
    now_s = 0.0
    while arrivals or engine.num_unfinished:
        while arrivals and arrivals[0].arrival_s <= now_s:
            engine.add(arrivals.popleft(), now_s)
        plan = engine.plan(now_s)
        policy.kv.check()
        if isinstance(plan, Idle):
            wake_s = inf if plan.wake_at_s is None else plan.wake_at_s
            now_s = min(wake_s, arrivals[0].arrival_s if arrivals else inf)
            continue
        end_s = now_s + (base_s + per_item_s * len(plan.chunks))
        finished = tuple(Finish(chunk.id, "stop", 1) for chunk in plan.chunks)
        engine.complete(StepResult(plan.step, now_s, end_s, finished=finished))
        now_s = end_s
    writer.close()
    return lines


def _microseconds(time_s: object) -> int:
    assert isinstance(time_s, float | int)
    return round(time_s * 1e6)
