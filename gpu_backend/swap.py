"""KV blocks that wait in host memory: moved over the link one copy a run of blocks, beside the steps that compute."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpu_backend.cache import KvCache
from gpu_backend.device import allocating
from policies.core.errors import ContractError
from policies.core.plan import Transfer


class Moved(NamedTuple):
    """A transfer that ended: its bytes, the copies they took, and the seconds that the copies ran."""

    key: int
    kind: str
    num_bytes: int
    pieces: int
    seconds: float


class Run(NamedTuple):
    """Consecutive blocks that go to consecutive places: one copy."""

    src: int
    dst: int
    blocks: int


def runs(src: Sequence[int], dst: Sequence[int]) -> list[Run]:
    """The fewest copies that move ``src[i]`` to ``dst[i]`` in the given order."""
    if len(src) != len(dst):
        raise ContractError(f"a transfer of {len(src)} blocks to {len(dst)} places")
    if not len(src):
        return []
    places = np.array((src, dst), dtype=np.int64)
    starts = np.flatnonzero(np.r_[True, (np.diff(places) != 1).any(axis=0)])
    lengths = np.diff(np.r_[starts, len(src)])
    return [Run(*row) for row in zip(*places[:, starts].tolist(), lengths.tolist(), strict=True)]


class SwapPool:
    """``num_blocks`` blocks of host memory, pinned where the cache is on a CUDA device.

    There, transfers run on two streams of their own, one a direction. A transfer out waits for the steps enqueued
    before it, which wrote what it reads; a transfer waits for earlier ones that touched its blocks; and what is
    enqueued on the compute stream after ``start`` waits for the *blocking* ones. Blocks of the others are in transit:
    nobody may use them until ``done`` has named the transfer. On the CPU everything is copied at once.
    """

    def __init__(self, num_blocks: int, cache: KvCache) -> None:
        on_cuda = cache.device.type == "cuda"
        size = (num_blocks, *cache.blocks_NL2KSD.shape[1:])
        taken = pinned_bytes(num_blocks * cache.block_bytes) if on_cuda else num_blocks * cache.block_bytes
        with allocating(f"{num_blocks:,} swapped KV blocks", taken, torch.device("cpu")):
            self.blocks_NL2KSD = torch.empty(size, dtype=cache.blocks_NL2KSD.dtype, pin_memory=on_cuda)
        self._cache = cache
        self._streams = _Streams(cache.device) if on_cuda else None
        self._ended: list[Moved] = []

    def start(self, transfers: Iterable[Transfer], busy: Collection[int] = ()) -> None:
        """Begin the transfers ``out`` and ``in`` of a plan, in its order, before its step is enqueued.

        ``busy`` are blocks of the cache that steps in flight may still touch although this plan gives them away;
        a transfer into one of them waits for those steps, any other overlaps them.
        """
        for transfer in transfers:
            if transfer.kind not in ("out", "in"):
                raise ContractError(f"transfer {transfer.key} of kind {transfer.kind!r}; the executor moves out and in")
            if self._streams is None:
                began = perf_counter()
                pieces = self._copy(transfer)
                self._ended.append(self._moved(transfer, pieces, perf_counter() - began))
            else:
                self._streams.start(transfer, self._copy, wait_for_steps=_needs_steps(transfer, busy))

    def done(self) -> list[Moved]:
        """The transfers that ended since this was asked last; never waits."""
        if self._streams is not None:
            self._ended += [self._moved(*ended) for ended in self._streams.ended()]
        ended, self._ended = self._ended, []
        return ended

    def wait(self) -> None:
        """Wait on the host until every transfer has ended."""
        if self._streams is not None:
            self._streams.synchronize()

    def _copy(self, transfer: Transfer) -> int:
        """Enqueue the copies of a transfer; their number."""
        device, host = self._cache.blocks_NL2KSD, self.blocks_NL2KSD
        src, dst = (device, host) if transfer.kind == "out" else (host, device)
        pieces = runs(transfer.src, transfer.dst)
        for run in pieces:
            _slice(dst, run.dst, run.blocks).copy_(_slice(src, run.src, run.blocks), non_blocking=True)
        return len(pieces)

    def _moved(self, transfer: Transfer, pieces: int, seconds: float) -> Moved:
        num_bytes = len(transfer.src) * self._cache.block_bytes
        return Moved(transfer.key, transfer.kind, num_bytes, pieces, seconds)


def pinned_bytes(num_bytes: int) -> int:
    """What torch takes of the host for that much pinned memory: the next power of two."""
    return 1 << (num_bytes - 1).bit_length()


def _slice(blocks_NL2KSD: Tensor, first: int, count: int) -> Tensor:
    if first < 0 or first + count > blocks_NL2KSD.shape[0]:
        raise ContractError(f"blocks {first} to {first + count - 1} of a pool of {blocks_NL2KSD.shape[0]}")
    return blocks_NL2KSD[first : first + count]


def _needs_steps(transfer: Transfer, busy: Collection[int]) -> bool:
    """A transfer out reads what steps wrote; one in waits only for steps that may touch the blocks it fills."""
    return transfer.kind == "out" or not set(busy).isdisjoint(transfer.dst)


class _UnderWay(NamedTuple):
    transfer: Transfer
    pieces: int
    began: Any
    ended: Any


class _Streams:
    """The two copy streams of a CUDA device and the events by which they and the compute stream wait for each other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_kind = {kind: torch.cuda.Stream(device) for kind in ("out", "in")}
        self._last: dict[tuple[str, int], Any] = {}
        """End of the last transfer under way that touches a block, by tier and block."""
        self._under_way: list[_UnderWay] = []

    def start(self, transfer: Transfer, copy: Any, *, wait_for_steps: bool) -> None:
        stream, compute = self._by_kind[transfer.kind], torch.cuda.current_stream(self._device)
        if wait_for_steps:
            stream.wait_stream(compute)
        places = _places(transfer)
        for event in {id(event): event for place in places if (event := self._last.get(place))}.values():
            stream.wait_event(event)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            began.record()
            pieces = copy(transfer)
            ended.record()
        self._last.update(dict.fromkeys(places, ended))
        self._under_way.append(_UnderWay(transfer, pieces, began, ended))
        if transfer.blocking:
            compute.wait_event(ended)

    def ended(self) -> list[tuple[Transfer, int, float]]:
        """Transfers, copies and seconds of what ended since the last call."""
        over = [one for one in self._under_way if one.ended.query()]
        self._under_way = [one for one in self._under_way if one not in over]
        for one in over:
            for place in _places(one.transfer):
                if self._last.get(place) is one.ended:
                    del self._last[place]
        return [(one.transfer, one.pieces, one.began.elapsed_time(one.ended) / 1e3) for one in over]

    def synchronize(self) -> None:
        for stream in self._by_kind.values():
            stream.synchronize()


def _places(transfer: Transfer) -> list[tuple[str, int]]:
    tiers = ("device", "host") if transfer.kind == "out" else ("host", "device")
    return [(tier, block) for tier, ids in zip(tiers, (transfer.src, transfer.dst), strict=True) for block in ids]
