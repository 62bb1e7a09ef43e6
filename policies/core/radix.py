"""Radix cache after SGLang: a tree over token sequences that owns KV slots, one token a slot.

Tokens are named by the segments of requests (``policies.core.request.Segments``), so a sequence of any length is a
few *runs* ``(segment, first token, number of tokens)`` and comparing two costs O(runs). Every token of a request
that was prefilled or has finished stays in the tree until its slot is needed: least recently used leaves go first,
those that a running request holds never.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from policies.core.request import RequestId, Segments, output_segment
from policies.core.unnumbered import Ids, part, size

Run = tuple[str, int, int]
_ENDLESS = 1 << 60
_new_tuple: Final = tuple.__new__


class Text:
    """Tokens of one request: its prompt, then its output, which never ends. ``shared`` is False when no other
    request can have the same tokens."""

    __slots__ = ("runs", "shared")

    def __init__(self, request_id: RequestId, segments: Segments, prompt_tokens: int) -> None:
        self.shared = bool(segments)
        prompt = segments or ((f"in:{request_id}", prompt_tokens),)
        self.runs = (*prompt, (output_segment(request_id), _ENDLESS))

    def slice(self, start: int, end: int) -> list[Run]:
        """The runs of tokens ``start`` to ``end - 1``."""
        found: list[Run] = []
        place = 0
        for name, length in self.runs:
            first, last = max(start, place), min(end, place + length)
            if first < last:
                found.append((name, first - place, last - first))
            place += length
            if place >= end:
                break
        return found

    def place(self, num_tokens: int) -> tuple[int, int]:
        """Index of the run that holds token ``num_tokens``, and where in the run it stands."""
        index = 0
        while num_tokens >= self.runs[index][1]:
            num_tokens -= self.runs[index][1]
            index += 1
        return index, num_tokens


class Node:
    """Tokens that follow those of the parent, and the slots of their KV. ``locks`` counts the running requests whose
    prefix passes through; ``time`` is that of the last visit; ``queued`` says that the eviction queue knows it."""

    __slots__ = ("children", "locks", "num_tokens", "parent", "queued", "runs", "slots", "time")

    def __init__(self, parent: Node | None, runs: list[Run], slots: Ids, time: int) -> None:
        self.children: dict[tuple[str, int], Node] = {}
        self.parent = parent
        self.runs = runs
        self.slots = slots
        self.num_tokens = size(slots)
        self.time = time
        self.locks = 0
        self.queued = False


class Prefix(NamedTuple):
    """The longest known prefix of a text: the node it ends at and its number of tokens."""

    node: Node
    num_tokens: int


class RadixTree:
    """The tree. ``evictable`` counts the tokens of nodes that no request locks."""

    def __init__(self) -> None:
        self.evictable = 0
        self._clock = 0
        # Nodes that may be evicted, by the time that they were queued with; no two visits are at one time.
        self._queued: dict[int, Node] = {}
        self._times: list[int] = []
        self.root = Node(None, [], [], 0)

    def find(self, text: Text, num_tokens: int) -> Prefix:
        """The longest known prefix of the first ``num_tokens`` tokens. Marks every node on the way as used now, and
        splits the last one if the prefix ends inside it."""
        return _new_tuple(Prefix, self._walk(text, num_tokens, self.root, 0))

    def insert(self, text: Text, num_tokens: int, slots: Ids) -> Prefix:
        """Enter the first ``num_tokens`` tokens, which lie in ``slots``; these are the tree's from now on.

        Returns the node where they end, and how many of them were known: those keep the slots they have here.
        """
        node, known = self.enter(text, num_tokens, slots, self.root, 0)
        return _new_tuple(Prefix, (node, known))

    def enter(self, text: Text, num_tokens: int, slots: Ids, start: Node, start_tokens: int) -> tuple[Node, int]:
        """As ``insert``, for who holds the first ``start_tokens`` of these tokens up to the node ``start``; ``slots``
        are those of the others."""
        leaf, known = self._grow(text, num_tokens, slots, start, start_tokens)
        if known < num_tokens:
            self._queue(leaf)
        return leaf, known

    def hold(self, text: Text, num_tokens: int, slots: Ids, start: Node, start_tokens: int) -> tuple[Node, int]:
        """As ``enter``, for a request that locks ``start``, and locks the node where the tokens end in its place."""
        node, known = self._grow(text, num_tokens, slots, start, start_tokens)
        self._lock(node, start)
        return node, known

    def _grow(self, text: Text, num_tokens: int, slots: Ids, start: Node, start_tokens: int) -> tuple[Node, int]:
        node, known = self._walk(text, num_tokens, start, start_tokens)
        if known < num_tokens:
            runs = text.slice(known, num_tokens)
            own = part(slots, known - start_tokens, num_tokens - start_tokens) if known > start_tokens else slots
            leaf = Node(node, runs, own, self._tick())
            node.children[runs[0][:2]] = leaf
            self.evictable += num_tokens - known
            node = leaf
        return node, known

    def _walk(self, text: Text, num_tokens: int, node: Node, found: int) -> tuple[Node, int]:
        """The longest known prefix from ``node``, ``found`` tokens behind the root, on."""
        self._use(node)
        if not node.children:
            return node, found
        index, offset = text.place(found)
        runs = text.runs
        while found < num_tokens:
            child = node.children.get((runs[index][0], offset))
            if child is None:
                break
            child.time = self._tick()
            common, index, offset = _common(child.runs, runs, index, offset, num_tokens - found)
            found += common
            if common < child.num_tokens:
                return self._split(child, common), found
            node = child
        return node, found

    def lock(self, node: Node) -> None:
        """One more request runs on the tokens up to here."""
        self._lock(node, self.root)

    def _lock(self, node: Node, above: Node) -> None:
        """Lock the nodes from below ``above`` to this one."""
        while node is not above and node.parent is not None:
            if not node.locks:
                self.evictable -= node.num_tokens
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """One request fewer."""
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self.evictable += node.num_tokens
                if not node.children:
                    self._queue(node)
            node = node.parent

    def evict(self, num_tokens: int) -> Ids:
        """Drop least recently used leaves until at least ``num_tokens`` tokens have gone or none is left; returns
        their slots."""
        freed: Ids = []
        num_freed = 0
        times = self._times
        while num_freed < num_tokens and times:
            time = heappop(times)
            node = self._queued.pop(time)
            node.queued = False
            parent = node.parent
            if node.locks or node.children or parent is None:
                continue
            if node.time != time:  # visited since it was queued
                self._queue(node)
                continue
            if num_freed:
                freed.extend(node.slots)
            else:
                freed = node.slots  # nobody else needs it any more
            num_freed += node.num_tokens
            self.evictable -= node.num_tokens
            node.parent = None
            del parent.children[node.runs[0][:2]]
            if not parent.children and not parent.locks:
                self._queue(parent)
        return freed

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _use(self, node: Node) -> None:
        """Mark the nodes down to this one as used now, one after the other."""
        num_nodes = 1
        above = node.parent
        while above is not None:
            num_nodes += 1
            above = above.parent
        time = self._clock = self._clock + num_nodes
        used: Node | None = node
        while used is not None:
            used.time = time
            time -= 1
            used = used.parent

    def _queue(self, node: Node) -> None:
        if not node.queued and node.parent is not None:
            node.queued = True
            heappush(self._times, node.time)
            self._queued[node.time] = node

    def _split(self, node: Node, num_tokens: int) -> Node:
        """Cut a node in two; returns the new upper part, which counts as used last."""
        upper_runs, lower_runs = _cut(node.runs, num_tokens)
        upper = Node(node.parent, upper_runs, part(node.slots, 0, num_tokens), self._tick())
        upper.locks = node.locks
        upper.children[lower_runs[0][:2]] = node
        assert node.parent is not None
        node.parent.children[upper_runs[0][:2]] = upper
        node.parent = upper
        node.runs, node.slots = lower_runs, part(node.slots, num_tokens, node.num_tokens)
        node.num_tokens -= num_tokens
        return upper


def path(node: Node) -> Ids:
    """The slots of all tokens up to a node, in order."""
    parts = [node.slots]
    above = node.parent
    while above is not None and above.parent is not None:
        parts.append(above.slots)
        above = above.parent
    slots = parts.pop()[:]
    while parts:
        slots.extend(parts.pop())
    return slots


def _common(
    key: Sequence[Run], runs: Sequence[tuple[str, int]], index: int, offset: int, limit: int
) -> tuple[int, int, int]:
    """Tokens that ``key`` shares with a text from token ``offset`` of its run ``index`` on, at most ``limit``; and the
    place in the text behind them."""
    found = 0
    for name, start, length in key:
        while length:
            run_name, run_length = runs[index]
            count = min(length, run_length - offset, limit - found)
            if name != run_name or start != offset or not count:
                return found, index, offset
            found += count
            start += count
            length -= count
            offset += count
            if offset == run_length:
                index, offset = index + 1, 0
    return found, index, offset


def _cut(runs: Sequence[Run], num_tokens: int) -> tuple[list[Run], list[Run]]:
    upper: list[Run] = []
    for index, (name, start, length) in enumerate(runs):
        if length >= num_tokens:
            upper.append((name, start, num_tokens))
            rest = [(name, start + num_tokens, length - num_tokens)] if length > num_tokens else []
            return upper, [*rest, *runs[index + 1 :]]
        upper.append((name, start, length))
        num_tokens -= length
    raise ValueError("a node is cut behind its end")
