"""KV memory of single-token slots whose prefixes live in a radix tree."""

from __future__ import annotations

from collections import Counter

from policies.core.errors import ContractError
from policies.core.kv import KvManager
from policies.core.plan import Blocks, Remap
from policies.core.radix import Node, Prefix, RadixTree, Text, path
from policies.core.request import RequestId
from policies.core.unnumbered import Ids, Unnumbered, frozen, part, size


class RadixKv(KvManager):
    """Slots of one token: each is free, in the tree (and so in the tables of all requests that share it), or in one
    table alone.

    The first ``cached[id]`` slots of a table are those of the tree, up to the node ``nodes[id]``, which the request
    locks. Without ``enable_prefix_caching`` there is no tree, and ``cached`` counts the tokens prefilled so far.
    ``num_free`` counts slots that can be had: free ones and those of unlocked nodes (``evictable``).
    """

    def __init__(self, num_slots: int, *, enable_prefix_caching: bool = True, numbered: bool = True) -> None:
        super().__init__(num_slots, 1, numbered=numbered)
        self.tree = RadixTree() if enable_prefix_caching else None
        self.nodes: dict[RequestId, Node] = {}
        self.cached: dict[RequestId, int] = {}
        self._held: Ids = [] if numbered else Unnumbered(0)

    @property
    def evictable(self) -> int:
        """Tokens in the tree that no running request needs."""
        return self.tree.evictable if self.tree is not None else 0

    @property
    def num_free(self) -> int:
        """Slots that are free or can be freed by eviction."""
        return self.pool.num_free + self.evictable

    @property
    def caches_prefixes(self) -> bool:
        """True with a tree."""
        return self.tree is not None

    def make_room(self, num_slots: int) -> bool:
        """Evict if fewer than ``num_slots`` are free; as many tokens as asked for go, not only the shortfall. True if
        enough are free then."""
        if self.pool.num_free < num_slots:
            self.evict(num_slots)
        return self.pool.num_free >= num_slots

    def evict(self, num_tokens: int) -> None:
        """Free at least ``num_tokens`` least recently used tokens of the tree, if it has as many unlocked ones."""
        if self.tree is not None and num_tokens > 0:
            self.pool.give_back(self.tree.evict(num_tokens))

    # -- tables ------------------------------------------------------------------------------------------------------

    def find(self, text: Text, num_tokens: int) -> Prefix | None:
        """The cached prefix of ``num_tokens`` tokens; None without a tree."""
        return self.tree.find(text, num_tokens) if self.tree is not None else None

    def start(self, request_id: RequestId, prefix: Prefix | None, num_slots: int) -> Blocks:
        """New table: the slots of a prefix that the request has locked, then ``num_slots`` new ones."""
        slots = self.pool.take(num_slots)
        self.cached[request_id] = 0
        if prefix is not None:
            node, num_tokens = prefix
            self.nodes[request_id] = node
            if num_tokens:
                self.cached[request_id] = num_tokens
                new, slots = slots, path(node)
                slots.extend(new)
        self.tables[request_id] = slots
        return frozen(slots)

    def remember(self, request_id: RequestId, text: Text, num_tokens: int) -> Remap | None:
        """Enter the first ``num_tokens`` tokens of a running request, which all have KV.

        Those that somebody else has entered meanwhile are freed, and the table names the tree's slots from now on.
        """
        cached = self.cached[request_id]
        self.cached[request_id] = num_tokens
        if self.tree is None:
            return None
        table = self.tables[request_id]
        own = part(table, cached, num_tokens)
        node, known = self.tree.hold(text, num_tokens, own, self.nodes[request_id], cached)
        self.nodes[request_id] = node
        remap = None
        if known > cached:
            self.pool.give_back(part(table, cached, known))
            shared = part(path(node), cached, known)
            table[cached:known] = shared
            remap = (request_id, cached, frozen(shared))
        return remap

    def finish(self, request_id: RequestId, text: Text, num_tokens: int) -> Ids:
        """Close the table of a request: its first ``num_tokens`` tokens stay in the tree, if there is one.

        Returns the slots behind them, which a step in flight still writes; they stay taken until ``release``.
        """
        table, cached = self.tables.pop(request_id), self.cached.pop(request_id)
        if self.tree is None:
            self.pool.give_back(part(table, 0, num_tokens))
        else:
            own, start = part(table, cached, num_tokens), self.nodes.pop(request_id)
            _, known = self.tree.enter(text, num_tokens, own, start, cached)
            if known > cached:
                self.pool.give_back(part(own, 0, known - cached))
            self.tree.unlock(start)
        rest: Ids = []
        end = size(table)
        if end > num_tokens:
            rest = part(table, num_tokens, end)
            self._held.extend(rest)
        return rest

    def release(self, slots: Ids) -> None:
        """Free slots that ``finish`` returned, in that order. Counted in ``num_late_frees``, for nobody leaves a batch
        then."""
        self._held = part(self._held, size(slots), size(self._held))
        self.pool.give_back(slots)
        self.num_late_frees += 1

    def retract(self, request_id: RequestId) -> None:
        """Close the table of a request that is to be computed again: what is in the tree stays there, unlocked."""
        table, cached = self.tables.pop(request_id), self.cached.pop(request_id)
        if self.tree is None:
            self.pool.give_back(table)
        else:
            self.pool.give_back(part(table, cached, size(table)))
            self.tree.unlock(self.nodes.pop(request_id))

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise ContractError unless each slot is in exactly one place and locks are those of the tables."""
        places = [self.pool.free_blocks(), self._held]
        if len(places[0]) != self.pool.num_free:
            raise ContractError(f"{len(places[0])} KV slots are free, {self.pool.num_free} booked")
        locks: Counter[Node] = Counter()
        for request_id, table in self.tables.items():
            cached = self.cached.get(request_id, 0) if self.tree is not None else 0  # none of a table of open's
            places.append(table[cached:])
            node: Node | None = self.nodes.get(request_id)
            if node is not None and cached and path(node) != table[:cached]:
                raise ContractError(f"the first {cached} slots of request {request_id} are not those of the tree")
            while node is not None:
                locks[node] += 1
                node = node.parent
        if self.tree is not None:
            places += self._check_tree(self.tree, locks)
        num_places = sum([len(slots) for slots in places])
        if self.numbered:
            count = Counter([slot for slots in places for slot in slots])
            twice = [slot for slot, times in count.items() if times > 1]
            if twice:
                raise ContractError(f"KV slots {twice[:5]} are in two places")
        if num_places != self.num_blocks:
            raise ContractError(f"KV slots lost: {num_places} of {self.num_blocks} are somewhere")

    def _check_tree(self, tree: RadixTree, locks: Counter[Node]) -> list[Ids]:
        """Check the nodes; returns the slots of each."""
        evictable = 0
        nodes = list(tree.root.children.values())
        for node in nodes:
            nodes += node.children.values()
            evictable += 0 if node.locks else node.num_tokens
            if node.locks != locks[node]:
                raise ContractError(f"a node of the radix tree has {node.locks} locks, {locks[node]} requests hold it")
        if evictable != tree.evictable:
            raise ContractError(f"{evictable} tokens of the radix tree are unlocked, {tree.evictable} booked")
        return [node.slots for node in nodes]
