"""Policies broken on purpose: the check of that name catches each, of a rule as the first, and says how."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import pytest

from policies.core.plan import Finish, Grant, Horizon, Idle, Load, StepPlan
from policies.core.prefix import Content
from policies.core.request import Request, RequestId, output_segment
from policies.core.rows import Row
from policies.kit.checks import CHECKS, Check, CheckFailed
from policies.kit.play import Kit
from policies.kit.rules import Rule
from policies.kit.script import Limits
from policies.systems.token_budget import TokenBudget


class Good(TokenBudget):
    """What the others break."""

    def __init__(self, limits: Limits, *, more_seqs: int = 0, more_tokens: int = 0, faithful: bool = False) -> None:
        super().__init__(
            limits.kv(),
            max_num_seqs=limits.max_num_seqs + more_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens + more_tokens,
            max_model_len=limits.max_model_len,
            faithful=faithful,
        )

    def schedule(self, now_s: float) -> StepPlan | Idle:
        """As it should, or changed."""
        plan = super().schedule(now_s)
        return self.changed(plan) if isinstance(plan, StepPlan) else plan

    def changed(self, plan: StepPlan) -> StepPlan:
        """The plan that is returned."""
        return plan


class LosesABlock(Good):
    def remove(self, row: Row) -> None:
        super().remove(row)
        if row.id == 3:
            self.kv.pool.take(1)


class FreesTwice(Good):
    def remove(self, row: Row) -> None:
        block = self.kv.tables[row.id][0]
        super().remove(row)
        self.kv.pool.give_back([block])


class KeepsBlocks(Good):
    def _free(self, finished: Sequence[Finish]) -> None:
        for finish in finished:
            self.detach(self.running[finish.id])


class KeepsBlocksOfAborted(Good):
    def on_abort(self, request_id: RequestId) -> int:
        row = self.running.get(request_id)
        if row is None:
            return super().on_abort(request_id)
        self.detach(row)
        return row.num_tokens - row.prompt_tokens


class TellsNoGrants(Good):
    def changed(self, plan: StepPlan) -> StepPlan:
        return plan._replace(grants=())


class SharesWithEverybody(Good):
    def new_row(self, request: Request) -> Row:
        row = super().new_row(request)
        if row.content is not None:
            row.content = Content((("all", request.prompt_tokens),), output_segment(request.id), self.kv.block_size)
        return row


class TooManySeqs(Good):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, more_seqs=1)


class TooManyTokens(Good):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, more_tokens=1)


class EmitsEarly(Good):
    def changed(self, plan: StepPlan) -> StepPlan:
        return plan._replace(chunks=tuple(chunk._replace(emits=True) for chunk in plan.chunks))


class LosesATokenWhenPreempted(Good):
    def _preempt(self, row: Row) -> None:
        super()._preempt(row)
        row.num_tokens -= 1


class ChargesNoContext(Good):
    def changed(self, plan: StepPlan) -> StepPlan:
        return plan._replace(sum_context=0)


class DropsRequests(Good):
    def on_arrival(self, request: Request) -> None:
        if request.id % 5 != 4:
            super().on_arrival(request)


class KeepsAborted(Good):
    def on_abort(self, request_id: RequestId) -> int:
        for row in self.waiting:
            if row.id == request_id:
                return row.num_tokens - row.prompt_tokens
        return super().on_abort(request_id)


class MiscountsAborted(Good):
    def on_abort(self, request_id: RequestId) -> int:
        return super().on_abort(request_id) + 1


class RefusesLongPrompts(Good):
    def _can_open(self, row: Row, num_blocks: int, hits: Sequence[int]) -> bool:
        return row.prompt_tokens < 40 and super()._can_open(row, num_blocks, hits)

    def _refuse_head(self) -> bool:
        return False


class StartsOverForEver(Good):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, faithful=True)


class PromisesTooMuch(Good):
    def horizon(self) -> Horizon:
        return Horizon(1 << 40, False)


class IgnoresArrivals(Good):
    def horizon(self) -> Horizon:
        return super().horizon()._replace(arrivals_matter=False)


class SkipsWithoutBlocks(Good):
    def skip(self, steps: int) -> Sequence[Grant]:
        return super().skip(steps)[1:]


class HidesItsQueue(Good):
    def load(self) -> Load:
        return super().load()._replace(waiting=0)


class Crashes(Good):
    def on_abort(self, request_id: RequestId) -> int:
        if request_id in self.partial:
            raise KeyError(request_id)
        return super().on_abort(request_id)


class Careful(Good):
    def horizon(self) -> Horizon:
        return Horizon(0, True)


class ShortestFirst(Careful):
    def on_arrival(self, request: Request) -> None:
        super().on_arrival(request)
        self.waiting = deque(sorted(self.waiting, key=lambda row: row.prompt_tokens))


class LastComeFirst(Careful):
    def on_arrival(self, request: Request) -> None:
        self.waiting.appendleft(self.new_row(request))


class PicksAtRandom(Careful):
    def on_arrival(self, request: Request) -> None:
        self.waiting.insert(random.randint(0, len(self.waiting)), self.new_row(request))


class SharesItsQueue(Good):
    shared: ClassVar[deque[Row]] = deque()

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.waiting = self.shared


CAUGHT: dict[type[Good], tuple[str, str]] = {
    LosesABlock: ("blocks", "GPU blocks lost"),
    FreesTwice: ("blocks", "GPU"),
    KeepsBlocks: ("leaves", "has ended and keeps its blocks"),
    KeepsBlocksOfAborted: ("leaves", "has ended and keeps its blocks"),
    TellsNoGrants: ("told", "the plans told of 3 blocks of request 0, its table has 4"),
    SharesWithEverybody: ("content", "reads block"),
    TooManySeqs: ("seqs", "the plan has 5 rows, more than max_num_seqs = 4"),
    TooManyTokens: ("budget", "the plan has 21 tokens, more than max_num_batched_tokens = 20"),
    EmitsEarly: ("chunks", "it emits if and only if it ends at row.num_tokens"),
    LosesATokenWhenPreempted: ("chunks", "of 21 and says emits=True"),
    ChargesNoContext: ("charge", "the plan states sum_context = 0 and its rows have"),
    DropsRequests: ("place", "request 4 has not ended and is in no queue"),
    KeepsAborted: ("place", "request 2 joins and has ended"),
    MiscountsAborted: ("tokens", "on_abort returns"),
    RefusesLongPrompts: ("progress", "no progress: request"),
    StartsOverForEver: ("progress", "starts over for ever"),
    PromisesTooMuch: ("horizon", "steps without a decision, whatever arrives, and now"),
    IgnoresArrivals: ("horizon", "whatever arrives, and now a request joined"),
    SkipsWithoutBlocks: ("horizon", "after jumps that horizon allowed"),
    HidesItsQueue: ("views", "load() tells of queues of (0,"),
    Crashes: ("code", "on_abort fails at"),
    ShortestFirst: ("no_starvation", "an endless stream starves it"),
    LastComeFirst: ("no_starvation", "an endless stream starves it"),
    PicksAtRandom: ("deterministic", "two runs of 'burst' differ"),
    SharesItsQueue: ("instances", "joins and is not among the unfinished ones"),
}


def first_failure(build: Callable[[Limits], Good], checks: Iterable[Check]) -> tuple[str, str]:
    """Name of the first check that fails, and what it says."""
    kit = Kit(build, chunked=True)
    for check in checks:
        try:
            check.run(kit)
        except CheckFailed as error:
            return check.name, str(error)
    return "none", ""


@pytest.mark.parametrize("cls", CAUGHT, ids=lambda cls: cls.__name__)
def test_the_check_of_that_name_catches_it(cls: type[Good]) -> None:
    name, words = CAUGHT[cls]
    is_rule = name.upper() in Rule.__members__
    found, said = first_failure(cls, CHECKS if is_rule else [check for check in CHECKS if check.name == name])
    assert (found, words in said) == (name, True), said
