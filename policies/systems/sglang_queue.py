"""The orders in which SGLang looks at its waiting requests."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Literal, get_args

from policies.core.radix import Node, RadixTree
from policies.core.radix_kv import RadixKv
from policies.core.unnumbered import Unnumbered
from policies.systems.sglang_rows import SlotRow

Scheduling = Literal["fcfs", "lpm", "dfs-weight", "lof"]
SCHEDULING = get_args(Scheduling)

LPM_MAX_WAITING = 128
"""Above so many waiting requests ``lpm`` leaves the order alone."""

IN_BATCH_TOKENS = 32
"""``lpm`` puts a request off that has at most so many cached tokens and shares at least so many with an earlier one
like it: that one fills the cache for both."""


def reorder(waiting: deque[SlotRow], scheduling: Scheduling, kv: RadixKv) -> deque[SlotRow]:
    """The waiting requests in the order in which they are tried. Looking a prefix up counts as a use of it. Without a
    prefix cache the orders that look at it are first come, first served, as they are while nobody can hit anything."""
    if scheduling == "lof":
        return deque(sorted(waiting, key=lambda row: -row.max_tokens))
    too_many = scheduling == "lpm" and len(waiting) > LPM_MAX_WAITING
    if scheduling == "fcfs" or kv.tree is None or too_many or not any(row.may_hit for row in waiting):
        return waiting
    if scheduling == "dfs-weight":
        return _depth_first(waiting, kv.tree)
    return _longest_prefix_first(waiting, kv.tree)


def _longest_prefix_first(waiting: Iterable[SlotRow], tree: RadixTree) -> deque[SlotRow]:
    """Longest cached prefix first; those whose prefix an earlier one will bring into the cache last."""
    keyed: list[tuple[float, SlotRow]] = []
    seen = RadixTree()
    for row in waiting:
        keyed.append((_key(row, tree, seen) if row.may_hit else 0, row))
    keyed.sort(key=lambda item: item[0])
    return deque(row for _, row in keyed)


def _key(row: SlotRow, tree: RadixTree, seen: RadixTree) -> float:
    limit = row.num_tokens - 1
    cached = tree.find(row.text, limit).num_tokens
    if cached <= IN_BATCH_TOKENS and row.text.shared:
        if seen.find(row.text, limit).num_tokens >= IN_BATCH_TOKENS:
            return float("inf")
        seen.insert(row.text, limit, Unnumbered(limit))
    return -cached


def _depth_first(waiting: Iterable[SlotRow], tree: RadixTree) -> deque[SlotRow]:
    """Depth first over the tree, the subtree with more waiting requests first, those of a node after its subtrees."""
    rows_at: defaultdict[Node, list[SlotRow]] = defaultdict(list)
    at_root = rows_at[tree.root]
    for row in waiting:
        node = tree.find(row.text, row.num_tokens - 1).node if row.may_hit else tree.root
        (at_root if node is tree.root else rows_at[node]).append(row)
    weights: defaultdict[Node, int] = defaultdict(int)
    for node, rows in rows_at.items():
        above: Node | None = node
        while above is not None:
            weights[above] += len(rows)
            above = above.parent
    found: deque[SlotRow] = deque()
    stack: list[tuple[Node, bool]] = [(tree.root, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            found.extend(rows_at.get(node, ()))
            continue
        stack.append((node, True))
        children = [child for child in node.children.values() if child in weights]
        children.sort(key=lambda child: -weights[child])
        stack.extend((child, False) for child in reversed(children))
    return found
