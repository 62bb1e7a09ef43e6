"""Presets of SGLang: defaults by card, what reaches the policy, what is refused."""

from __future__ import annotations

import pytest

from policies.catalog import card
from policies.core.errors import ConfigError
from policies.core.radix_kv import RadixKv
from policies.presets import build_policy, preset, resolve
from policies.systems.sglang import SgLang


def built(name: str, *, num_gpu_blocks: int = 7_000, **overrides: object) -> SgLang:
    parameters = resolve(preset(name), overrides, max_model_len=4_096, card=card("a100-80gb"))
    policy, options = build_policy(parameters, num_gpu_blocks=num_gpu_blocks, kv_bytes_per_token=1)
    assert isinstance(policy, SgLang)
    assert not options.deliver_at_batch_end
    return policy


@pytest.mark.parametrize(
    ("card_name", "tokens"), [("l4-24gb", 2_048), ("a100-80gb", 8_192), ("h200-141gb", 8_192), (None, 4_096)]
)
def test_chunks_follow_the_memory_of_the_card(card_name: str | None, tokens: int) -> None:
    device = None if card_name is None else card(card_name)
    values = resolve(preset("sglang-0.4.9"), {}, max_model_len=4_096, card=device).values
    assert values["chunked_prefill_size"] == tokens


def test_defaults() -> None:
    policy = built("sglang-0.4.9")
    assert isinstance(policy.kv, RadixKv)
    assert (policy.kv.num_blocks, policy.kv.block_size, policy.kv.caches_prefixes) == (112_000, 1, True)
    assert (policy.max_prefill_tokens, policy.max_num_seqs, policy.scheduling) == (16_384, 4_096, "fcfs")
    assert (policy.initial_ratio, policy.is_mixed, policy.replays, policy.max_in_flight) == (0.7, False, False, 1)
    assert policy.tokens_past_length == -2


def test_variants_and_overrides_reach_the_policy() -> None:
    assert built("sglang-0.4.9-lpm").scheduling == "lpm"
    assert built("sglang-0.4.9-dfs-weight").scheduling == "dfs-weight"
    assert built("sglang-0.4.9-mixed").is_mixed
    plain = built("sglang-0.4.9-no-cache", ignore_eos=True, schedule_conservativeness=2.0, chunked_prefill_size=0)
    assert plain.replays
    assert not plain.kv.caches_prefixes
    assert (plain.initial_ratio, plain.chunked_prefill_size) == (1.0, 0)
    assert built("sglang-0.4.9", num_gpu_blocks=100).tokens_past_length == 1_600 - 4_096 - 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"scheduling": "lru"}, r"scheduling is 'lru'; SGLang's orders are fcfs, lpm, dfs-weight, lof"),
        ({"chunked_prefill_size": -1}, r"engine.chunked_prefill_size = -1: give a whole number of at least 0"),
        ({"schedule_conservativeness": -1.0}, r"engine.schedule_conservativeness = -1.0: give a number of at least 0"),
        ({"ignore_eos": 1}, r"engine.ignore_eos = 1: give true or false"),
        ({"block_size": 16}, r"engine.block_size = 16: preset sglang-0.4.9 has no such parameter"),
    ],
)
def test_refusals(overrides: dict[str, object], message: str) -> None:
    def build() -> None:
        resolved = resolve(preset("sglang-0.4.9"), overrides, max_model_len=4_096)
        build_policy(resolved, num_gpu_blocks=7_000, kv_bytes_per_token=1)

    with pytest.raises(ConfigError, match=message):
        build()


def test_a_pool_that_serves_nobody() -> None:
    with pytest.raises(ConfigError, match=r"engine.num_gpu_blocks = 0: the KV pool holds less than a prompt token"):
        built("sglang-0.4.9", num_gpu_blocks=0)
