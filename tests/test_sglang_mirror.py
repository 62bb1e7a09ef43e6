"""The mirror backend, fed by plans alone, agrees with SGLang's policy in all its modes; jumps book what steps do."""

from __future__ import annotations

from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.plan import StepPlan
from policies.kit.mirror import MirrorBackend
from tests.mirror_run import Item, MirrorRun
from tests.scripts import items, sizes
from tests.sglang_modes import MODES, Mode
from tests.variants import Size, Variant


class SlotRun(MirrorRun):
    """A run on single-token slots. Retraction and mixed steps give slots in an order that is new with the plan."""

    def __init__(self, mode: Mode, size: Size, script: list[Item], chooser: Random | None = None) -> None:
        super().__init__(cast(Variant, mode), size, script, chooser)
        self.mirror = MirrorBackend(1)
        self.met_remaps = 0

    def check_plan(self, plan: StepPlan) -> None:
        self.met_remaps += len(plan.remaps)
        super().check_plan(plan._replace(grants=()))


@pytest.mark.parametrize("name", MODES)
@given(size=sizes(), script=items(), seed=st.integers(0, 99))
def test_plans_alone_are_enough_to_run_every_request(
    name: str, size: Size, script: list[Item], seed: int
) -> None:
    stepped = SlotRun(MODES[name], size, script).run()
    jumped = SlotRun(MODES[name], size, script, Random(seed)).run()
    assert jumped.ends == stepped.ends
    for time, seen in jumped.seen.items():
        assert seen == stepped.seen[time], f"boundary {time}"
    for start, (steps, grants) in jumped.jumps.items():
        planned = [grant for step in range(steps) for grant in stepped.grants[start + step]]
        assert list(grants) == planned, f"{steps} steps from {start}"


def test_the_same_prompt_twice_in_a_batch_gives_its_slots_back() -> None:
    """Both compute it, one keeps it: the other's table is patched, and what it reads is still right."""
    script = [Item(0, 1, 5, 5, group=0, shared=9), Item(0, 1, 5, 5, group=0, shared=9)]
    run = SlotRun(MODES["lpm"], Size(16, block_size=4, max_model_len=48), script)
    run.run()
    assert run.met_remaps == 1


def test_crowded_pools_reach_the_hard_cases() -> None:
    met = dict.fromkeys(("recompute", "hits", "kv_capacity", "abort running", "skip", "carry_on"), 0)
    for seed in range(40):
        rng = Random(seed)
        size = Size(rng.choice((8, 16)), block_size=4, max_model_len=48, max_num_seqs=8, max_num_batched_tokens=20)
        script = []
        for _ in range(8):
            group, patience = rng.choice((None, 0, 1)), rng.choice((None, None, 9))
            item = Item(rng.randint(0, 6), rng.randint(1, 8), rng.randint(9, 24), 24, patience, group)
            script.append(item._replace(shared=rng.randint(1, 9)))
        script.sort(key=lambda item: item.step)
        seen = SlotRun(MODES["fcfs"], size, script, rng).run().met
        met = {name: count + seen[name] for name, count in met.items()}
    assert min(met.values()) > 0, met
