"""The shipped cost model of Llama-2-7B on an A100 80 GB: anchors, floor, and one expression for steps and
curves."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.catalog import Card, ModelShape, card, model
from policies.core.errors import ConfigError, ContractError
from policies.core.plan import Chunk
from sim.costs.floor import bound_output_tokens_per_s, floor_of
from sim.costs.load import load_cost_model
from sim.costs.model import CostModel
from sim.costs.pool import kv_pool
from sim.costs.terms import HostTerm

SHAPE = model("llama-2-7b")
CARD = card("a100-80gb")
COSTS = load_cost_model(SHAPE, CARD)

batches = st.integers(1, 512)
contexts = st.integers(0, 4096)


def chunk(num_tokens: int, start: int = 0, emits: bool = True) -> Chunk:
    return Chunk(1, start, num_tokens, emits)


@pytest.mark.parametrize(
    ("num_seqs", "expected_ms"), [(1, 9.7), (4, 10.2), (8, 11.4), (16, 12.7), (32, 15.5), (64, 20.2)]
)
def test_decode_step_at_context_512(num_seqs: int, expected_ms: float) -> None:
    parts = COSTS.parts(num_seqs, num_seqs, 512 * num_seqs, 512)
    assert 1e3 * (parts["linear"] + parts["decode_attention"]) == pytest.approx(expected_ms, rel=0.03)


@pytest.mark.parametrize(
    ("num_tokens", "layer_ms"),
    [
        (1, 0.290),
        (8, 0.283),
        (32, 0.298),
        (64, 0.303),
        (128, 0.383),
        (256, 0.557),
        (512, 1.043),
        (1024, 2.12),
        (2048, 4.17),
        (4096, 8.12),
    ],
)
def test_layer_sums(num_tokens: int, layer_ms: float) -> None:
    assert 1e3 * COSTS.file.linear.at(num_tokens) == pytest.approx(layer_ms, rel=0.002)


def test_prefill_attention_and_head_are_the_measured_sizes() -> None:
    prefill = COSTS.file.prefill
    assert 1e3 * (prefill.step_s + prefill.at(2048, 0)) == pytest.approx(0.29, rel=0.15)
    assert all(0.16e-3 < COSTS.file.head.at(rows) < 0.19e-3 for rows in range(1, 65))


@given(batches, contexts, st.integers(0, 64))
def test_a_decode_step_is_the_first_step_of_its_curve(num_seqs: int, context: int, padding: int) -> None:
    total, num_tokens = num_seqs * context, num_seqs + padding
    base_s, slope_s, steps = COSTS.decode_curve(num_seqs, num_tokens, total, context)
    assert COSTS.step_time_s(num_tokens, num_seqs, total, context, ()) == base_s + slope_s * total
    last = total + min(7, steps - 1) * num_seqs
    assert COSTS.step_time_s(num_tokens, num_seqs, last, last // num_seqs, ()) == base_s + slope_s * last


@given(batches, st.integers(0, 9000))
def test_a_curve_ends_where_the_context_reaches_a_knot(num_seqs: int, total: int) -> None:
    base_s, slope_s, steps = COSTS.decode_curve(num_seqs, num_seqs, total, total)
    assert steps >= 1
    knots = [knot * num_seqs for knot in COSTS.file.decode.contexts[1:-1]]
    ends = [knot for knot in knots if knot > total]
    assert steps > 1 << 40 if not ends else total + (steps - 1) * num_seqs < ends[0] <= total + steps * num_seqs
    # The time is continuous there: the next curve begins where this one would have gone on.
    if ends and steps < 9_000:
        after = total + steps * num_seqs
        here_s = base_s + slope_s * ends[0]
        next_base_s, next_slope_s, _ = COSTS.decode_curve(num_seqs, num_seqs, after, total + steps)
        assert next_base_s + next_slope_s * ends[0] == pytest.approx(here_s, rel=1e-9)


@given(batches, contexts, st.lists(st.tuples(st.integers(1, 4096), contexts, st.booleans()), max_size=4))
def test_parts_add_up_to_the_step(num_seqs: int, context: int, sizes: list[tuple[int, int, bool]]) -> None:
    chunks = [chunk(*size) for size in sizes]
    num_tokens = num_seqs + sum(c.num_tokens for c in chunks)
    arguments = (num_tokens, num_seqs, num_seqs * context, context, chunks)
    assert sum(COSTS.parts(*arguments).values()) == pytest.approx(COSTS.step_time_s(*arguments), rel=1e-12)


def test_no_decode_step_is_under_the_floor() -> None:
    for num_seqs, context in itertools.product(range(1, 1025), (0, 1, 32, 500, 1024, 4096, 100_000)):
        total = num_seqs * context
        step_s = COSTS.step_time_s(num_seqs, num_seqs, total, context, ())
        assert step_s >= (SHAPE.read_bytes + total * SHAPE.kv_bytes_per_token) / CARD.bytes_per_s * (
            1 - 1e-12
        )
        flops = 2 * (SHAPE.num_parameters - SHAPE.head_parameters) * num_seqs
        assert step_s >= 0.99 * flops / CARD.flops_per_s


@given(st.integers(0, 256), contexts, st.integers(1, 20_000), st.integers(0, 100_000))
def test_no_mixed_step_is_under_the_floor(num_seqs: int, context: int, tokens: int, start: int) -> None:
    total = num_seqs * context
    step_s = COSTS.step_time_s(num_seqs + tokens, num_seqs, total, context, (chunk(tokens, start),))
    matrices = SHAPE.layers * SHAPE.layer_matrix_parameters
    pairs = total + tokens * start + tokens * (tokens + 1) // 2
    flops = 2 * matrices * (num_seqs + tokens) + 4 * SHAPE.layers * SHAPE.hidden * pairs
    num_bytes = SHAPE.read_bytes + (total + start) * SHAPE.kv_bytes_per_token
    assert step_s >= max(flops / CARD.flops_per_s, num_bytes / CARD.bytes_per_s) * (1 - 1e-12)


def test_a_cost_file_faster_than_the_card_is_lifted_to_the_floor() -> None:
    file = COSTS.file
    decode = file.decode._replace(seconds=tuple((0.0,) * len(row) for row in file.decode.seconds), uneven_s=0.0)
    linear = file.linear._replace(seconds=(1e-9,) * len(file.linear.seconds))
    fast = CostModel(file._replace(decode=decode, linear=linear), SHAPE, CARD)
    base_s, slope_s, _ = fast.decode_curve(4, 4, 0, 0)
    assert base_s == pytest.approx(SHAPE.read_bytes / CARD.bytes_per_s)
    assert slope_s == pytest.approx(SHAPE.kv_bytes_per_token / CARD.bytes_per_s)
    assert fast.parts(4, 4, 4000, 1000)["floor"] > 0


def test_a_chunk_costs_what_it_adds() -> None:
    alone_s = COSTS.step_time_s(512, 0, 0, 0, (chunk(512),))
    on_context_s = COSTS.step_time_s(512, 0, 0, 0, (chunk(512, 2048),))
    silent_s = COSTS.step_time_s(512, 0, 0, 0, (chunk(512, emits=False),))
    assert on_context_s > alone_s
    assert alone_s - silent_s == pytest.approx(COSTS.file.head.at(1))
    assert COSTS.recompute_time_s(512, 2048) == on_context_s


def test_tokens_beyond_the_table_cost_whole_tiles() -> None:
    at = COSTS.file.linear.at
    assert at(5000) == at(40 * 128) == pytest.approx(40 / 32 * at(4096), rel=0.02)
    assert at(4097) >= at(4096)


def test_sequences_beyond_the_table_cost_in_line() -> None:
    decode = COSTS.file.decode

    def token_s(num_seqs: int) -> float:
        row = decode.at(num_seqs)
        return (row[-1] - row[0]) / (num_seqs * decode.contexts[-1])

    assert decode.at(300)[0] - decode.at(200)[0] == pytest.approx(decode.at(400)[0] - decode.at(300)[0])
    assert token_s(400) == pytest.approx(token_s(128))


def test_the_largest_measured_step_is_known() -> None:
    assert COSTS.largest_step == (4096, 128, 4032)


def test_host_time_is_the_presets_and_comes_on_top() -> None:
    hosted = load_cost_model(SHAPE, CARD, host=HostTerm(base_s=2.9e-3, per_seq_s=0.06e-3))
    plain = COSTS.step_time_s(8, 8, 800, 100, ())
    assert hosted.step_time_s(8, 8, 800, 100, ()) - plain == pytest.approx(2.9e-3 + 8 * 0.06e-3)
    chunks = (chunk(100),)
    plain = COSTS.step_time_s(108, 8, 800, 100, chunks)
    assert hosted.step_time_s(108, 8, 800, 100, chunks) - plain == pytest.approx(2.9e-3 + 9 * 0.06e-3)
    assert hosted.parts(8, 8, 800, 100)["host"] == pytest.approx(2.9e-3 + 8 * 0.06e-3)


def test_host_time_of_a_step_that_prefills_may_be_longer() -> None:
    host = HostTerm(base_s=2e-3, per_seq_s=0.1e-3, prefill_s=1e-3)
    hosted = load_cost_model(SHAPE, CARD, host=host)
    even = load_cost_model(SHAPE, CARD, host=host._replace(prefill_s=0))
    chunks = (chunk(100), chunk(100))
    assert hosted.step_time_s(8, 8, 800, 100, ()) == even.step_time_s(8, 8, 800, 100, ())
    more_s = hosted.step_time_s(208, 8, 800, 100, chunks) - even.step_time_s(208, 8, 800, 100, chunks)
    assert more_s == pytest.approx(1e-3)
    assert hosted.parts(208, 8, 800, 100, chunks)["host"] == pytest.approx(hosted.host_time_s(10, prefills=True))


def test_uneven_contexts_cost_more_when_the_file_says_so() -> None:
    decode = COSTS.file.decode._replace(uneven_s=1e-9)
    uneven = CostModel(COSTS.file._replace(decode=decode), SHAPE, CARD)
    even_s = uneven.step_time_s(4, 4, 400, 100, ())
    assert even_s == pytest.approx(COSTS.step_time_s(4, 4, 400, 100, ()))
    assert COSTS.step_time_s(4, 4, 400, 300, ()) > even_s
    assert uneven.step_time_s(4, 4, 400, 300, ()) - even_s == pytest.approx(32 * 1e-9 * 200)


def test_swapping_a_sequence_of_1000_tokens() -> None:
    num_bytes, pieces = 1000 * SHAPE.kv_bytes_per_token, 63 * SHAPE.swap_pieces_per_block()
    assert COSTS.swap_time_s(num_bytes, pieces) == pytest.approx(49e-3, rel=0.02)
    assert COSTS.swap_time_s(num_bytes, 1) == pytest.approx(21e-3, rel=0.02)


def test_an_empty_step_is_a_broken_plan() -> None:
    with pytest.raises(ContractError, match="0 tokens"):
        COSTS.step_time_s(0, 0, 0, 0, ())


def test_the_pool_of_an_a100_80gb() -> None:
    pool = kv_pool(SHAPE, CARD, max_num_batched_tokens=2048, max_num_seqs=256)
    assert 108_000 <= pool.tokens <= 120_000
    assert pool.tokens == 16 * pool.num_gpu_blocks
    assert pool.activation_bytes == 2048 * (4 * 4096 + 4 * 11008) * 2 + 256 * 32000 * 8
    rest = 0.9 * pool.memory_bytes - pool.weight_bytes - pool.activation_bytes - pool.reserve_bytes
    assert pool.num_gpu_blocks == rest // pool.block_bytes
    given_memory = kv_pool(SHAPE, CARD, max_num_batched_tokens=2048, max_num_seqs=256, memory_bytes=40 << 30)
    assert given_memory.num_gpu_blocks < pool.num_gpu_blocks / 2


def test_a_model_too_large_for_the_card_is_a_user_error() -> None:
    with pytest.raises(ConfigError, match=r"llama-2-70b on a100-80gb leaves no room.*138\.0 GB weights"):
        kv_pool(model("llama-2-70b"), CARD, max_num_batched_tokens=2048, max_num_seqs=256)
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization = 1\.5"):
        kv_pool(SHAPE, CARD, max_num_batched_tokens=2048, max_num_seqs=256, utilization=1.5)


def test_the_bound_is_bandwidth_at_few_sequences_and_flops_at_many() -> None:
    def bound(seqs: int, prompts: float = 0.0) -> float:
        return bound_output_tokens_per_s(
            SHAPE,
            CARD,
            mean_context_tokens=100,
            prompt_tokens_per_output_token=prompts,
            pool_tokens=118_000,
            max_num_seqs=seqs,
        )

    assert bound(1) == pytest.approx(1 / floor_of(SHAPE, CARD).decode_s(1, 100))
    assert bound(256) > 100 * bound(1)
    flops = 2 * (SHAPE.layers * SHAPE.layer_matrix_parameters * 11 + SHAPE.head_parameters)
    assert bound(256, prompts=10) == pytest.approx(CARD.flops_per_s / flops, rel=0.01)
    assert bound(10_000) == bound(1180)


TINY = ModelShape(
    "tiny", hidden=4, intermediate=8, layers=2, heads=2, kv_heads=1, head_dim=2, vocab=10, max_model_len=64
)


@pytest.mark.parametrize(
    ("flops_per_s", "max_num_seqs", "seconds_per_token"),
    [(1000.0, 64, 3.34), (500.0, 64, 5.408), (1000.0, 1, 8.56)],
)
def test_the_bound_of_a_tiny_model_by_hand(
    flops_per_s: float, max_num_seqs: int, seconds_per_token: float
) -> None:
    # Parameters: layers of 4 * 2 * (2 + 2 + 1 + 1) + 3 * 4 * 8 = 144 and two norms of 4, a norm, a head of 40.
    # Weights: (2 * (144 + 8) + 4 + 40) * 2 = 696 bytes; KV of a token: K and V, 2 layers, 1 head of 2, 16 bytes.
    # The pool holds 40 / 10 = 4 requests: 696 / 4 + 10 * 16 = 334 bytes a token; alone 696 + 160 = 856.
    # FLOPs: 2 * 2 * 144 for the token and each of 3 prompt tokens, 2 * 40 for the head, and for attention
    # 4 * 2 layers * 2 heads * 2 * 10 tokens: 2304 + 80 + 320 = 2704.
    bound = bound_output_tokens_per_s(
        TINY,
        Card("tiny", "", flops_per_s, bytes_per_s=100.0, memory_bytes=0, source=""),
        mean_context_tokens=10,
        prompt_tokens_per_output_token=3,
        pool_tokens=40,
        max_num_seqs=max_num_seqs,
    )
    assert bound == pytest.approx(1 / seconds_per_token)
