"""Blocks without ids: a policy decides the same whether its pool names its blocks or only counts them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import ContractError
from policies.core.kv import KvManager
from policies.core.null_observer import NullObserver
from policies.core.plan import Finish, Grants, StepPlan, StepResult
from policies.core.pool import CountedPool
from policies.core.protocols import Policy
from policies.core.radix_kv import RadixKv
from policies.core.request import RequestId
from policies.core.unnumbered import Unnumbered, frozen
from sim.api import prepare
from sim.config import load_config
from tests.variants import AHEAD, SGLANG, VARIANTS
from tests.world_cases import KINDS, random_case
from tests.worlds import p8, run_case

COUNTED = {**SGLANG, "overlap": AHEAD["overlap"], "llamacpp-unified": VARIANTS["llamacpp-unified"]}


class Noted(NullObserver):
    """Notes every plan with the number of blocks in the place of the blocks, and who holds how many."""

    def __init__(self) -> None:
        self.policy: Policy | None = None
        self.lines: list[tuple[object, ...]] = []

    def on_begin(self, plan: StepPlan, now_s: float, *, fresh: bool) -> None:
        """The plan, and the memory that it leaves."""
        assert self.policy is not None
        kv = self.policy.kv
        kv.check()
        told = [sizes(blocks) for blocks in (plan.joins, plan.grants, plan.remaps)]
        others = plan._replace(joins=(), grants=(), remaps=())
        held = {key: len(table) for key, table in kv.tables.items()}
        self.lines.append((now_s, fresh, told, others, held, kv.num_free, self.policy.load(), self.policy.queues()))

    def on_step(self, plan: StepPlan, result: StepResult) -> None:
        """What came of it."""
        self.lines.append(tuple(result))

    def on_finish(self, finish: Finish, now_s: float) -> None:
        """Who ended."""
        self.lines.append((finish, now_s))


def sizes(told: Iterable[tuple[Any, ...]]) -> list[tuple[object, ...]]:
    """The last of each, the blocks, counted."""
    return [(*of_whom, len(blocks)) for *of_whom, blocks in told]


def counting_changes_nothing(name: str, kind: str, seed: int) -> None:
    """Run a random case with ids and without, stepping and jumping."""
    for skip_ahead in (False, True):
        notes = []
        for numbered in (True, False):
            note = Noted()
            case = random_case(COUNTED[name]._replace(numbered=numbered), kind, seed)
            run = run_case(case, skip_ahead=skip_ahead, watch=note)
            assert run.policy.kv.numbered == numbered
            assert run.outcome.status == "completed"
            notes.append(note.lines)
        for number, (one, other) in enumerate(zip_longest(*notes)):
            assert one == other, number


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COUNTED)
def test_counting_changes_no_decision(name: str, kind: str) -> None:
    counting_changes_nothing(name, kind, 0)


def test_who_reads_ids_has_them() -> None:
    for name, numbered in (("sglang-0.4.9", False), ("llamacpp-unified", False), ("vllm-0.11", True)):
        tables = [*p8(5), f"engine.preset={name}"]
        assert prepare(load_config(None, tables)).policy.kv.numbered == numbered
        assert prepare(load_config(None, [*tables, "sim.record=decisions"])).policy.kv.numbered
        assert prepare(load_config(None, tables), num_gpu_blocks=5_000).policy.kv.numbered


@given(st.integers(0, 40), st.slices(40))
def test_blocks_without_ids_are_cut_like_a_list(count: int, index: slice) -> None:
    assert len(Unnumbered(count)[index]) == len(list(range(count))[index])


def test_blocks_without_ids_have_none() -> None:
    blocks = Unnumbered(3)
    for ask in (lambda: blocks[0], lambda: list(blocks), lambda: 7 in blocks):
        with pytest.raises(ContractError, match="a pool that only counts"):
            ask()
    kept = frozen(blocks)
    blocks.extend(kept)
    assert (len(kept), len(blocks), repr(blocks)) == (3, 6, "6 blocks")
    assert kept == Unnumbered(3) != blocks


def test_grants_without_ids_say_who_gets_how_many() -> None:
    grants = Grants([RequestId(4), RequestId(2)], Unnumbered(3))
    wanted = [(4, Unnumbered(1)), (2, Unnumbered(1)), (4, Unnumbered(1))]
    assert (len(grants), list(grants), grants[2], grants[1:]) == (3, wanted, wanted[2], wanted[1:])


def test_memory_that_only_counts() -> None:
    pool = CountedPool(3)
    pool.give_back(pool.take(2))
    with pytest.raises(ContractError, match="4 KV blocks asked for, 3 free"):
        pool.take(4)
    with pytest.raises(ContractError, match="a prefix cache and a CPU tier want blocks with ids"):
        KvManager(9, 1, num_cpu_blocks=1, numbered=False)
    for kv in (KvManager(9, 1, numbered=False), RadixKv(9, numbered=False)):
        kv.pool.take(1)
        with pytest.raises(ContractError, match="lost"):
            kv.check()
