"""Runs a script of arrivals and aborts through a policy and compares each step with a line an eye can check.

A script is text. ``+A 7/3`` lets request A come (prompt 7 tokens, makes 3), ``+A sys:4,A:3/3`` with segments
of content, ``+A 7/3 p2`` with a priority, ``@ann`` of a client, ``t5`` with a TTFT limit of 5 steps, ``xA`` lets its
client go away. Any other line is one step, as
expected, in columns:

    STEP | ROWS | FREE | WAITING | RUNNING | SWAPPED | EVENTS

ROWS in batch order: ``A:1@7*`` computes 1 token on top of 7 cached ones and emits a token. FREE: blocks left
by the plan, ``3+4`` with 4 of the CPU tier. The queues are as of the end of the step, in order. EVENTS:
``hit A=8`` cached tokens, ``A+3,4`` physical blocks added, ``preempted``, ``out``/``in B=2`` blocks swapped,
``B=kv_capacity:2`` ended by the policy with 2 tokens made, ``flushed`` (blocks of one that left before),
``aborted``, ``done``. ``-`` is nothing. A step in
which the engine raises says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from difflib import ndiff
from typing import Any

from policies.conformance.decisions import DecisionWriter, Line
from policies.core.engine import Engine
from policies.core.errors import RunError
from policies.core.groups import run_rest
from policies.core.plan import Finish, Idle, StepPlan, StepResult
from policies.core.protocols import Policy
from policies.core.request import Request, Segments, Slo
from policies.core.stops import StopCalendar, stop_of


def check_script(policy: Policy, script: str, *, max_model_len: int, show_blocks: bool = False) -> None:
    """Assert that the policy takes exactly the steps of the script."""
    world = _World(policy, max_model_len=max_model_len, show_blocks=show_blocks)
    expected: list[str] = []
    got: list[str | int] = []
    for text in script.strip().splitlines():
        line = " ".join(text.partition("#")[0].split())
        if line.startswith("+"):
            world.arrive(line)
        elif line.startswith("x"):
            world.abort(line[1:])
        elif line:
            expected.append(line)
            got.append(world.step())
    told = world.tell(got)
    if told != expected:
        raise AssertionError("\n".join(ndiff(expected, told)))


class _World:
    def __init__(self, policy: Policy, *, max_model_len: int, show_blocks: bool) -> None:
        self.names: list[str] = []
        self.lines: list[Line] = []
        self.policy = policy
        writer = DecisionWriter(policy, self.lines.append, config={}, name=self._name)
        self.writer = writer
        self.engine = Engine(policy, observer=writer)
        self.in_flight: deque[StepPlan] = deque()
        self.rejected: dict[int, tuple[Finish, ...]] = {}
        self.calendar = StopCalendar()
        self.max_total_tokens = max_model_len + policy.tokens_past_length
        self.show_blocks = show_blocks

    def _name(self, number: int) -> str:
        return self.names[number]

    def arrive(self, line: str) -> None:
        name, _, lengths = line[1:].partition(" ")
        lengths, *words = lengths.split()
        options = {word[0]: word[1:] for word in words}
        slo = Slo(ttft_s=float(options["t"])) if "t" in options else None
        prompt, _, output = lengths.partition("/")
        segments: Segments = ()
        if ":" in prompt:
            parts = [part.split(":") for part in prompt.split(",")]
            segments = tuple((key, int(length)) for key, length in parts)
        tokens = sum(length for _, length in segments) or int(prompt)
        number, limits = len(self.names), (tokens, int(output), int(options.get("p", 0)))
        client_id = options.get("@", "")
        request = Request(number, self.writer.t, *limits, client_id=client_id, slo=slo, segments=segments)
        self.names.append(name)
        if self.engine.add(request, self.writer.t) is None:
            self.calendar.add(request.id, stop_of(request, int(output), self.max_total_tokens))

    def abort(self, name: str) -> None:
        request_id = self.names.index(name)
        self.calendar.remove(request_id)
        self.engine.abort(request_id, self.writer.t)
        self.policy.kv.check()

    def step(self) -> str | int:
        """One pass of the engine's loop; its line, or its number if the lines of the log will say what it did."""
        t = self.writer.t
        for transfer in list(self.policy.kv.in_transit.values()):
            self.engine.transfer_done(transfer)
        try:
            plan = self.engine.plan(t)
        except RunError as error:
            return f"{t} | {type(error).__name__}"
        for finish in plan.rejected:
            self.calendar.remove(finish.id)
        self.policy.kv.check()
        if isinstance(plan, Idle):
            self.writer.t = t + 1
            return " | ".join([f"{t}", "idle", *self._ended(plan.rejected)])
        self.calendar.apply(plan)
        self.rejected[t] = plan.rejected
        self.in_flight.append(plan)
        self.writer.t = t + 1
        if len(self.in_flight) == self.policy.max_in_flight:
            done = self.in_flight.popleft()
            finished = self.calendar.complete(done, 1, self.in_flight)
            self.engine.complete(StepResult(done.step, t, t + 1, finished=finished))
            run_rest(self.engine, self.calendar, done, t + 1)
            self.policy.kv.check()
        return t

    def tell(self, steps: Iterable[str | int]) -> list[str]:
        """The lines of all steps."""
        self.writer.close()
        lines: dict[object, Line] = {line["t"]: line for line in self.lines if line["type"] == "step"}
        return [
            self._describe(lines[step], self.rejected[step]) if isinstance(step, int) else step for step in steps
        ]

    def _describe(self, line: Any, rejected: Iterable[Finish]) -> str:
        rows = [f"{name}:{count}@{context}{'*' * emits}" for name, count, context, emits in line["sched"]]
        free = f"{line['free_after_schedule']}"
        if self.policy.kv.cpu_pool.num_blocks:
            free += f"+{line['cpu_free_after_schedule']}"
        queues = [" ".join(line[queue]) or "-" for queue in ("waiting", "running", "swapped")]
        events = [f"hit {name}={tokens}" for name, tokens in line["hits"].items()]
        if self.show_blocks:
            events += [f"{name}+{','.join(map(str, ids))}" for name, ids in line["new_blocks"].items()]
        for key, label in (("preempted", "preempted"), ("swapped_out", "out"), ("swapped_in", "in")):
            names = [
                f"{name}={line[f'blocks_{label}']}" if label in ("out", "in") else name for name in line[key]
            ]
            events += [f"{label} {' '.join(names)}"] if names else []
        events += self._ended(rejected)
        for key, label in (("flushed", "flushed"), ("aborted", "aborted"), ("finished", "done")):
            events += [f"{label} {' '.join(line[key])}"] if line.get(key) else []
        columns = [str(line["t"]), " ".join(rows) or "-", free, *queues, ", ".join(events) or "-"]
        return " | ".join(columns)

    def _ended(self, rejected: Iterable[Finish]) -> list[str]:
        return [f"{self.names[key]}={reason}:{tokens}" for key, reason, tokens in rejected]
