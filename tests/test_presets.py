"""Presets: their defaults, what they refuse, and the policies built from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policies.catalog import card, model
from policies.core.engine import Engine
from policies.core.errors import CatalogError, ConfigError
from policies.core.plan import StepPlan
from policies.core.request import Request
from policies.presets import (
    Parameters,
    build_policy,
    choose,
    describe,
    describe_all,
    preset,
    presets,
    resolve,
)
from policies.systems.multi_step import MultiStep
from policies.systems.orca import Orca
from policies.systems.paged import Paged
from policies.systems.paged_027 import Paged027
from policies.systems.paged_chunked import PagedChunked
from policies.systems.paged_priority import PagedPriority
from policies.systems.request_batcher import RayServeBatch, TritonDynamic
from policies.systems.sarathi import Sarathi
from policies.systems.splitfuse import SplitFuse
from policies.systems.static import Static
from policies.systems.tgi import Tgi
from policies.systems.token_budget import TokenBudget
from policies.systems.token_budget_033 import TokenBudget033
from policies.systems.token_budget_priority import PriorityTokenBudget
from policies.systems.vidur import Vidur
from sim.costs.pool import kv_pool
from tests.stepping import Predictions, Stepper

NAMES = [entry.name for entry in presets()]
LLAMA = model("llama-2-7b")
KV_BYTES = LLAMA.kv_bytes_per_token


def resolved(name: str, **overrides: object) -> Parameters:
    return resolve(preset(name), overrides, max_model_len=4_096, card=card("a100-80gb"))


def built(name: str, *, num_gpu_blocks: int = 7_000, **overrides: object) -> object:
    policy, _ = build_policy(
        resolved(name, **overrides),
        num_gpu_blocks=num_gpu_blocks,
        kv_bytes_per_token=KV_BYTES,
        pieces_per_block=64,
        services=Predictions({}),
    )
    return policy


# -- names ---------------------------------------------------------------------------------------------------


def test_names() -> None:
    assert NAMES == [
        "vllm-0.11", "vllm-0.11-priority", "vllm-0.33", "vllm-0.33-priority",
        "vllm-0.33-async", "vllm-0.6", "vllm-0.6-chunked",
        "vllm-0.6-swap", "vllm-0.6-priority", "vllm-0.6-multi-step", "vllm-0.2.7", "vllm-0.2.7-swap",
        "orca-max", "orca-pow2", "orca-oracle",
        "ft-static", "ft-static-early-return", "hf-static", "fastgen-8abdd98", "ray-serve-batch-2.40",
        "ray-serve-batch-2.60", "triton-dynamic",
        "sglang-0.4.9", "sglang-0.4.9-overlap", "sglang-0.4.9-lpm", "sglang-0.4.9-dfs-weight", "sglang-0.4.9-mixed",
        "sglang-0.4.9-no-cache", "tgi-1.4", "tgi-3",
        "trtllm-no-evict", "trtllm-max-utilization", "trtllm-static",
        "llamacpp", "llamacpp-unified", "ollama",
        "sarathi-96f9911", "sarathi-96f9911-simple-chunking", "sarathi-96f9911-vllm",
        "sarathi-96f9911-orca", "sarathi-96f9911-ft", "vidur-7d47513-sarathi", "vidur-7d47513-vllm",
        "vidur-7d47513-orca",
        "priority", "sjf", "srtf", "edf", "least-laxity", "vtc", "fastserve", "andes",
    ]  # fmt: skip


def test_an_unknown_preset_gets_the_closest_name() -> None:
    with pytest.raises(CatalogError, match=r"did you mean 'vllm-0\.11'"):
        preset("vlm-0.11")
    with pytest.raises(CatalogError, match=r"known: vllm-0\.11, vllm-0\.11-priority"):
        preset("zzz")


def test_choose() -> None:
    assert choose("vllm-0.6", None) == (preset("vllm-0.6"), None)
    assert choose("vllm-0.11", "orca-max") == (preset("orca-max"), None)
    assert choose("vllm-0.6", "mine.py:Mine") == (preset("vllm-0.6"), "mine.py:Mine")
    with pytest.raises(CatalogError, match=r"engine\.policy = 'orca_max'.*did you mean 'orca-max'"):
        choose("vllm-0.11", "orca_max")


# -- defaults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "card_name", "tokens", "seqs"),
    [
        ("vllm-0.11", "a100-80gb", 2_048, 256),
        ("vllm-0.11", "l4-24gb", 2_048, 256),
        ("vllm-0.11", "h100-80gb", 8_192, 1_024),
        ("vllm-0.11", "h200-141gb", 8_192, 1_024),
        ("vllm-0.33", "a100-80gb", 2_048, 256),
        ("vllm-0.33", "h200-141gb", 8_192, 1_024),
        ("vllm-0.33-priority", "l4-24gb", 2_048, 256),
        ("vllm-0.6", "h100-80gb", 4_096, 256),
        ("vllm-0.2.7", "h100-80gb", 4_096, 256),
        ("vllm-0.6-chunked", "a100-80gb", 512, 256),
        ("vllm-0.6-swap", "a100-80gb", 4_096, 256),
        ("orca-max", "a100-80gb", 4_096, 256),
        ("ft-static", "a100-80gb", 4_096, 32),
        ("fastgen-8abdd98", "a100-80gb", 768, 512),
        ("ray-serve-batch-2.40", "a100-80gb", 4_096, 10),
        ("triton-dynamic", "a100-80gb", 4_096, 4),
        ("tgi-1.4", "a100-80gb", 4_096, 128),
        ("tgi-3", "a100-80gb", 4_096, 128),
        ("trtllm-no-evict", "a100-80gb", 8_192, 2_048),
        ("llamacpp", "a100-80gb", 2_048, 4),
        ("ollama", "a100-80gb", 512, 1),
        ("sarathi-96f9911", "a100-80gb", 512, 128),
        ("sarathi-96f9911-simple-chunking", "a100-80gb", 512, 128),
        ("sarathi-96f9911-vllm", "a100-80gb", 4_096, 128),
        ("sarathi-96f9911-ft", "a100-80gb", 4_096, 128),
        ("vidur-7d47513-sarathi", "a100-80gb", 512, 128),
        ("vidur-7d47513-vllm", "a100-80gb", 4_096, 128),
    ],
)
def test_defaults(name: str, card_name: str, tokens: int, seqs: int) -> None:
    parameters = resolve(preset(name), {}, max_model_len=4_096, card=card(card_name))
    assert (parameters.max_num_batched_tokens, parameters.max_num_seqs) == (tokens, seqs)


def test_vllm_v0_takes_at_least_2048_tokens_a_step() -> None:
    assert resolved("vllm-0.6", max_model_len=1_024).max_num_batched_tokens == 2_048


def test_defaults_follow_what_they_depend_on() -> None:
    assert resolved("vllm-0.6", enable_chunked_prefill=True).max_num_batched_tokens == 512
    assert resolved("vllm-0.11", enable_chunked_prefill=False).max_num_batched_tokens == 4_096


def test_static_on_an_a100_has_28_slots() -> None:
    parameters = resolved("ft-static")
    pool = kv_pool(
        LLAMA,
        card("a100-80gb"),
        max_num_batched_tokens=parameters.max_num_batched_tokens,
        max_num_seqs=parameters.max_num_seqs,
        block_size=parameters.pool_block_size,
    )
    policy, _ = build_policy(parameters, num_gpu_blocks=pool.num_gpu_blocks, kv_bytes_per_token=KV_BYTES)
    world = Stepper(policy, max_model_len=4_096, deliver_at_batch_end=True)
    world.arrive(*((index, 10, 1) for index in range(40)))
    assert [line.count(":0+10") for line in world.run()] == [28, 12]


# -- policies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("vllm-0.11", TokenBudget), ("vllm-0.11-priority", PriorityTokenBudget), ("vllm-0.33", TokenBudget033),
        ("vllm-0.33-priority", TokenBudget033), ("vllm-0.6-priority", PagedPriority), ("vllm-0.2.7", Paged027),
        ("vllm-0.2.7-swap", Paged027), ("vllm-0.6", Paged), ("vllm-0.6-chunked", PagedChunked),
        ("vllm-0.6-swap", Paged), ("vllm-0.6-multi-step", MultiStep),
        ("orca-max", Orca), ("orca-pow2", Orca), ("orca-oracle", Orca),
        ("ft-static", Static), ("ft-static-early-return", Static), ("fastgen-8abdd98", SplitFuse),
        ("ray-serve-batch-2.40", RayServeBatch), ("ray-serve-batch-2.60", RayServeBatch),
        ("triton-dynamic", TritonDynamic), ("tgi-1.4", Tgi),
        ("sarathi-96f9911", Sarathi), ("vidur-7d47513-sarathi", Vidur),
    ],
)  # fmt: skip
def test_classes(name: str, cls: type) -> None:
    assert type(built(name)) is cls


def test_paged_presets() -> None:
    v1, v0, swap = built("vllm-0.11"), built("vllm-0.6"), built("vllm-0.6-swap")
    assert isinstance(v1, TokenBudget)
    assert isinstance(v0, Paged)
    assert isinstance(swap, Paged)
    assert (v1.kv.block_size, v1.kv.num_blocks, v1.kv.prefix_cache is None) == (16, 6_999, False)
    assert (v0.kv.num_blocks, v0.watermark_blocks, v0.preemption_mode) == (7_000, 70, "recompute")
    assert (swap.preemption_mode, swap.kv.cpu_pool.num_blocks) == ("swap", 512)  # 4 GiB of 8 MiB blocks
    assert (swap.block_bytes, swap.pieces_per_block) == (8 << 20, 64)


def test_cards_of_160_gib_take_16384_tokens_a_step() -> None:
    large = card("h200-141gb")._replace(memory_bytes=160 << 30)
    for name, tokens in (("vllm-0.33", 16_384), ("vllm-0.11", 8_192)):
        assert resolve(preset(name), {}, max_model_len=4_096, card=large).max_num_batched_tokens == tokens


def test_newer_and_older_presets_of_vllm() -> None:
    new, ranked, padded = built("vllm-0.33"), built("vllm-0.33-priority"), built("vllm-0.2.7-swap")
    assert isinstance(new, TokenBudget033)
    assert isinstance(ranked, TokenBudget033)
    assert isinstance(padded, Paged027)
    assert (new.reserve_full_isl, new.watermark_blocks, new.kv.unhashed_first) == (True, 0, True)
    assert (new.by_priority, ranked.by_priority) == (False, True)
    assert (padded.max_paddings, padded.preemption_mode, padded.watermark_blocks) == (256, "swap", 70)
    changed = built("vllm-0.33", scheduler_reserve_full_isl=False, watermark=0.1)
    assert isinstance(changed, TokenBudget033)
    assert (changed.reserve_full_isl, changed.watermark_blocks) == (False, 700)
    with pytest.raises(ConfigError, match=r"max_paddings = -1: give a whole number of at least 0"):
        resolved("vllm-0.2.7", max_paddings=-1)
    with pytest.raises(ConfigError, match=r"at least max_model_len = 4096; raise it, lower engine\.max_model_len$"):
        resolved("vllm-0.2.7", max_num_batched_tokens=2_048)


def test_overrides_reach_the_policy() -> None:
    policy = built("vllm-0.11", max_num_seqs=8, max_num_batched_tokens=64, long_prefill_token_threshold=32)
    assert isinstance(policy, TokenBudget)
    assert (policy.max_num_seqs, policy.max_num_batched_tokens, policy.chunk_limit) == (8, 64, 32)
    assert isinstance(built("vllm-0.6", enable_chunked_prefill=True), PagedChunked)
    bare = built("vllm-0.11", enable_prefix_caching=False)
    assert isinstance(bare, TokenBudget)
    assert bare.kv.prefix_cache is None


def test_batchers_take_their_windows_and_sizes() -> None:
    old, new = built("ray-serve-batch-2.40"), built("ray-serve-batch-2.60", batch_wait_timeout_s=2)
    assert isinstance(old, RayServeBatch)
    assert isinstance(new, RayServeBatch)
    assert (old.batch_wait_timeout_s, old.forms_ahead) == (0.0, False)
    assert (new.batch_wait_timeout_s, new.forms_ahead) == (2, True)
    plain = built("triton-dynamic")
    sized = built("triton-dynamic", max_num_seqs=8, preferred_batch_sizes="6, 2")
    assert isinstance(plain, TritonDynamic)
    assert isinstance(sized, TritonDynamic)
    assert (plain.preferred_batch_sizes, sized.preferred_batch_sizes) == ((4,), (2, 6))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [("2,9", "preferred_batch_sizes has 9; give sizes from 1 to max_num_seqs = 8"), ("2;4", "with commas")],
)
def test_preferred_sizes_that_no_batch_has(sizes: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built("triton-dynamic", max_num_seqs=8, preferred_batch_sizes=sizes)


@pytest.mark.parametrize(
    ("preset_name", "overrides", "message"),
    [
        ("sglang-0.4.9", {"scheduling": "lru"}, "engine.scheduling is 'lru'; SGLang's orders are"),
        ("tgi-3", {"max_input_length": 10**6}, "engine.max_input_length is 1000000; TGI wants less than max_model_len"),
        ("triton-dynamic", {"preferred_batch_sizes": "2;4"}, "engine.preferred_batch_sizes is '2;4'; give whole"),
        ("sarathi-96f9911", {"chunk_schedule_stages": 2}, "engine.low_chunk_size is 0; dynamic chunks need"),
    ],
)
def test_what_a_policy_refuses_is_named_as_a_key_of_a_run(
    preset_name: str, overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        build_policy(resolved(preset_name, **overrides), num_gpu_blocks=7_000, kv_bytes_per_token=KV_BYTES)


def test_sarathi_and_vidur_presets() -> None:
    plain = built("sarathi-96f9911")
    assert isinstance(plain, Sarathi)
    assert (plain.scheduler, plain.watermark_blocks, plain.chunk_sizes) == ("sarathi", 70, (512,))
    schedule = {"low_chunk_size": 128, "chunk_schedule_max_tokens": 4_096, "chunk_schedule_stages": 4}
    dynamic = built("sarathi-96f9911", **schedule)
    assert isinstance(dynamic, Sarathi)
    assert dynamic.chunk_sizes == (512, 384, 256, 128)
    with pytest.raises(ConfigError, match="low_chunk_size is 100; dynamic chunks need a multiple of 32"):
        built("sarathi-96f9911", **{**schedule, "low_chunk_size": 100})
    orca, padded = built("sarathi-96f9911-orca"), built("vidur-7d47513-vllm", watermark=0.1)
    assert isinstance(orca, Sarathi)
    assert isinstance(padded, Vidur)
    assert (orca.reserved_blocks, orca.watermark_blocks, orca.kv.block_size) == (256, 0, 16)
    assert (padded.scheduler, padded.watermark_blocks) == ("vllm", 700)


def test_the_pool_in_slots_and_in_tokens() -> None:
    slots, tokens = built("orca-max", num_gpu_blocks=700), built("orca-oracle", num_gpu_blocks=700)
    assert isinstance(slots, Orca)
    assert isinstance(tokens, Orca)
    assert (slots.kv.block_size, slots.kv.num_blocks) == (4_096, 2)  # 11,200 tokens
    assert (tokens.kv.block_size, tokens.kv.num_blocks) == (1, 11_200)


def test_only_batches_that_answer_together_deliver_late() -> None:
    late = []
    for name in NAMES:
        parameters = resolved(name)
        _, options = build_policy(
            parameters, num_gpu_blocks=7_000, kv_bytes_per_token=KV_BYTES, services=Predictions({})
        )
        assert options.deliver_at_batch_end == (parameters.delivery == "batch_end")
        if options.deliver_at_batch_end:
            late.append(name)
    assert late == ["ft-static", "hf-static", "ray-serve-batch-2.40", "ray-serve-batch-2.60", "triton-dynamic"]


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_serves_requests_in_a_small_pool(name: str) -> None:
    outputs = {index: 1 + 37 * index % 90 for index in range(40)}
    policy, options = build_policy(
        resolved(name, max_model_len=256),
        num_gpu_blocks=40,
        kv_bytes_per_token=KV_BYTES,
        services=Predictions(outputs),
    )
    world = Stepper(policy, max_model_len=256, deliver_at_batch_end=options.deliver_at_batch_end)
    world.arrive(*((index, 5 + 11 * index % 100, output) for index, output in outputs.items()))
    lines = world.run()
    answers = re.findall(r"(\d+)=stop(\d+)", " ".join(lines))
    assert {int(number): int(tokens) for number, tokens in answers} == outputs
    assert world.step() == "idle"
    assert policy.kv.num_free == policy.kv.num_blocks


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("vllm-0.11", {"max_num_seqs": 0}, "engine.max_num_seqs = 0: give a whole number of at least 1"),
        ("vllm-0.11", {"max_num_seqs": True}, "engine.max_num_seqs = true: give a whole number"),
        ("vllm-0.11", {"block_size": 1.5}, "engine.block_size = 1.5: give a whole number"),
        (
            "vllm-0.6",
            {"swap_space_bytes": -1},
            "engine.swap_space_bytes = -1: give a whole number of at least 0",
        ),
        ("vllm-0.6", {"watermark": 1.0}, "engine.watermark = 1.0: give a number of at least 0 and below 1"),
        ("vllm-0.6", {"preemption_mode": "swop"}, "did you mean 'swap'?"),
        ("vllm-0.6", {"enable_chunked_prefill": 1}, "engine.enable_chunked_prefill = 1: give true or false"),
        ("vllm-0.11", {"max_model_len": 8_192}, "engine.max_model_len = 8192: the model takes at most 4096"),
        ("vllm-0.11", {"max_num_batched_tokens": 128}, "wants at least max_num_seqs = 256"),
        ("vllm-0.6", {"max_num_batched_tokens": 2_048}, "wants at least max_model_len = 4096"),
        (
            "vllm-0.11",
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 2_048},
            "without chunked prefill vLLM wants at least max_model_len = 4096",
        ),
        ("vllm-0.11", {"watermark": 0.01}, "preset vllm-0.11 has no such parameter, leave it out"),
        ("orca-max", {"preemption_mode": "swap"}, "presets that have it: vllm-0.6, vllm-0.6-chunked"),
        ("ft-static", {"block_size": 16}, "engine.block_size = 16: preset ft-static has no such parameter"),
        ("ft-static", {"max_num_seq": 16}, "did you mean 'max_num_seqs'?"),
        ("ray-serve-batch-2.40", {"batch_wait_timeout_s": -0.1}, "give a number of seconds of at least 0"),
    ],
)
def test_impossible_parameters(name: str, overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(name, **overrides)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"engine.{next(reversed(overrides))} = ")
    assert "\n" not in str(caught.value)


def test_absent_values_and_keys_of_the_pool_are_passed_over() -> None:
    overrides: dict[str, object] = {
        "preset": "x",
        "policy": None,
        "num_gpu_blocks": 9,
        "max_num_seqs": None,
        "watermark": None,
    }
    assert resolve(preset("orca-max"), overrides, max_model_len=4_096) == resolved("orca-max")


@pytest.mark.parametrize(
    ("name", "blocks", "needed"),
    [
        ("vllm-0.11", 1, "one usable block of 16"),
        ("ft-static", 255, "one slot of 4096"),
        ("sarathi-96f9911-orca", 255, "one reservation of 4096"),
        ("orca-max", 255, "one slot of 4096"),
        ("orca-oracle", 0, "a prompt and an output token, 2"),
    ],
)
def test_a_pool_that_serves_nobody(name: str, blocks: int, needed: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.num_gpu_blocks = {blocks}: .*{needed} tokens"):
        built(name, num_gpu_blocks=blocks)


@pytest.mark.parametrize(
    ("name", "system"), [("vllm-0.11", "vLLM"), ("vllm-0.6", "vLLM"), ("sarathi-96f9911", "Sarathi-Serve")]
)
def test_only_a_faithful_engine_refuses_a_pool_smaller_than_the_longest_request(name: str, system: str) -> None:
    built(name, num_gpu_blocks=255)
    built(name, num_gpu_blocks=256, faithful=True)
    with pytest.raises(
        ConfigError, match=rf"engine\.max_model_len = 4096: {system} refuses to start .* 4080 tokens"
    ):
        built(name, num_gpu_blocks=255, faithful=True)
    built("vidur-7d47513-sarathi", num_gpu_blocks=255, faithful=True)


def test_predictions_are_needed_where_reservations_follow_them() -> None:
    with pytest.raises(ConfigError, match="use preset orca-max"):
        build_policy(resolved("orca-pow2"), num_gpu_blocks=700, kv_bytes_per_token=KV_BYTES)


# -- a user's own policy -------------------------------------------------------------------------------------

SHORTEST_FIRST = """
from collections import deque

from policies.systems.orca import Orca


class ShortestFirst(Orca):
    def __init__(self, kv, max_model_len, *, max_num_seqs, weight=2):
        super().__init__(kv, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self.weight = weight

    def on_arrival(self, request):
        super().on_arrival(request)
        self.waiting = deque(sorted(self.waiting, key=lambda row: row.prompt_tokens))


class Needy(Orca):
    def __init__(self, kv, *, appetite):
        pass


class Nothing:
    pass
"""


def custom(tmp_path: Path, cls: str, code: str = SHORTEST_FIRST) -> object:
    file = tmp_path / "mine.py"
    file.write_text(code)
    parameters = resolve(preset("orca-max"), {"max_num_seqs": 1}, max_model_len=100, custom=f"{file}:{cls}")
    policy, _ = build_policy(parameters, num_gpu_blocks=700, kv_bytes_per_token=KV_BYTES)
    return policy


def test_a_class_from_a_file_takes_the_parameters_it_names(tmp_path: Path) -> None:
    policy = custom(tmp_path, "ShortestFirst")
    assert isinstance(policy, Orca)
    engine = Engine(policy)
    for number, prompt in enumerate([30, 10, 20]):
        engine.add(Request(number, 0.0, prompt, 5), 0.0)
    plan = engine.plan(0.0)
    assert isinstance(plan, StepPlan)
    assert [(chunk.id, chunk.num_tokens) for chunk in plan.chunks] == [(1, 10)]


@pytest.mark.parametrize(
    ("cls", "code", "message"),
    [
        ("ShortestFist", SHORTEST_FIRST, "has no class 'ShortestFist'; did you mean 'ShortestFirst'?"),
        ("Nothing", SHORTEST_FIRST, "Nothing is no policy"),
        ("Needy", SHORTEST_FIRST, "__init__ of Needy wants 'appetite'"),
        ("X", "class X(:\n", "mine.py, line 1 fails with SyntaxError"),
        ("X", "\n\nimport there_is_no_such_module\n", "mine.py, line 3 fails with ModuleNotFoundError"),
        (
            "X",
            "from policies.core.protocols import Policy\nclass X(Policy):\n    pass\n",
            "X does not define batch_order, horizon, load",
        ),
    ],
)
def test_a_file_that_holds_no_such_policy(tmp_path: Path, cls: str, code: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        custom(tmp_path, cls, code)
    assert message in str(caught.value)
    assert str(caught.value).startswith("engine.policy = '")


def test_a_file_that_is_not_there() -> None:
    parameters = resolve(preset("orca-max"), {}, max_model_len=100, custom="nowhere.py:X")
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.py"):
        build_policy(parameters, num_gpu_blocks=700, kv_bytes_per_token=KV_BYTES)


# -- words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_description_names_every_parameter_and_its_source(name: str) -> None:
    chosen, text = preset(name), describe(preset(name))
    for word in (name, chosen.source, "host term", "Modelled:", "max_model_len", *chosen.defaults):
        assert word in text
    assert text.startswith(f"{name}: {chosen.summary}\n")


def test_the_list_has_a_header_and_one_line_a_preset_under_its_system() -> None:
    header, *lines = describe_all().splitlines()
    assert header.split() == ["preset", "version", "what", "it", "does"]
    assert [line.split()[0] for line in lines if line.startswith("  ")] == NAMES
    systems = [line for line in lines if not line.startswith("  ")]
    assert sorted(systems) == sorted({preset(name).system for name in NAMES})
    under = ""
    for line in lines:
        under = line if not line.startswith("  ") else under
        assert line == under or preset(line.split()[0]).system == under


def test_a_description_says_which_class_runs_when_and_what_keys_take() -> None:
    text = describe(preset("vllm-0.6"))
    assert "policies.systems.paged:Paged without chunked prefill\n" in text
    assert "policies.systems.paged_chunked:PagedChunked with chunked prefill (enable_chunked_prefill)\n" in text
    assert "recompute  (allowed: recompute, swap, auto)\n" in text
    assert "Defaults, of the API server, each an engine key" in describe(preset("vllm-0.11"))


@pytest.mark.parametrize("name", ["orca-oracle", "sglang-0.4.9", "ft-static"])
def test_a_description_says_what_num_gpu_blocks_counts(name: str) -> None:
    assert "500 blocks of 16 tokens = 8,000 " in describe(preset(name))
    assert "500 blocks" not in describe(preset("vllm-0.6"))


def test_the_allowed_orders_of_sglang_are_the_policys() -> None:
    from policies.systems.sglang_queue import SCHEDULING

    assert f"(allowed: {', '.join(SCHEDULING)})" in describe(preset("sglang-0.4.9"))


def test_a_beginning_lists_what_begins_so_newest_first() -> None:
    begun = (
        "those that begin so, newest first: vllm-0.33, vllm-0.33-priority, vllm-0.33-async, vllm-0.11,"
        " vllm-0.11-priority, vllm-0.6, vllm-0.6-chunked, vllm-0.6-swap, vllm-0.6-priority,"
        " vllm-0.6-multi-step, vllm-0.2.7, vllm-0.2.7-swap"
    )
    with pytest.raises(CatalogError, match=f"^engine.policy = 'vllm': neither .*; {begun}$"):
        choose("vllm-0.11", "vllm")
    with pytest.raises(CatalogError, match=f"^engine.preset = 'vllm': unknown preset; {begun}$"):
        preset("vllm")
