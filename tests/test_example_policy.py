"""The example of docs/write-a-policy.md, and built-in policies, under the tests that users inherit."""

from __future__ import annotations

import pytest

from policies.systems.paged import Paged
from policies.systems.token_budget import TokenBudget
from policies.testing import Build, PolicyTests
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
