"""State of the requests inside a policy, and the decoding rows that advance in lockstep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from policies.core.kv import KvManager
from policies.core.native import mypyc_attr
from policies.core.plan import Grant, Grants
from policies.core.prefix import Content
from policies.core.request import Request, RequestId
from policies.core.unnumbered import ONE, Unnumbered

_FOREVER: Final = 1 << 40
# Block ids and keys that are only passed on are Any: compiled, one with a type would be unpacked and made anew.


@mypyc_attr(allow_interpreted_subclasses=True)
class Row:
    """One request inside a policy.

    ``num_tokens`` (prompt and output so far) and ``num_computed_tokens`` (tokens with KV) are kept up to date except
    while the row is in a DecodeSet, which knows them without touching the row. ``order`` is its place in the running
    list: rows that entered later have a larger one.
    """

    num_computed_tokens = 0
    order = 0
    offset = 0
    is_decoding = False
    table: Any

    def __init__(self, request: Request) -> None:
        self.content: Content | None = None
        self.request = request
        self.id = request.id
        self.prompt_tokens = self.num_tokens = request.prompt_tokens


@mypyc_attr(allow_interpreted_subclasses=True)
class DecodeSet:
    """Rows of which every step computes one token each, booked in O(changes).

    ``steps`` counts the steps that ran, ``sum_context`` the cached tokens of all rows before the next one; ``advance``
    raises both. ``sizes[r]`` rows need a block in the steps that are r modulo ``block_size`` (0: never).

    In step k (``steps`` = k) a row has ``offset + k`` tokens, all but the last with KV. It needs a new block when its
    cached tokens fill its blocks, that is when k has a certain residue modulo the block size: rows are kept in one
    bucket a residue. ``grows`` is False when tables are reserved to the maximum and never need a block.

    ``last_order`` is no less than the ``order`` of any row. The last ``lag`` computed tokens of each row were not known
    when its last step was planned, so that a row that leaves enters no block with one of them in the prefix cache.
    """

    def __init__(self, kv: KvManager, *, grows: bool = True) -> None:
        self.steps = 0
        self.rows: dict[RequestId, Row] = {}
        self.sum_context = 0
        self.block_size = size = kv.block_size if grows else 0
        self.sizes = [0] * size
        self._kv, self._pool = kv, kv.pool
        self._size = size
        self._buckets: list[dict[RequestId, Any]] = [{} for _ in range(size)]
        self._hashed: dict[RequestId, Row] = {}
        self._granted = 0
        self.last_order = -1
        self.lag = 0
        self._in_order = True
        self._max_offset = 0
        self._max_is_known = True

    # -- membership --------------------------------------------------------------------------------------------------

    def join(self, row: Row) -> None:
        """Let a row decode from the next step on; all its tokens but the last have KV."""
        rows = self.rows
        num_tokens = row.num_tokens
        row.offset = offset = num_tokens - self.steps
        row.is_decoding = True
        if not rows:
            self.last_order, self._in_order, self._max_offset, self._max_is_known = -1, True, offset, True
        elif offset > self._max_offset:
            self._max_offset = offset
        rows[row.id] = row
        self.sum_context += num_tokens - 1
        size = self._size
        if size:
            row.table = table = self._kv.tables[row.id]
            residue = (1 - offset) % size
            self._buckets[residue][row.id] = table
            self.sizes[residue] += 1
            if row.order < self.last_order:
                self._in_order = False
            else:
                self.last_order = row.order
            if row.content is not None:
                self._hashed[row.id] = row

    def leave(self, row: Row) -> None:
        """Take a row out; its counts are exact again."""
        offset = row.offset
        row.num_tokens = num_tokens = offset + self.steps
        row.num_computed_tokens = num_tokens - 1
        row.is_decoding = False
        del self.rows[row.id]
        self.sum_context -= num_tokens - 1
        if offset == self._max_offset:
            self._max_is_known = False
        size = self._size
        if size:
            residue = (1 - offset) % size
            del self._buckets[residue][row.id]
            self.sizes[residue] -= 1
            if row.content is not None and self._hashed.pop(row.id, None) is not None:
                # A block that the last step filled has no successor yet, so no grant has entered it.
                self._kv.cache_blocks(row.id, row.content, row.num_computed_tokens - self.lag)

    def num_tokens(self, row: Row) -> int:
        """Tokens of a row, decoding or not."""
        return row.offset + self.steps if row.is_decoding else row.num_tokens

    @property
    def max_context(self) -> int:
        """Largest number of cached tokens of a row before the next step; 0 without rows."""
        return self.totals()[2]

    def totals(self) -> tuple[int, int, int]:
        """Number of rows, and sum and maximum of their cached tokens before the next step."""
        num_rows = len(self.rows)
        if not num_rows:
            return 0, 0, 0
        if not self._max_is_known:
            self._max_offset = self._largest_offset()
            self._max_is_known = True
        return num_rows, self.sum_context, self._max_offset + self.steps - 1

    def _largest_offset(self) -> int:
        largest = -_FOREVER
        for row in self.rows.values():  # max() of them would want each as an object where compiled
            if row.offset > largest:
                largest = row.offset
        return largest

    # -- steps -------------------------------------------------------------------------------------------------------

    def advance(self, steps: int) -> None:
        """That many steps ran."""
        self.steps += steps
        self.sum_context += steps * len(self.rows)

    @property
    def num_needed(self) -> int:
        """Blocks that the rows need in the next step."""
        return self.sizes[self.steps % self._size] if self._size else 0

    def needs_block(self, row: Row) -> bool:
        """True if this decoding row needs a block in the next step."""
        return self._size > 0 and (row.offset + self.steps - 1) % self._size == 0

    def grant(self) -> list[Grant]:
        """Give each row that needs a block in the next step one, in running order."""
        self._granted = self.steps
        return self._grant_next()

    def _grant_next(self) -> list[Grant]:
        """The blocks of one more step."""
        step, size = self._granted, self._size
        self._granted = step + 1
        if size == 1 and not self._in_order:
            self._put_in_order()  # once for all, where the next step needs the same bucket
        bucket = self._buckets[step % size] if size else None
        if not bucket:
            return []
        if not self._in_order:
            bucket = self._sorted(bucket)
        return self._give(bucket)

    def granted_elsewhere(self) -> None:
        """The policy has given the blocks of the next step itself, row by row."""
        self._granted = self.steps + 1

    def skip(self, steps: int) -> Sequence[Grant]:
        """Blocks of ``steps`` steps after those granted so far, in step order and in running order within a step."""
        if steps == 1:
            return self._grant_next()
        first, size = self._granted, self._size
        self._granted = first + steps
        if not size:
            return []
        if not self._in_order:
            self._put_in_order()
        buckets, start = self._buckets, first % size
        ring = buckets[start:] + buckets[:start]
        rounds, rest = divmod(steps, size)
        num_rows = len(self.rows)
        window = ring[:rest]
        count = rounds * num_rows
        for bucket in window:
            count += len(bucket)
        if not count:
            return []
        taken = self._pool.take(count)
        if isinstance(taken, Unnumbered):
            return self._count(ring if rounds else window, taken)
        blocks: list[Any] = taken
        ids: list[Any] = []
        place = 0
        for bucket in ring if rounds else window:
            tables: dict[Any, list[int]] = bucket
            for request_id, table in tables.items():
                ids.append(request_id)
                if rounds:  # one in each round, and one more if the rest reaches this row
                    table += blocks[place::num_rows]
                else:
                    table.append(blocks[place])
                place += 1
        if self._hashed:
            self._cache(ids, growing=1)
        return Grants(ids, blocks)

    def _give(self, bucket: dict[RequestId, Any]) -> list[Grant]:
        """One block to each of these tables."""
        taken = self._pool.take(len(bucket))
        grants: list[Any] = []
        if isinstance(taken, Unnumbered):
            counted: dict[Any, Unnumbered] = bucket
            for request_id, held in counted.items():
                held.number += 1
                grants.append((request_id, ONE))
            return grants
        blocks: list[Any] = taken
        tables: dict[Any, list[int]] = bucket
        for place, (request_id, table) in enumerate(tables.items()):
            block = blocks[place]
            table.append(block)
            grants.append((request_id, (block,)))
        if self._hashed:
            self._cache(bucket, growing=1)
        return grants

    def _count(self, buckets: Iterable[dict[RequestId, Unnumbered]], blocks: Unnumbered) -> Grants:
        """Blocks without ids to the rows of these buckets, round after round."""
        ids: list[Any] = []
        number, num_rows = blocks.number, len(self.rows)
        for bucket in buckets:
            tables: dict[Any, Unnumbered] = bucket
            for request_id, table in tables.items():
                table.number += -(-(number - len(ids)) // num_rows)
                ids.append(request_id)
        return Grants(ids, blocks)

    def _put_in_order(self) -> None:
        """Sort all buckets, which stay so until a row joins or the running list changes."""
        self._buckets = [self._sorted(bucket) for bucket in self._buckets]
        self.last_order = -1
        for row in self.rows.values():
            if row.order > self.last_order:
                self.last_order = row.order
        self._in_order = True

    def _sorted(self, bucket: dict[RequestId, Any]) -> dict[RequestId, Any]:
        rows = self.rows
        if len(bucket) < 2:
            return bucket
        places = [(rows[key].order, key) for key in bucket]
        places.sort()
        return {key: bucket[key] for _, key in places}

    def _cache(self, bucket: Iterable[RequestId], *, growing: int) -> None:
        """Enter all blocks of the hashed rows of a bucket, except the last ``growing`` ones."""
        for request_id in bucket:
            row = self._hashed.get(request_id)
            if row is not None and row.content is not None:
                self._kv.cache_blocks(request_id, row.content, (len(row.table) - growing) * self._size)

    def cache_filling(self) -> None:
        """Enter the blocks that the next step fills: a lookup in the same step may hit them."""
        if self._hashed:
            self._cache(self._buckets[(self.steps + 1) % self._size], growing=0)

    def free_steps(self, keep: int = 0) -> int:
        """A number of steps, after those granted, that surely leave ``keep`` blocks free; exact when fewer than a
        block per row is left."""
        rows, size = len(self.rows), self._size
        if not size or not rows:
            return _FOREVER
        free = self._pool.num_free - keep
        if free >= rows:
            return size * (free // rows)
        steps, sizes = -1, self.sizes
        while free >= 0:
            steps += 1
            free -= sizes[(self._granted + steps) % size]
        return max(steps, 0)

    def reordered(self) -> None:
        """The policy has given rows new places in the running list."""
        self._in_order = False
