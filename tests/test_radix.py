"""The radix tree and the KV memory that it shares: finds, splits, evicts by last use, and notices what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.core.errors import ContractError
from policies.core.plan import Grant
from policies.core.radix import RadixTree, Text, path
from policies.core.radix_kv import RadixKv
from policies.core.request import Request, Segments
from policies.systems.sglang_rows import SlotRow, SlotRows


def text(*segments: tuple[str, int]) -> Text:
    return Text(0, segments, sum(length for _, length in segments))


def tokens(segments: Segments) -> list[tuple[str, int]]:
    return [(key, place) for key, length in segments for place in range(length)]


def test_a_prefix_that_ends_inside_a_node_splits_it() -> None:
    tree = RadixTree()
    tree.insert(text(("a", 4), ("b", 3)), 7, [10, 11, 12, 13, 14, 15, 16])
    node, found = tree.find(text(("a", 4), ("b", 2), ("c", 9)), 15)
    assert (found, path(node)) == (6, [10, 11, 12, 13, 14, 15])
    assert [list(child.slots) for child in node.children.values()] == [[16]]
    assert tree.evictable == 7


def test_what_is_known_keeps_its_slots() -> None:
    tree = RadixTree()
    tree.insert(text(("a", 3)), 3, [1, 2, 3])
    node, known = tree.insert(text(("a", 3), ("b", 2)), 5, [7, 8, 9, 4, 5])
    assert (known, path(node)) == (3, [1, 2, 3, 4, 5])


def test_the_same_segment_at_another_place_is_another_prefix() -> None:
    tree = RadixTree()
    tree.insert(text(("a", 2), ("a", 2)), 4, [1, 2, 3, 4])
    assert tree.find(text(("a", 4)), 4).num_tokens == 2


def test_eviction_takes_whole_leaves_by_last_use_then_their_parents() -> None:
    tree = RadixTree()
    tree.insert(text(("a", 2), ("x", 3)), 5, [1, 2, 3, 4, 5])
    tree.insert(text(("a", 2), ("y", 2)), 4, [1, 2, 6, 7])
    tree.insert(text(("b", 2)), 2, [8, 9])
    tree.find(text(("a", 2), ("x", 3)), 5)
    assert tree.evict(1) == [6, 7]
    assert tree.evict(3) == [8, 9, 3, 4, 5]  # b was used before x, and that is not enough
    assert tree.evict(9) == [1, 2]
    assert tree.evictable == 0
    assert tree.evict(1) == []


def test_locked_nodes_stay_with_all_above_them() -> None:
    tree = RadixTree()
    node, _ = tree.insert(text(("a", 2), ("x", 3)), 5, [1, 2, 3, 4, 5])
    tree.insert(text(("a", 2), ("y", 2)), 4, [1, 2, 6, 7])
    tree.lock(node)
    assert tree.evictable == 2
    assert tree.evict(9) == [6, 7]
    tree.unlock(node)
    assert sorted(tree.evict(9)) == [1, 2, 3, 4, 5]


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), min_size=1, max_size=4).map(tuple),
        min_size=1,
        max_size=12,
    )
)
def test_it_finds_what_a_list_of_all_texts_finds(entered: list[Segments]) -> None:
    tree, seen, slot = RadixTree(), [tokens(())], 0
    for segments in entered:
        wanted = tokens(segments)
        best = max(_common(wanted, other) for other in seen)
        assert tree.find(Text(0, segments, len(wanted)), len(wanted)).num_tokens == best
        slots = list(range(slot, slot + len(wanted)))
        slot += len(wanted)
        assert tree.insert(Text(0, segments, len(wanted)), len(wanted), slots).num_tokens == best
        seen.append(wanted)
    assert tree.evictable == len({tuple(one[:end]) for one in seen for end in range(1, len(one) + 1)})
    assert len(set(tree.evict(1 << 30))) + tree.evictable == len(
        {tuple(one[:end]) for one in seen for end in range(1, len(one) + 1)}
    )


def _common(one: list[tuple[str, int]], other: list[tuple[str, int]]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


# -- memory --------------------------------------------------------------------------------------------------


def shared() -> RadixKv:
    """Two requests with the same prompt of 4, computed at once; 12 slots."""
    kv = RadixKv(12)
    for request_id in (0, 1):
        prefix = kv.find(text(("a", 4)), 3)
        assert prefix is not None
        assert kv.tree is not None
        kv.tree.lock(prefix.node)
        kv.start(request_id, prefix, 4)
    assert kv.remember(0, text(("a", 4)), 4) is None
    kv.check()
    return kv


def test_duplicates_are_freed_and_the_table_names_the_tree_s_slots() -> None:
    kv = shared()
    assert (kv.tables[1], kv.pool.num_free) == ([4, 5, 6, 7], 4)
    assert kv.remember(1, text(("a", 4)), 4) == (1, 0, (0, 1, 2, 3))
    assert (kv.tables[1], kv.pool.num_free, kv.evictable) == ([0, 1, 2, 3], 8, 0)
    kv.check()
    kv.retract(0)
    assert kv.evictable == 0
    assert kv.finish(1, text(("a", 4)), 4) == []
    assert (kv.evictable, kv.num_free) == (4, 12)
    kv.check()


def test_slots_that_a_step_in_flight_writes_stay_taken() -> None:
    kv = shared()
    kv.extend(0, 2)
    late = kv.finish(0, text(("a", 4), ("out:0", 9)), 5)
    assert (late, kv.pool.num_free) == ([9], 2)
    kv.check()
    kv.release(late)
    kv.check()
    assert kv.pool.num_free == 3


def test_check_notices_slots_in_two_places_lost_ones_and_wrong_locks() -> None:
    kv = shared()
    kv.tables[1][0] = kv.tables[0][0]
    with pytest.raises(ContractError, match=r"KV slots \[0\] are in two places"):
        kv.check()
    kv = shared()
    kv.tables[1].pop()
    with pytest.raises(ContractError, match="KV slots lost: 11 of 12"):
        kv.check()
    kv = shared()
    assert kv.tree is not None
    kv.tree.unlock(kv.nodes[0])
    with pytest.raises(ContractError, match="has 0 locks, 1 requests hold it"):
        kv.check()
    kv = shared()
    kv.tables[0][1] = 11
    with pytest.raises(ContractError, match="the first 4 slots of request 0 are not those of the tree"):
        kv.check()


# -- decoding rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [2, 12, 13, 40])
def test_slots_of_a_jump_are_those_of_its_steps(steps: int) -> None:
    tables: list[dict[int, list[int]]] = []
    granted: list[list[Grant]] = []
    for sizes in ([1] * steps, [steps]):
        kv = RadixKv(200, enable_prefix_caching=False)
        rows = SlotRows(kv)
        for request_id in (7, 3, 5):
            kv.start(request_id, None, 2)
            rows.join(SlotRow(Request(request_id, 0.0, 2, 100)))
        granted.append([grant for size in sizes for grant in rows.share_out(kv.pool.take(3 * size))])
        tables.append(kv.tables)
    assert tables[0] == tables[1]
    assert granted[0] == granted[1]
    assert granted[0][:3] == [(7, (6,)), (3, (7,)), (5, (8,))]
