"""The one owner of all block tables, as plain integers; both worlds index their memory by these ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from policies.core.errors import ContractError
from policies.core.native import mypyc_attr
from policies.core.plan import Blocks, Transfer
from policies.core.pool import BlockPool, CountedPool
from policies.core.prefix import Content, PrefixCache
from policies.core.request import RequestId
from policies.core.unnumbered import Ids, frozen


@mypyc_attr(allow_interpreted_subclasses=True)
class KvManager:
    """Paged KV memory: a GPU pool with reference counts and a prefix cache, and a CPU tier.

    A slot (static batching, Orca-Max) is a block of ``max_model_len`` tokens; reserving to the maximum is opening a
    table with all its blocks at once. ``null_block`` leaves block 0 unused, as vLLM V1 does. With ``unhashed_first``
    freed blocks that have no hash are handed out next; all others are, least recently freed first.

    Blocks of the GPU have ids where they are ``numbered``. No decision depends on that: only who owns memory looks at
    an id, so a simulated world may do without. A prefix cache and a CPU tier cannot.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        *,
        num_cpu_blocks: int = 0,
        enable_prefix_caching: bool = False,
        null_block: bool = False,
        unhashed_first: bool = False,
        numbered: bool = True,
    ) -> None:
        first = 1 if null_block else 0
        self.block_size = block_size
        self.num_gpu_blocks = num_gpu_blocks
        self.prefix_cache = PrefixCache() if enable_prefix_caching else None
        if not numbered and (enable_prefix_caching or num_cpu_blocks):
            raise ContractError("a prefix cache and a CPU tier want blocks with ids")
        self.numbered = numbered
        pool_class = BlockPool if numbered else CountedPool
        self.pool = pool_class(num_gpu_blocks - first, first, self.prefix_cache)
        self.cpu_pool = BlockPool(num_cpu_blocks)
        self.unhashed_first = unhashed_first
        self._give_back = self.pool.give_back_first if unhashed_first else self.pool.give_back
        self.tables: dict[RequestId, Any] = {}  # Ids; whoever built it numbered may take them for lists
        self.cpu_tables: dict[RequestId, Ids] = {}
        self.retired: dict[RequestId, Ids] = {}
        self.num_late_frees = 0
        self.in_transit: dict[int, Transfer] = {}
        self._num_cached: dict[RequestId, int] = {}
        self._transfers = 0

    @property
    def num_blocks(self) -> int:
        """Usable GPU blocks."""
        return self.pool.num_blocks

    @property
    def num_free(self) -> int:
        """Free GPU blocks, those with cached content included."""
        return self.pool.num_free

    @property
    def caches_prefixes(self) -> bool:
        """True if requests may share what is cached."""
        return self.prefix_cache is not None

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens``."""
        return -(-num_tokens // self.block_size)

    # -- tables ------------------------------------------------------------------------------------------------------

    def open(self, request_id: RequestId, num_blocks: int, hits: Sequence[int] = ()) -> Blocks:
        """New table of ``num_blocks`` blocks that starts with the cached blocks ``hits``; returns all its blocks."""
        if hits:
            self._share(hits)
            table: Ids = [*hits, *self.pool.take(num_blocks - len(hits))]
            self._num_cached[request_id] = len(hits)
        else:
            table = self.pool.take(num_blocks)
        self.tables[request_id] = table
        return frozen(table)

    def extend(self, request_id: RequestId, count: int) -> Blocks:
        """Append ``count`` new blocks to a table; returns them."""
        new = self.pool.take(count)
        self.tables[request_id].extend(new)
        return frozen(new)

    def close(self, request_id: RequestId) -> None:
        """Free a table from its last block to its first, so that the tail of a prefix is evicted first."""
        table = self.tables.pop(request_id)
        table.reverse()
        if request_id in self._num_cached:
            self._release(request_id, table)
        else:
            self._give_back(table)

    def close_private(self, request_id: RequestId, num_full: int) -> None:
        """Free a table that was not hashed, since nobody else has its content, but counts as hashed: its first
        ``num_full`` blocks go where hashed ones go."""
        table: list[Any] = self.tables.pop(request_id)  # a pool that hashes has ids
        full, rest = table[:num_full], table[num_full:]
        full.reverse()
        rest.reverse()
        self.pool.give_back(full)
        self._give_back(rest)

    def retire(self, request_id: RequestId) -> None:
        """Close a table whose blocks stay taken until ``free_retired``."""
        self.retired[request_id] = self.tables.pop(request_id)

    def free_retired(self, request_id: RequestId) -> None:
        """Free the blocks of a retired table. Counted in ``num_late_frees``, for nobody leaves a batch then."""
        table = self.retired.pop(request_id)
        table.reverse()
        self._release(request_id, table)
        self.num_late_frees += 1

    def _release(self, request_id: RequestId, blocks: Sequence[int]) -> None:
        cache = self.prefix_cache
        if cache is not None and self._num_cached.pop(request_id, 0):
            blocks = cache.drop(blocks)
            if self.unhashed_first:
                self.pool.give_back([block for block in blocks if block in cache.hash_of])
                blocks = [block for block in blocks if block not in cache.hash_of]
        self._give_back(blocks)

    # -- prefix cache ------------------------------------------------------------------------------------------------

    def lookup(self, content: Content | None, num_tokens: int) -> list[int]:
        """Cached blocks for the start of ``num_tokens`` tokens. The last token is always computed."""
        if content is None or self.prefix_cache is None:
            return []
        limit = (num_tokens - 1) // self.block_size
        return self.prefix_cache.lookup(content.hashes(limit), limit)

    def can_open(self, num_blocks: int, hits: Sequence[int] = (), keep_free: int = 0) -> bool:
        """True if a table of ``num_blocks`` with these hits fits and leaves ``keep_free`` blocks. A hit that lies in
        the free queue counts as needed."""
        needed = num_blocks
        if hits and self.prefix_cache is not None:
            needed += self.prefix_cache.count_free(hits) - len(hits)
        return needed <= self.pool.num_free - keep_free

    def cache_blocks(self, request_id: RequestId, content: Content, num_tokens: int) -> None:
        """Enter the full blocks of a request's first ``num_tokens`` tokens in the prefix cache."""
        cache = self.prefix_cache
        full = num_tokens // self.block_size
        done = self._num_cached.get(request_id, 0)
        if cache is None or full <= done:
            return
        cache.enter(self.tables[request_id][done:full], content.hashes(full)[done:full])
        self._num_cached[request_id] = full

    def _share(self, hits: Sequence[int]) -> None:
        cache = self.prefix_cache
        if cache is None:
            raise ContractError("prefix hits without a prefix cache")
        self.pool.withdraw(cache.share(hits))

    # -- CPU tier ----------------------------------------------------------------------------------------------------

    def swap_out(self, request_id: RequestId, *, blocking: bool = True) -> Transfer:
        """Move a table to the CPU tier; its GPU blocks are free at once, or when a non-blocking transfer is done."""
        src = self.tables.pop(request_id)
        dst = self.cpu_pool.take(len(src))
        self.cpu_tables[request_id] = dst
        transfer = Transfer(self._next_key(), request_id, "out", tuple(src), tuple(dst), blocking)
        if blocking:
            self._release(request_id, src)
        else:
            self.in_transit[transfer.key] = transfer
        return transfer

    def swap_in(self, request_id: RequestId, *, blocking: bool = True) -> Transfer:
        """Move a table back to the GPU; its CPU blocks are free at once, or when a non-blocking transfer is done."""
        src = self.cpu_tables.pop(request_id)
        dst = self.pool.take(len(src))
        self.tables[request_id] = dst
        transfer = Transfer(self._next_key(), request_id, "in", tuple(src), tuple(dst), blocking)
        if blocking:
            self.cpu_pool.give_back(src)
        else:
            self.in_transit[transfer.key] = transfer
        return transfer

    def transfer_done(self, transfer: Transfer) -> None:
        """A non-blocking transfer has ended: free its source."""
        del self.in_transit[transfer.key]
        if transfer.kind == "out":
            self._release(transfer.id, transfer.src)
            self.num_late_frees += 1
        else:
            self.cpu_pool.give_back(transfer.src)

    def close_swapped(self, request_id: RequestId) -> None:
        """Free a table of the CPU tier."""
        self.cpu_pool.give_back(self.cpu_tables.pop(request_id))

    def _next_key(self) -> int:
        self._transfers += 1
        return self._transfers

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise ContractError unless blocks are conserved on each tier and none is held twice unless shared."""
        cache_refs = self.prefix_cache.references() if self.prefix_cache else {}
        transit_gpu = [t.src for t in self.in_transit.values() if t.kind == "out"]
        transit_cpu = [t.src for t in self.in_transit.values() if t.kind == "in"]
        held = [*self.tables.values(), *self.retired.values(), *transit_gpu]
        if self.numbered:
            _conserved("GPU", self.pool, held, cache_refs)
        elif self.pool.num_free + sum([len(table) for table in held]) != self.pool.num_blocks:
            raise ContractError(f"GPU blocks lost: {self.pool.num_free} of {self.pool.num_blocks} are free")
        _conserved("CPU", self.cpu_pool, [*self.cpu_tables.values(), *transit_cpu], {})


def _conserved(tier: str, pool: BlockPool, holders: Sequence[Sequence[int]], refs: Mapping[int, int]) -> None:
    held = Counter(block for table in holders for block in table)
    free = pool.free_blocks()
    for block, count in held.items():
        if count != refs.get(block, 1):
            raise ContractError(f"{tier} block {block} is in {count} tables, {refs.get(block, 1)} booked")
    if len(free) != pool.num_free or len(set(free)) != len(free) or not held.keys().isdisjoint(free):
        raise ContractError(f"{tier} free queue is inconsistent: {len(free)} entries, {pool.num_free} booked")
    if len(free) + len(held) != pool.num_blocks:
        raise ContractError(f"{tier} blocks lost: {len(free)} free + {len(held)} held of {pool.num_blocks}")
