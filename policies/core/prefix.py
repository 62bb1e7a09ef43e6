"""Prefix cache: which physical block holds which content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from policies.core.native import mypyc_attr
from policies.core.request import RequestId, Segments

BlockHash = bytes | int
"""Names the content of a block and all before it: a digest, or a number that stands for what only one request has."""

_ROOT = b""


def block_hash(parent: bytes, content: bytes) -> bytes:
    """Identity of a full block: its own content on top of everything before it."""
    from hashlib import blake2b  # here, since it loads OpenSSL, and only shared prefixes need it

    return blake2b(parent + content, digest_size=16).digest()


@mypyc_attr(allow_interpreted_subclasses=True)
class Content:
    """What the blocks of one request hold, hashed block by block as far as anybody asks.

    The content is the prompt's segments followed by the request's own output, which never ends.
    """

    __slots__ = ("_block_size", "_hashes", "_runs")

    def __init__(self, segments: Segments, output_key: str, block_size: int) -> None:
        self._block_size = block_size
        self._hashes: list[bytes] = []
        self._runs = self._split((*segments, (output_key, 1 << 60)))

    def _split(self, segments: Segments) -> Iterator[bytes]:
        """The content of each block in turn: the pieces of segments that make it up."""
        pieces: list[tuple[str, int, int]] = []
        room = self._block_size
        for key, length in segments:
            start = 0
            while start < length:
                count = min(room, length - start)
                pieces.append((key, start, count))
                start += count
                room -= count
                if not room:
                    yield repr(pieces).encode()
                    pieces, room = [], self._block_size

    def hashes(self, num_blocks: int) -> Sequence[BlockHash]:
        """Hashes of (at least) the first ``num_blocks`` blocks."""
        known = self._hashes
        while len(known) < num_blocks:
            known.append(block_hash(known[-1] if known else _ROOT, next(self._runs)))
        return known


class PrivateContent(Content):
    """What the blocks of one request hold that shares nothing with any other: it is numbered, which costs nothing."""

    __slots__ = ("_first",)

    def __init__(self, request_id: RequestId) -> None:
        self._first = request_id << 40

    def hashes(self, num_blocks: int) -> Sequence[BlockHash]:
        """Numbers of the first ``num_blocks`` blocks."""
        return range(self._first, self._first + num_blocks)


class PrefixCache:
    """Maps hashes to blocks and counts the tables that share a hashed block.

    A block keeps its hash while it lies in the free queue and loses it when it is handed out again. Two blocks may hold
    the same content; a lookup returns the one entered first. ``hash_of`` names the blocks with known content.
    """

    __slots__ = ("_blocks_of", "_refs", "hash_of")

    def __init__(self) -> None:
        self.hash_of: dict[int, BlockHash] = {}
        self._blocks_of: dict[BlockHash, dict[int, None]] = {}
        self._refs: dict[int, int] = {}

    def lookup(self, hashes: Sequence[BlockHash], limit: int) -> list[int]:
        """Blocks of the longest run of hits from the start over at most ``limit`` hashes."""
        hits = []
        for digest in islice(hashes, limit):
            blocks = self._blocks_of.get(digest)
            if blocks is None:
                break
            hits.append(next(iter(blocks)))
        return hits

    def enter(self, blocks: Sequence[int], hashes: Sequence[BlockHash]) -> None:
        """Name the contents of blocks that one table holds."""
        blocks_of = self._blocks_of
        for block, digest in zip(blocks, hashes, strict=True):
            holders = blocks_of.get(digest)
            if holders is None:
                blocks_of[digest] = {block: None}
            else:
                holders[block] = None
        self.hash_of.update(zip(blocks, hashes, strict=True))
        self._refs.update(dict.fromkeys(blocks, 1))

    def count_free(self, blocks: Sequence[int]) -> int:
        """How many of these hashed blocks no table holds."""
        return list(map(self._refs.__getitem__, blocks)).count(0)

    def share(self, blocks: Sequence[int]) -> list[int]:
        """One more table holds these hashed blocks; returns those that no table held before."""
        refs = self._refs
        free = [block for block in blocks if not refs[block]]
        for block in blocks:
            refs[block] += 1
        return free

    def drop(self, blocks: Sequence[int]) -> list[int]:
        """One table fewer holds these blocks; returns those that none holds now, in the same order."""
        refs = self._refs
        free = []
        for block in blocks:
            left = refs.get(block, 0)  # 0: without a hash, so this table was the only one
            if left:
                refs[block] = left - 1
            if left <= 1:
                free.append(block)
        return free

    def evict(self, blocks: Sequence[int]) -> None:
        """Forget the content of blocks that are handed out anew."""
        hash_of, blocks_of = self.hash_of, self._blocks_of
        if hash_of.keys().isdisjoint(blocks):
            return
        for block in blocks:
            digest = hash_of.pop(block, None)
            if digest is not None:
                del self._refs[block]
                holders = blocks_of[digest]
                if len(holders) > 1:
                    del holders[block]
                else:
                    del blocks_of[digest]

    def references(self) -> dict[int, int]:
        """Number of tables that hold each hashed block, for checks."""
        return dict(self._refs)
