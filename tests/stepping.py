"""Drives a policy step by step, without a clock, and writes each step as one line that an eye can check.

Columns of a line, separated by spaces; "-" is nothing:

    STEP ROWS SEQS/TOKENS/CONTEXT EMIT WAITING FREE ANSWERS LIMIT

ROWS in batch order: ``7:12+1`` is request 7 computing 1 token on top of 12 cached ones, ``(7:12+1)`` one that
emits nothing. SEQS/TOKENS/CONTEXT is what the plan is charged with. EMIT counts the tokens that the step
yields. WAITING and FREE (blocks) are as of the plan. ANSWERS, in the order their clients learn of them:
``7=stop3`` ended with 3 output tokens; ``!`` marks one that the plan itself ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from policies.core.engine import Engine
from policies.core.groups import run_rest
from policies.core.plan import BatchRow, Chunk, Decode, Finish, Idle, StepPlan, StepResult
from policies.core.protocols import Policy
from policies.core.request import Request
from policies.core.stops import StopCalendar, stop_of


class Predictions:
    """Services of a world that predicts the given output lengths and in which no step takes any time."""

    def __init__(self, output_len: Mapping[int, int]) -> None:
        self._output_len = output_len

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        """No time."""
        return 0.0

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """No time."""
        return 0.0

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        """No time."""
        return 0.0

    def predict_output_len(self, request: Request) -> int:
        """The given length."""
        return self._output_len[request.id]


class Stepper:
    """One engine with the calendar of its requests; its time is the number of steps so far.

    Each step checks that KV blocks are conserved and that each row has room for the tokens it computes.
    """

    def __init__(self, policy: Policy, *, max_model_len: int, deliver_at_batch_end: bool = False) -> None:
        self.policy = policy
        self.engine = Engine(policy, deliver_at_batch_end=deliver_at_batch_end)
        self.calendar = StopCalendar()
        self.time = 0
        self.useful = 0
        self.slot_steps = 0
        self._max_total_tokens = max_model_len + policy.tokens_past_length

    def arrive(self, *lengths: tuple[int, int, int]) -> None:
        """Requests ``(id, prompt tokens, output tokens)`` come in now."""
        for request_id, prompt, output in lengths:
            request = Request(request_id, float(self.time), prompt, output)
            if self.engine.add(request, float(self.time)) is None:
                self.calendar.add(request_id, stop_of(request, output, self._max_total_tokens))

    def abort(self, request_id: int) -> Finish:
        """The client of a request goes away now."""
        self.calendar.remove(request_id)
        return self.engine.abort(request_id, float(self.time))

    def step(self) -> str:
        """Run one step and describe it, or say ``idle``; an engine that sleeps until a time is woken then. Transfers
        beside the steps are done when the next one is planned."""
        for transfer in list(self.policy.kv.in_transit.values()):
            self.engine.transfer_done(transfer)
        plan = self.engine.plan(float(self.time))
        rejected = [f"!{text}" for text in _answers(plan.rejected)]
        for finish in plan.rejected:
            self.calendar.remove(finish.id)
        self.policy.kv.check()
        if isinstance(plan, Idle):
            if plan.wake_at_s is not None:
                self.time = ceil(plan.wake_at_s)
            return " ".join(["idle", *rejected])
        self.calendar.apply(plan)
        line = self._describe(plan)
        self.slot_steps += plan.num_seqs + len(plan.chunks)
        finished = self.calendar.complete(plan, 1)
        self.time += 1
        now = float(self.time)
        answers = [*self.engine.complete(StepResult(plan.step, now - 1.0, now, finished=finished))]
        answers += run_rest(self.engine, self.calendar, plan, now)
        self.policy.kv.check()
        return f"{line} {','.join([*rejected, *_answers(answers)]) or '-'} {plan.limited_by}"

    def steps(self, count: int) -> list[str]:
        """The lines of ``count`` steps."""
        return [self.step() for _ in range(count)]

    def run(self) -> list[str]:
        """The lines of all steps until the engine is idle."""
        lines = []
        while self.engine.num_unfinished:
            lines.append(self.step())
        return lines

    def _describe(self, plan: StepPlan) -> str:
        policy = self.policy
        order = policy.batch_order()
        for row in order:
            room = len(policy.kv.tables[row.id]) * policy.kv.block_size
            assert not row.emits or row.context + row.num_tokens <= room, f"{row} has KV for {room} tokens"
        rows = ",".join(map(_row, order))
        decoding = policy.load().emitting if plan.decode is not Decode.NONE else 0
        emits = decoding + sum(chunk.emits for chunk in plan.chunks)
        self.useful += emits
        waiting = ",".join(map(str, policy.queues().waiting)) or "-"
        charged = f"{plan.num_seqs}/{plan.num_tokens}/{plan.sum_context}"
        return f"{plan.step} {rows} {charged} {emits} {waiting} {policy.load().free_blocks}"


def table(text: str) -> list[str]:
    """The lines of a step table, runs of spaces made one; comments behind ``#`` are dropped."""
    lines = [" ".join(line.partition("#")[0].split()) for line in text.splitlines()]
    return [line for line in lines if line]


def _row(row: BatchRow) -> str:
    text = f"{row.id}:{row.context}+{row.num_tokens}"
    return text if row.emits else f"({text})"


def _answers(finishes: Iterable[Finish]) -> list[str]:
    return [f"{finish.id}={finish.reason}{finish.num_output_tokens}" for finish in finishes]
