"""The interfaces between a policy and what surrounds it. Drivers own time; nothing here waits or reads a clock."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import (
    BatchRow,
    Chunk,
    Finish,
    Grant,
    Horizon,
    Idle,
    Load,
    Queues,
    StepPlan,
    StepResult,
    Transfer,
)
from policies.core.request import Request, RequestId


class Services(Protocol):
    """What a policy may ask about the world it runs in; both worlds answer from the same cost file."""

    def step_time_s(
        self, num_tokens: int, num_seqs: int, sum_context: int, max_context: int, chunks: Sequence[Chunk]
    ) -> float:
        """Seconds a step with these contents takes."""

    def swap_time_s(self, num_bytes: int, pieces: int) -> float:
        """Seconds one transfer of ``num_bytes`` in ``pieces`` copies takes, one way."""

    def recompute_time_s(self, num_tokens: int, context: int) -> float:
        """Seconds to compute ``num_tokens`` again on top of ``context`` cached ones."""

    def predict_output_len(self, request: Request) -> int:
        """Predicted number of output tokens; a pure function of (seed, request id)."""


@mypyc_attr(native_class=False)
class Ids(tuple[RequestId, ...]):
    """Requests in a field of a decision log."""

    __slots__ = ()


class Id(NamedTuple):
    """One request or none in a field of a decision log."""

    id: RequestId | None


@mypyc_attr(native_class=False)
class Counts(tuple[tuple[RequestId, int], ...]):
    """Requests with a number of tokens each in a field of a decision log."""

    __slots__ = ()


Details = Mapping[str, object]
"""Fields of a decision log that one system has beside the common ones, or means otherwise; requests in ``Ids``,
``Id`` and ``Counts`` are written as names."""

NO_DETAILS: Details = {}


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy:
    """Decides, step by step, which requests run. It sees integers and times, never tensors or true output lengths.

    In a request's life: ``on_arrival``; then for each step ``schedule``, the backend runs the plan, ``on_step_end``.
    Between plans of a quiet run the driver may book steps with ``skip`` instead. ``on_abort`` may come between any
    two steps.

    What a policy must define is listed in ``OWED`` and looked at when it is loaded: an ABCMeta of compiled classes
    takes them for one another in ``isinstance``.
    """

    kv: KvManager

    max_in_flight = 1
    """Plans that this engine makes before it knows the result of the first of them. With 2 it schedules one step
    ahead: results come one plan late, and rows that have left meanwhile get nothing from them. A quiet run is booked
    with ``skip`` while steps of its plan are in flight, whose results may then come several at once; ``horizon`` ends
    where a result that is still to come would change more than tokens (blocks come back, say)."""

    num_scheduler_steps = 1
    """Decode steps that this engine runs on one plan, as one *group*. With more than 1 whoever drives it runs each plan
    that decodes for that many steps (``carry_on``, ``skip``, ``complete``, whatever ``horizon`` says) before it hands
    over what came in and plans again. A row that stops in a group makes nothing more in it, but costs what it did until
    the group ends; clients have the tokens of a group when it ends, all at once."""

    tokens_past_length = 0
    """Tokens by which prompt and output together may exceed ``max_model_len``. With 1 a request stops when it has more
    than that many, which costs no memory: its last token is never computed."""

    def refusal(self, request: Request) -> str | None:
        """Why this engine refuses a request at its door, if it does; asked when it comes. It may depend on who is
        inside (``policies.systems.gated``), but not on when the policy takes the requests that were let in."""
        return None

    @abstractmethod
    def on_arrival(self, request: Request) -> None:
        """Queue a request that was not refused."""

    @abstractmethod
    def on_abort(self, request_id: RequestId) -> int:
        """Forget a request and free its blocks; returns the number of output tokens it had produced."""

    @abstractmethod
    def schedule(self, now_s: float) -> StepPlan | Idle:
        """Plan the next step: admit, chunk, preempt, resume, and book blocks."""

    @abstractmethod
    def on_step_end(self, result: StepResult) -> None:
        """Book the tokens of ``result.steps`` steps of the last plan and free what finished, in this system's order."""

    @abstractmethod
    def skip(self, steps: int) -> Sequence[Grant]:
        """Book the blocks of that many further steps of the last plan, which has run ``on_step_end`` not yet;
        grants come in step order."""

    @abstractmethod
    def horizon(self) -> Horizon:
        """How many steps beyond the last plan need no decision."""

    @abstractmethod
    def batch_order(self) -> list[BatchRow]:
        """Every row of the last plan in batch order, before its ``on_step_end``; O(batch), for logs and checks."""

    @abstractmethod
    def load(self) -> Load:
        """Numbers of requests, rows and blocks now; O(1)."""

    @abstractmethod
    def queues(self) -> Queues:
        """The queues in order; O(requests), for logs and checks."""

    def plan_details(self) -> Details:
        """What only this system's logs tell of the plan just made; O(requests), for logs."""
        return NO_DETAILS

    def queue_details(self) -> Details:
        """What only this system's logs tell of its state between steps; O(requests), for logs."""
        return NO_DETAILS

    def on_transfer_done(self, transfer: Transfer) -> None:
        """A non-blocking transfer of this policy has ended."""


OWED = ("batch_order", "horizon", "load", "on_abort", "on_arrival", "on_step_end", "queues", "schedule", "skip")
"""Methods that every policy defines; ``BatchingPolicy`` has all but ``horizon`` and ``schedule``."""


class Backend(Protocol):
    """Runs plans. ``max_in_flight`` plans may be submitted before the first is collected; a driver makes as many ahead
    as policy and backend both allow. A row that leaves with a later plan emits nothing in an earlier one."""

    max_in_flight: int

    def submit(self, plan: StepPlan) -> int:
        """Start a plan; returns a ticket."""

    def collect(self, ticket: int) -> StepResult:
        """Wait for a plan's result."""


class StepObserver(Protocol):
    """Told what happens, in order; never changes it. Times are seconds of the driver's clock."""

    def on_arrival(self, request: Request, now_s: float) -> None:
        """A request was handed to the engine (``now_s`` >= ``request.arrival_s``)."""

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """A step is about to run: the first one of a ``fresh`` plan, or one that carries a quiet run on. The policy's
        ``load`` is as of this moment, the blocks of the step booked."""

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """``result.steps`` steps of ``plan`` were run, the first of them the one that began last."""

    def on_finish(self, finish: Finish, now_s: float) -> None:
        """A request ended and its client knows: after delivery, at rejection, or at abort."""
