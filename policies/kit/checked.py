"""A policy under supervision: what a user's own class breaks ends the run with one line, not with wrong figures."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import ClassVar, TypeVar

from policies.core.errors import ContractError, RunError, UserError
from policies.core.plan import BatchRow, Grant, Horizon, Idle, Load, Queues, StepPlan, StepResult, Transfer
from policies.core.protocols import Details, Policy
from policies.core.request import Request, RequestId
from policies.custom import file_of, line_of
from policies.kit import forms
from policies.kit.ledger import Ledger
from policies.kit.rules import BrokenPolicy, Rule, RuleBroken
from policies.systems.base import BatchingPolicy

T = TypeVar("T")

_CHECK_BLOCKS_EVERY = 64
"""Steps between two looks at all blocks of the pool, which cost O(blocks); the first steps are all looked at."""


class CheckedPolicy(Policy):
    """Passes every call on to ``policy`` and checks what it plans.

    What a method returns is of the kind that it says (policies/kit/forms.py), and after each plan and each ``skip``:
    every computed row has joined and has the blocks of its tokens, chunks follow
    what is computed and emit at its end, who ended leaves and frees, limits that the policy has (``max_num_seqs``,
    ``max_num_batched_tokens``) are kept, the pool's blocks are conserved. Driven step by step, also what ``horizon``
    promised: within it only grants. A broken rule, and an exception of the class itself, is a BrokenPolicy: a UserError
    in one line that begins with ``engine.policy = 'ADDRESS'``; RunError and UserError pass.
    """

    num_calls: ClassVar[int] = 0
    """Of methods of policies, in all: while it rises, none hangs (policies/kit/hang.py)."""

    is_called: ClassVar[bool] = False
    """True while a method of a policy runs."""

    def __init__(self, policy: Policy, address: str) -> None:
        self.policy, self.address = policy, address
        self.kv = policy.kv
        self.max_in_flight = policy.max_in_flight
        self.tokens_past_length = policy.tokens_past_length
        self.num_scheduler_steps = policy.num_scheduler_steps
        self._file = file_of(type(policy), address)
        self._ledger = Ledger(self.kv.block_size, caches_prefixes=self.kv.caches_prefixes)
        self._num_plans = 0

    @property
    def swap_exhausted(self) -> int:
        """Victims that found no room in the CPU tier."""
        count = getattr(self.policy, "swap_exhausted", 0)
        return max(count, 0) if isinstance(count, int) else 0  # a class may use that name for something else

    # -- calls that are checked --------------------------------------------------------------------------------------

    def refusal(self, request: Request) -> str | None:
        """As the policy says."""
        reason = self._call(self.policy.refusal, request)
        self._check(forms.check_refusal, reason)
        return reason

    def on_arrival(self, request: Request) -> None:
        """Note the request and pass it on."""
        self._ledger.arrive(request)
        self._call(self.policy.on_arrival, request)

    def on_abort(self, request_id: RequestId) -> int:
        """Pass on, and check the number of tokens it made."""
        produced = self._call(self.policy.on_abort, request_id)
        self._check(forms.check_produced, produced)
        self._check(self._ledger.abort, request_id, produced)
        return produced

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Plan, and check the plan."""
        plan: object = self._call(self.policy.schedule, now_s)
        if isinstance(plan, Idle):
            self._check_idle(plan, now_s)
        elif isinstance(plan, StepPlan):
            self._check_plan(plan)
        else:
            raise self._error(
                Rule.CODE,
                f"schedule returned {_never_awaited(plan)}; return self.make_plan(...), or self.idle(reason) if"
                " nothing can run",
            )
        self._num_plans += 1
        if self._num_plans <= _CHECK_BLOCKS_EVERY or not self._num_plans % _CHECK_BLOCKS_EVERY:
            self._check(self.kv.check)
        return plan

    def _check_idle(self, idle: Idle, now_s: float) -> None:
        self._check(forms.check_idle, idle)
        self._check(self._ledger.idle, idle, self.kv.tables, now_s)
        if idle.wake_at_s is None and self._ledger.num_live:
            self._check(self._ledger.check_queued, self.queues())

    def _check_plan(self, plan: StepPlan) -> None:
        self._check(forms.check_plan, plan)
        self._check(self._check_step, plan)
        order = self.batch_order()
        self._check(self._ledger.plan, plan, order, self.kv.tables, self.kv.cpu_tables)
        self._check(self._check_limits, plan, order)
        self._check(self._check_transfers, plan)
        if plan.is_quiet:
            self._check(self._ledger.promise, self.horizon())

    def on_step_end(self, result: StepResult) -> None:
        """Book the result on both sides."""
        self._call(self.policy.on_step_end, result)
        self._ledger.book(result)

    def skip(self, steps: int) -> Sequence[Grant]:
        """Pass on, and check that all rows have the blocks of these steps."""
        grants = self._call(self.policy.skip, steps)
        self._check(forms.check_grants, grants)
        self._check(self._ledger.skip, steps, grants, self.kv.tables)
        return grants

    def horizon(self) -> Horizon:
        """Pass on; it must be a Horizon."""
        horizon = self._call(self.policy.horizon)
        self._check(forms.check_horizon, horizon)
        return horizon

    def on_transfer_done(self, transfer: Transfer) -> None:
        """Pass on."""
        self._ledger.transfer_done()
        self._call(self.policy.on_transfer_done, transfer)

    def _check_step(self, plan: StepPlan) -> None:
        if self.max_in_flight == 1 and plan.step != self._ledger.step:
            raise RuleBroken(Rule.CHARGE, f"the plan says that it is step {plan.step}; make it by make_plan")

    def _check_transfers(self, plan: StepPlan) -> None:
        """What is copied is what the KV manager moved."""
        for transfer in plan.transfers:
            table = (self.kv.cpu_tables if transfer.kind == "out" else self.kv.tables).get(transfer.id, ())
            is_known = transfer.blocking or self.kv.in_transit.get(transfer.key) == transfer
            if not is_known or tuple(table[: len(transfer.dst)]) != transfer.dst:
                raise RuleBroken(
                    Rule.TOLD,
                    f"the plan moves blocks of request {transfer.id} {transfer.kind}, and the KV manager did not;"
                    " put what kv.swap_out and kv.swap_in return into transfers",
                )

    def _check_limits(self, plan: StepPlan, order: Sequence[BatchRow]) -> None:
        policy = self.policy
        for name, used in (("max_num_seqs", len(order)), ("max_num_batched_tokens", plan.num_tokens)):
            limit = getattr(policy, name, None)
            if isinstance(limit, int) and used > limit:
                what, rule = ("rows", Rule.SEQS) if name == "max_num_seqs" else ("tokens", Rule.BUDGET)
                raise RuleBroken(rule, f"the plan has {used:,} {what}, more than {name} = {limit:,}")
        if isinstance(policy, BatchingPolicy):
            for chunk in plan.chunks:
                row, end = policy.running.get(chunk.id), chunk.start + chunk.num_tokens
                if row is not None and row.num_computed_tokens != end:
                    raise RuleBroken(
                        Rule.CHUNKS,
                        f"request {row.id} has a chunk up to token {end} and num_computed_tokens ="
                        f" {row.num_computed_tokens}; set row.num_computed_tokens with each chunk, as self.admit does",
                    )

    # -- views -------------------------------------------------------------------------------------------------------

    def batch_order(self) -> list[BatchRow]:
        """As the policy says."""
        rows = self._call(self.policy.batch_order)
        self._check(forms.check_order, rows)
        return rows

    def load(self) -> Load:
        """As the policy says."""
        load = self._call(self.policy.load)
        self._check(forms.check_load, load)
        return load

    def queues(self) -> Queues:
        """As the policy says."""
        queues = self._call(self.policy.queues)
        self._check(forms.check_queues, queues)
        return queues

    def plan_details(self) -> Details:
        """As the policy says."""
        details = self._call(self.policy.plan_details)
        self._check(forms.check_details, "plan_details", details)
        return details

    def queue_details(self) -> Details:
        """As the policy says."""
        details = self._call(self.policy.queue_details)
        self._check(forms.check_details, "queue_details", details)
        return details

    # -- errors ------------------------------------------------------------------------------------------------------

    def _call(self, method: Callable[..., T], *arguments: object) -> T:
        """Run a method of the policy; what it raises becomes one line."""
        CheckedPolicy.num_calls += 1
        CheckedPolicy.is_called = True
        try:
            return method(*arguments)
        except (RunError, UserError, KeyboardInterrupt):
            raise
        except BaseException as error:
            what = getattr(method, "__name__", "a call")
            raise self._error(
                Rule.CODE, f"{what} fails at {line_of(error, self._file)} with {type(error).__name__}: {error}"
            ) from error
        finally:
            CheckedPolicy.is_called = False

    def _check(self, rule: Callable[..., object], *arguments: object) -> None:
        try:
            rule(*arguments)
        except ContractError as error:
            broken = error.rule if isinstance(error, RuleBroken) else Rule.BLOCKS  # the KV manager's own check
            raise self._error(broken, str(error)) from error
        except Exception as error:  # of a table or a pool that the class has put something else in
            said = f"self.kv cannot be read any more ({type(error).__name__}: {error}); change it by its methods"
            raise self._error(Rule.BLOCKS, said) from error

    def _error(self, rule: Rule, message: str) -> BrokenPolicy:
        return BrokenPolicy(self.address, rule, self._ledger.step, message)


def _never_awaited(plan: object) -> str:
    """What is no plan, in words; a coroutine is closed, so that Python has nothing to say of it."""
    if isinstance(plan, Coroutine):
        plan.close()
    return forms.shown(plan)
