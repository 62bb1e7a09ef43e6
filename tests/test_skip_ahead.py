"""Runs with and without skip-ahead leave the same record, bit for bit, and the record says what really happened."""

from __future__ import annotations

from itertools import product

import pytest

from tests.token_watch import TokenWatch, check_against
from tests.variants import AHEAD, SGLANG, VARIANTS
from tests.world_cases import KINDS, random_case
from tests.worlds import SHIPPED, KnottyCosts, first_difference, quiet_run, run_case

EVERY = {**VARIANTS, **SGLANG, **AHEAD}
QUIET_STEPS = {
    "vllm-0.11": 4.0,
    "vllm-0.33-async": 2.0,
    "vllm-0.6": 4.0,
    "vllm-0.6-chunked": 4.0,
    "vllm-0.6-swap": 4.0,
    "orca-oracle": 4.0,
    "orca-pow2": 4.0,
    "orca-max": 8.0,
    "ft-static": 8.0,
    "ft-static-early-return": 8.0,
}
"""Least mean number of decode-only steps between two plans at P8."""


def skipping_changes_nothing(name: str, kind: str, seed: int) -> None:
    """Run a random case stepping, watched token by token, and jumping."""
    case = random_case(EVERY[name], kind, seed)
    watch = TokenWatch()
    stepped = run_case(case, skip_ahead=False, watch=watch)
    jumped = run_case(case, skip_ahead=True)
    assert stepped.outcome.status == "completed"
    difference = first_difference(stepped, jumped)
    assert difference is None, difference
    assert stepped.outcome.counts.plans >= jumped.outcome.counts.plans
    check_against(
        stepped.kept,
        watch,
        at_batch_end=case.variant.deliver_at_batch_end,
        num_in_flight=stepped.policy.max_in_flight - 1,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EVERY)
def test_skipping_ahead_changes_nothing(name: str, kind: str) -> None:
    skipping_changes_nothing(name, kind, 0)


@pytest.mark.parametrize(
    ("name", "kind", "seed"),
    [
        # Blocks of others are on their way out, and just enough for the best that waits: one more and a row makes way.
        ("fastserve", "open", 38),
        # The only one that waits for memory goes away, and the next comes while the engine is still full.
        ("overlap", "bursts", 46),
    ],
)
def test_skipping_ahead_changes_nothing_where_it_once_did(name: str, kind: str, seed: int) -> None:
    skipping_changes_nothing(name, kind, seed)


def test_the_random_runs_hold_what_is_hard() -> None:
    """Such cases preempt, swap, hit prefixes, give up, end early, use both costs, and do jump."""
    rows, costs, saved, hits = [], set(), 0, 0
    for name in ("v1-prefix", "v0-swap", "ft-static"):
        for kind, seed in product(KINDS, (0, 1)):
            case = random_case(VARIANTS[name], kind, seed)
            run = run_case(case, skip_ahead=True)
            rows += run.kept.request_rows
            costs.add(type(case.costs))
            hits += sum(row.hit_tokens_new for row in run.kept.request_rows)
            saved += run.outcome.counts.quiet_steps - run.outcome.counts.quiet_plans
    assert costs == {type(SHIPPED), KnottyCosts}
    assert {"stop", "length", "abort", "prompt_too_long", "unfinished"} <= {row.reason for row in rows}
    assert sum(row.recompute_preemptions for row in rows) > 5
    assert sum(row.swap_preemptions for row in rows) > 5
    assert hits > 100
    assert saved > 1_000


@pytest.mark.parametrize("preset", QUIET_STEPS)
def test_quiet_runs_are_long(preset: str) -> None:
    """A system that keeps up with P8 is asked again at each arrival and each end; one whose queue only grows, at
    ends alone."""
    counts, mean = quiet_run(preset, 1_000)
    assert mean >= QUIET_STEPS[preset]
    assert counts.quiet_steps > 7_000
