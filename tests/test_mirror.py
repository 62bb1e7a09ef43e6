"""The mirror backend, fed by plans alone, agrees with every policy after every plan; jumps book what steps do."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.core.protocols import Backend
from policies.kit.mirror import MirrorBackend
from tests.mirror_run import Item, Log, MirrorRun
from tests.scripts import BLOCK_SIZE, MAX_MODEL_LEN, items, prompts_that_no_pool_holds, sizes
from tests.variants import VARIANTS, Size, Variant


def agree(variant: Variant, size: Size, script: list[Item], seed: int) -> Counter[str]:
    """Run a script stepping and jumping, hold the two against each other; how often hard cases came up."""
    stepped = MirrorRun(variant, size, script).run()
    jumped = MirrorRun(variant, size, script, Random(seed)).run()
    assert jumped.ends == stepped.ends
    for time, seen in jumped.seen.items():
        assert seen == stepped.seen[time], f"boundary {time}"
    _check_grants(jumped, stepped)
    return stepped.met + jumped.met


def _check_grants(jumped: Log, stepped: Log) -> None:
    for start, (steps, grants) in jumped.jumps.items():
        planned = [grant for step in range(steps) for grant in stepped.grants[start + step]]
        assert list(grants) == planned, f"{steps} steps from {start}"


@pytest.mark.parametrize("name", VARIANTS)
def test_requests_that_end_before_they_run_are_no_standstill(name: str) -> None:
    agree(VARIANTS[name], *prompts_that_no_pool_holds(), seed=0)


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=max(60, settings.default.max_examples))  # type: ignore[union-attr]
@given(size=sizes(), script=items(), seed=st.integers(0, 99))
def test_plans_alone_are_enough_to_run_every_request(
    name: str, size: Size, script: list[Item], seed: int
) -> None:
    agree(VARIANTS[name], size, script, seed)


def test_the_mirror_is_a_backend() -> None:
    backend: Backend = MirrorBackend(BLOCK_SIZE)
    assert backend.max_in_flight == 1


def crowded(seed: int) -> tuple[Size, list[Item]]:
    """Eight requests of one family in a pool that holds two or three of them."""
    random = Random(seed)
    size = Size(
        num_gpu_blocks=14,
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=5,
        max_num_batched_tokens=random.choice((6, 12, 20)),
        num_cpu_blocks=random.choice((8, 30)),
        kv_bytes_per_token=1,
        pieces_per_block=1,
    )
    script = [
        Item(
            step=2 * number,
            prompt_tokens=random.randint(1, 9),
            output_tokens=random.randint(8, 24),
            max_tokens=24,
            patience=random.choice((None, None, random.randint(5, 40))),
            group=0,
            shared=random.choice((8, 11)),
            guess=random.choice((None, 3)),
        )
        for number in range(8)
    ]
    return size, script


HARD_CASES = {
    "v1": ("recompute", "skip", "carry_on", "abort running", "abort waiting"),
    "v1-prefix": ("recompute", "hits", "skip", "carry_on", "abort running"),
    "v0-recompute": ("recompute", "skip", "carry_on", "abort running", "abort waiting"),
    "v0-swap": ("recompute", "swap", "out", "in", "skip", "abort swapped"),
    "v0-auto": ("recompute", "swap", "out", "in", "skip"),
    "v0-chunked-recompute": ("recompute", "skip", "carry_on", "abort running"),
    "v0-chunked-swap": ("swap", "out", "in", "skip", "abort swapped"),
    "orca-oracle": ("skip", "carry_on", "abort running", "kv_capacity"),
    "ft-static": ("skip", "carry_on", "abort running", "abort waiting"),
}


@pytest.mark.parametrize("name", HARD_CASES)
def test_crowded_pools_reach_the_hard_cases(name: str) -> None:
    met: Counter[str] = Counter()
    for seed in range(24):
        met += agree(VARIANTS[name], *crowded(seed), seed)
    assert [case for case in HARD_CASES[name] if not met[case]] == []
