"""The batch table: slots as runs of blocks, rows that outlive preemptions, and what a step reads from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_backend.batch import BatchTable, physical_block_size, physical_blocks
from gpu_backend.prompts import prompt_ids, sampling_seeds, segment_ids
from policies.core.errors import ContractError
from policies.core.plan import Chunk, Decode, Idle, StepPlan
from policies.core.request import Request


def table(block_size: int = 4, max_model_len: int = 16, num_rows: int = 2) -> BatchTable:
    found = BatchTable(
        block_size=block_size,
        max_model_len=max_model_len,
        tokens_past_length=0,
        num_rows=num_rows,
        prompt_of=lambda request: np.full(request.prompt_tokens, request.id),
    )
    for number in range(6):
        found.add(Request(number, 0.0, 3, 5))
    return found


def joins(number: int, blocks: tuple[int, ...], tokens: int = 3) -> StepPlan:
    """A plan in which a request joins with its whole prompt."""
    chunk = Chunk(number, 0, tokens, True)
    return StepPlan(0, 0, tokens, 0, 0, Decode.NONE, (chunk,), ((number, blocks),))


DECODES = StepPlan(1, 1, 1, 3, 3)


@given(st.integers(1, 5000))
def test_a_block_is_a_run_of_blocks_that_kernels_know(block_size: int) -> None:
    size = physical_block_size(block_size)
    assert size in (1, 2, 4, 8, 16, 32, 64, 128)
    assert block_size % size == 0
    assert physical_blocks((2, 0), block_size // size).tolist() == [
        *range(2 * block_size // size, 3 * block_size // size),
        *range(block_size // size),
    ]


def test_prompts_go_to_the_device_once_and_decodes_follow() -> None:
    batch = table()
    first = joins(4, (7,))
    batch.apply(first)
    arrays = batch.build(first)
    row = batch.row_of(4)
    assert arrays.new_ids_N.tolist() == [4, 4, 4]
    assert arrays.slots_T.tolist() == [28, 29, 30]
    assert (arrays.emit_E.tolist(), arrays.emit_positions_E.tolist(), arrays.emit_ids) == ([2], [3], [4])
    decode = DECODES._replace(grants=((4, (9,)),))
    batch.apply(decode)
    arrays = batch.build(decode)
    assert (arrays.rows_T.tolist(), arrays.positions_T.tolist(), arrays.slots_T.tolist()) == ([row], [3], [31])
    assert (arrays.contexts_B.tolist(), arrays.tables_BM.tolist(), arrays.new_ids_N.tolist()) == ([4], [[7]], [])
    assert batch.build(DECODES).slots_T.tolist() == [36]


def test_a_slot_that_is_full_computes_on_and_writes_nothing() -> None:
    batch = table(block_size=6)  # blocks of two tokens
    batch.apply(joins(0, (1,)))
    batch.build(joins(0, (1,)))
    assert batch.build(DECODES).slots_T.tolist() == [9]
    batch.end(0)
    assert [batch.build(DECODES).slots_T.tolist() for _ in range(4)] == [[10], [11], [-1], [-1]]
    arrays = batch.build(DECODES)
    assert (arrays.positions_T.tolist(), arrays.contexts_B.tolist()) == ([5], [6])


def test_a_live_row_without_room_is_a_broken_contract() -> None:
    batch = table()
    batch.apply(joins(0, (1,)))
    batch.build(joins(0, (1,)))
    batch.build(DECODES)
    with pytest.raises(ContractError, match="request 0 has room for 4 tokens and computes its token 5"):
        batch.build(DECODES)
    plan = joins(1, (2,), tokens=9)
    batch.apply(plan)
    with pytest.raises(ContractError, match="request 1 has room for 4 tokens and computes its token 9"):
        batch.build(plan)


def test_rows_outlive_preemptions_and_are_used_again_after_the_end() -> None:
    batch = table()
    batch.apply(joins(0, (1,)))
    row = batch.row_of(0)
    batch.apply(DECODES._replace(leaves=(0,), preempted=((0, "recompute"),)))
    assert batch.row_of(0) == row
    for number in (1, 2):
        batch.apply(joins(number, (number,)))
    assert batch.num_rows == 4
    assert len({batch.row_of(number) for number in range(3)}) == 3
    batch.end(1)
    taken = batch.row_of(1)  # still in the batch
    batch.apply(Idle("no_requests", leaves=(1,)))
    batch.apply(joins(3, (3,)))
    batch.apply(joins(4, (4,)))
    assert taken in (batch.row_of(3), batch.row_of(4))


@given(st.text(max_size=8), st.integers(0, 40), st.integers(0, 40), st.integers(1, 50_000))
def test_a_segment_begins_alike_however_long(key: str, short: int, more: int, vocab: int) -> None:
    whole = segment_ids(key, short + more, vocab, 3)
    assert segment_ids(key, short, vocab, 3).tolist() == whole[:short].tolist()
    assert whole.size == 0 or (whole.min() >= 0 and whole.max() < vocab)


def test_names_seeds_and_outputs_make_the_tokens_of_prompts() -> None:
    shared = Request(0, 0.0, 30, 1, segments=(("system", 20), ("user:0", 10)))
    other = Request(1, 0.0, 30, 1, segments=(("system", 20), ("user:1", 10)))
    one, two = (prompt_ids(request, {}, 1000, 5) for request in (shared, other))
    assert one[:20].tolist() == two[:20].tolist()
    assert one[20:].tolist() != two[20:].tolist()
    assert prompt_ids(shared, {}, 1000, 6).tolist() != one.tolist()
    follow = Request(2, 0.0, 34, 1, segments=(*shared.segments, ("out:0", 4)))
    assert prompt_ids(follow, {0: [9, 8, 7]}, 1000, 5)[:33].tolist() == [*one.tolist(), 9, 8, 7]
    alone = [prompt_ids(Request(number, 0.0, 12, 1), {}, 1000, 5).tolist() for number in (1, 2)]
    assert alone[0] != alone[1]


def test_seeds_of_draws_depend_on_request_and_place_alone() -> None:
    both = sampling_seeds(1, [4, 7], np.array([10, 3]))
    assert both.tolist() == [sampling_seeds(1, [key], np.array([place]))[0] for key, place in ((4, 10), (7, 3))]
    assert len({*both.tolist(), *sampling_seeds(2, [4, 7], np.array([10, 3])).tolist()}) == 4
