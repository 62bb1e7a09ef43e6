"""Supervision of policies: no built-in one ever breaks a rule, and it changes nothing."""

from __future__ import annotations

import pytest

from policies.core.protocols import Policy, Services
from policies.kit.checked import CheckedPolicy
from policies.kit.drive import ScriptRun
from policies.kit.script import Guesses
from tests.scripts import prompts_that_no_pool_holds
from tests.variants import VARIANTS, Size, Variant
from tests.world_cases import KINDS, random_case
from tests.worlds import first_difference, run_case


class Supervised(Variant):
    """A variant as if its policy came from a file."""

    def build(self, size: Size, services: Services) -> Policy:
        """The supervised policy."""
        return CheckedPolicy(super().build(size, services), "mine.py:Mine")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_policy_keeps_the_rules(name: str, kind: str) -> None:
    free = random_case(VARIANTS[name], kind, 0)
    supervised = free._replace(variant=Supervised(*VARIANTS[name]))
    stepped = run_case(supervised, skip_ahead=False)
    assert stepped.outcome.status == "completed"
    for other in (run_case(free, skip_ahead=True), run_case(supervised, skip_ahead=True)):
        difference = first_difference(stepped, other)
        assert difference is None, difference


@pytest.mark.parametrize("name", VARIANTS)
def test_requests_that_end_before_they_run_are_no_standstill(name: str) -> None:
    size, script = prompts_that_no_pool_holds()
    variant = Supervised(*VARIANTS[name])
    policy = variant.build(size, Guesses(script))
    run = ScriptRun(
        policy, script, max_model_len=size.max_model_len, deliver_at_batch_end=variant.deliver_at_batch_end
    )
    assert run.run().ends.keys() == set(range(len(script)))
