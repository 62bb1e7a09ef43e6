"""Prefix cache: which physical block holds which content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.core.request import RequestId, Segments

BlockHash = bytes | int
"""Names the content of a block and all before it: a digest, or a number that stands for what only one request has."""

_ROOT = b""


def block_hash(parent: bytes, content: bytes) -> bytes:
    """Identity of a full block: its own content on top of everything before it."""
    from hashlib import blake2b  # here, since it loads OpenSSL, and only shared prefixes need it

    return blake2b(parent + content, digest_size=16).digest()


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
        for index in range(limit):
            blocks = self._blocks_of.get(hashes[index])
            if not blocks:
                break
            hits.append(next(iter(blocks)))
        return hits

    def enter(self, block: int, digest: BlockHash) -> None:
        """Name the content of a block that one table holds."""
        self.hash_of[block] = digest
        self._blocks_of.setdefault(digest, {})[block] = None
        self._refs[block] = 1

    def is_free(self, block: int) -> bool:
        """True for a hashed block that no table holds."""
        return self._refs[block] == 0

    def share(self, block: int) -> None:
        """One more table holds the block."""
        self._refs[block] += 1

    def drop(self, block: int) -> bool:
        """One table fewer holds the block; True when none is left (always so for a block without a hash)."""
        refs = self._refs.get(block)
        if refs is None:
            return True
        self._refs[block] = refs - 1
        return refs == 1

    def evict(self, blocks: Sequence[int]) -> None:
        """Forget the content of blocks that are handed out anew."""
        if self.hash_of.keys().isdisjoint(blocks):
            return
        for block in blocks:
            digest = self.hash_of.pop(block, None)
            if digest is not None:
                del self._refs[block]
                holders = self._blocks_of[digest]
                del holders[block]
                if not holders:
                    del self._blocks_of[digest]

    def references(self) -> dict[int, int]:
        """Number of tables that hold each hashed block, for checks."""
        return dict(self._refs)
