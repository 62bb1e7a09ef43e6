"""The engine: a policy, driven step by step. It has no clock and does no I/O; whoever drives it owns time."""

from __future__ import annotations

from collections.abc import Sequence

from policies.core.errors import ContractError, Stuck
from policies.core.plan import Finish, Grant, Idle, StepPlan, StepResult, Transfer
from policies.core.protocols import Policy, StepObserver
from policies.core.request import Request, RequestId


class Engine:
    """One replica's scheduler loop, without the loop.

    A driver calls ``add`` and ``abort`` between steps, then ``plan``; it runs the plan and calls ``complete``. In a
    quiet run it may book steps ahead with ``skip`` before ``complete``, and go on with ``carry_on``, not ``plan``.
    Requests that ended, in the order their clients learn of it, come back from ``complete``, ``plan`` (through
    ``ended``) and ``abort``.

    A policy whose engine schedules ahead (``policy.max_in_flight`` > 1) may be asked for the next plan before the
    last one is complete; results come in the order of the plans. Of the steps that such a policy is told of with
    ``skip`` and ``carry_on`` before a result, the last is in flight behind it.

    A policy whose engine runs several steps on one plan (``policy.num_scheduler_steps`` > 1) is carried on with
    likewise until these steps are complete.

    ``deliver_at_batch_end`` holds answers back until nothing runs, as static batching does.
    """

    def __init__(
        self, policy: Policy, *, observer: StepObserver | None = None, deliver_at_batch_end: bool = False
    ) -> None:
        self.policy = policy
        self.observer = observer
        self.num_unfinished = 0
        self._deliver_at_batch_end = deliver_at_batch_end
        self._undelivered: list[Finish] = []
        self._plan: StepPlan | None = None
        self._in_flight: list[StepPlan] = []  # few: a list is quickest at both ends

    def refuse(self, request: Request, now_s: float) -> Finish | None:
        """The end of a request that the engine refuses at its door, at the moment it comes; None to take it."""
        reason = self.policy.refusal(request)
        return None if reason is None else self.turn_away(request, reason, now_s)

    def turn_away(self, request: Request, reason: str, now_s: float) -> Finish:
        """End a request before the policy sees it."""
        finish = Finish(request.id, reason, 0)
        if self.observer is not None:
            self.observer.on_arrival(request, now_s)
            self.observer.on_finish(finish, now_s)
        return finish

    def add(self, request: Request, now_s: float) -> Finish | None:
        """Hand a request to the policy, between two steps; returns its end if it is refused at the door."""
        finish = self.refuse(request, now_s)
        if finish is None:
            self.take(request, now_s)
        return finish

    def take(self, request: Request, now_s: float) -> None:
        """Hand over, between two steps, a request that was not refused when it came."""
        self.num_unfinished += 1
        if self.observer is not None:
            self.observer.on_arrival(request, now_s)
        self.policy.on_arrival(request)

    def abort(self, request_id: RequestId, now_s: float) -> Finish:
        """The client of an unfinished request went away."""
        for finish in self._undelivered:
            if finish.id == request_id:
                self._undelivered.remove(finish)
                break
        else:
            finish = Finish(request_id, "abort", self.policy.on_abort(request_id))
        finish = finish._replace(reason="abort")
        self._end((finish,), now_s)
        return finish

    def awaits_delivery(self, request_id: RequestId) -> bool:
        """True for a request whose tokens are all made and whose client does not have them yet."""
        return any(finish.id == request_id for finish in self._undelivered)

    def plan(self, now_s: float) -> StepPlan | Idle:
        """The next step. Requests that the policy itself ended (``plan.rejected``) have ended now."""
        plan = self.policy.schedule(now_s)
        if isinstance(plan, Idle):
            if plan.rejected:
                self._end(plan.rejected, now_s)
            self._plan = None
            waits = plan.wake_at_s is not None or self.policy.kv.in_transit or self._in_flight
            if self.num_unfinished and not waits:
                self._raise_stuck(plan)
            return plan
        if plan[11]:  # its requests rejected: by place, which is the cheapest way into a tuple where compiled
            self._end(plan[11], now_s)
        self._plan = plan
        self._in_flight.append(plan)
        if self.observer is not None:
            self.observer.on_begin(plan, now_s, fresh=True)
        return plan

    def carry_on(self, now_s: float, steps: int = 1) -> Sequence[Grant]:
        """Begin one more step of the quiet run, or of the group, that the last plan started; returns its grants. With
        ``steps`` it is the last of so many, of which the others are booked with it, as by ``skip``."""
        if self._plan is None:
            raise ContractError("carry_on without a plan")
        self._in_flight.append(self._plan)
        grants = self.policy.skip(steps)
        if self.observer is not None:
            self.observer.on_begin(self._plan, now_s, fresh=False)
        return grants

    def skip(self, steps: int) -> Sequence[Grant]:
        """Book the blocks of ``steps`` steps after the one that has begun."""
        return self.policy.skip(steps)

    def complete(self, result: StepResult) -> Sequence[Finish]:
        """Book the steps that ran, of the oldest plan in flight; returns the requests whose clients learn of their end
        now."""
        if not self._in_flight:
            raise ContractError(f"result of step {result.step} without a plan")
        plan = self._in_flight.pop(0)
        self.policy.on_step_end(result)
        if self.observer is not None:
            self.observer.on_step(plan, result)
        finished: Sequence[Finish] = result.finished
        if self._deliver_at_batch_end:
            self._undelivered += finished
            if not self._undelivered or self.policy.load().running:
                return ()
            finished = tuple(self._undelivered)
            self._undelivered.clear()
        if finished:
            self._end(finished, result.end_s)
        return finished

    def transfer_done(self, transfer: Transfer) -> None:
        """A non-blocking transfer of an earlier plan has ended."""
        self.policy.kv.transfer_done(transfer)
        self.policy.on_transfer_done(transfer)

    def _end(self, finished: Sequence[Finish], now_s: float) -> None:
        self.num_unfinished -= len(finished)
        if self.observer is not None:
            for finish in finished:
                self.observer.on_finish(finish, now_s)

    def _raise_stuck(self, idle: Idle) -> None:
        queues = self.policy.queues()
        first = next(iter((*queues.swapped, *queues.waiting)), None)
        raise Stuck(
            f"no progress: request {first} waits, nothing runs and nothing will change ({idle.reason}; "
            f"{len(queues.waiting)} waiting, {len(queues.swapped)} swapped, {self.policy.kv.num_free} of "
            f"{self.policy.kv.num_blocks} KV blocks free)"
        )
