"""The example of docs/write-a-policy.md, and built-in policies, under the tests that users inherit."""

from __future__ import annotations

import pytest

from policies.core.plan import Horizon
from policies.kit.checks import CHECKS
from policies.kit.play import Kit
from policies.systems.paged import Paged
from policies.systems.token_budget import TokenBudget
from policies.testing import Build, Limits, PolicyTests
from tests.examples.shortest_prompt_first import ShortestPromptFirst


class TestShortestPromptFirst(PolicyTests):
    @pytest.fixture
    def build(self) -> Build:
        return lambda limits: ShortestPromptFirst(
            limits.kv(), max_num_seqs=limits.max_num_seqs, max_model_len=limits.max_model_len
        )


class TestTokenBudget(PolicyTests):
    chunked = True

    @pytest.fixture
    def build(self) -> Build:
        return lambda limits: TokenBudget(
            limits.kv(),
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
        )


class TestPagedSwap(PolicyTests):
    @pytest.fixture
    def build(self) -> Build:
        return lambda limits: Paged(
            limits._replace(enable_prefix_caching=False).kv(),
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            watermark=0.0,
            preemption_mode="swap",
            services=limits.services,
        )


def shortest(limits: Limits) -> ShortestPromptFirst:
    return ShortestPromptFirst(limits.kv(), max_num_seqs=limits.max_num_seqs, max_model_len=limits.max_model_len)


def test_a_check_that_is_left_out_and_does_not_exist() -> None:
    class Typo(PolicyTests):
        leave_out = {"no_starvatoin": "ranks by length on purpose"}  # noqa: RUF012

    with pytest.raises(pytest.fail.Exception, match=r"leave_out\['no_starvatoin'\] is no check; did you mean 'no_star"):
        Typo().test_check(Kit(shortest), CHECKS[0])


def test_a_rule_that_is_left_out_is_not_asked_of_random_workloads() -> None:
    class Promises(ShortestPromptFirst):
        def horizon(self) -> Horizon:
            return Horizon(1 << 40, False)

    class Asked(PolicyTests):
        pass

    class LeftOut(PolicyTests):
        leave_out = {"horizon": "promises too much on purpose"}  # noqa: RUF012

    def build(limits: Limits) -> ShortestPromptFirst:
        return Promises(limits.kv(), max_num_seqs=limits.max_num_seqs, max_model_len=limits.max_model_len)

    LeftOut().test_random_workload(build)
    with pytest.raises(pytest.fail.Exception, match="what horizon promises comes true"):
        Asked().test_random_workload(build)
