"""Seconds of the device: by events on CUDA, by the clock on a CPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_times(device: torch.device, call: Callable[[], object], *, times: int, warm: int = 2) -> list[float]:
    """Seconds of each of ``times`` calls after ``warm`` others. On CUDA they are enqueued without a look in between, so
    that what the host takes does not count as long as it is faster than the device."""
    for _ in range(warm):
        call()
    synchronize(device)
    if device.type != "cuda":
        found = []
        for _ in range(times):
            began = perf_counter()
            call()
            found.append(perf_counter() - began)
        return found
    marks = [_mark() for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]


def device_s(device: torch.device, call: Callable[[], object], *, times: int, warm: int = 2) -> float:
    """The median of ``device_times``."""
    return statistics.median(device_times(device, call, times=times, warm=warm))


def host_s(device: torch.device, call: Callable[[], object], *, times: int, warm: int = 10) -> float:
    """Mean seconds that the host takes to make a call, the device left to itself; few enough calls that it never has to
    wait for a place in the device's queue."""
    for _ in range(warm):
        call()
    synchronize(device)
    began = perf_counter()
    for _ in range(times):
        call()
    passed = perf_counter() - began
    synchronize(device)
    return passed / times


def _mark() -> Any:
    return torch.cuda.Event(enable_timing=True)
