"""Many new scripts for SGLang on single-token slots, and for engines that plan a step ahead, drawn anew each time."""

from tests.test_sglang_mirror import test_plans_alone_are_enough_to_run_every_request as test_sglang_in_lockstep
from tests.test_sglang_overlap import test_plans_made_ahead_run_every_request as test_sglang_ahead
from tests.test_token_budget_async import test_plans_made_ahead_run_every_request as test_vllm_ahead

__all__ = ["test_sglang_ahead", "test_sglang_in_lockstep", "test_vllm_ahead"]
