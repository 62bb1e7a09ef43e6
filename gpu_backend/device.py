"""Where a model runs and in which numbers: device, dtype, operations; memory that is asked for before it is taken."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from gpu_backend.ops import KINDS, Ops, load_ops
from policies.core.errors import ConfigError, closest

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Placement(NamedTuple):
    """Device, dtype of weights and cache, and the operations that run there."""

    device: torch.device
    dtype: torch.dtype
    ops: Ops


def placement(
    device: str = "auto", dtype: str = "auto", ops: str = "auto", *, batch_invariant: bool = False
) -> Placement:
    """Where to run. ``auto``: the first CUDA device if there is one, else the CPU; bfloat16 and Triton on CUDA, float32
    and plain torch on the CPU. ConfigError, in one line, for a device that is not there or an unknown name.

    A CUDA device becomes the current one of the process: there Triton launches and graphs are captured, wherever the
    tensors lie.
    """
    where = _device(device)
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype = {dtype!r}: choose auto, {', '.join(DTYPES)}{closest(dtype, DTYPES)}")
    kind = ("triton" if where.type == "cuda" else "torch") if ops == "auto" else ops
    if kind == "triton" and where.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError("ops = 'triton' on the CPU needs TRITON_INTERPRET=1 in the environment; or choose 'torch'")
    if kind not in KINDS:
        raise ConfigError(f"ops = {kind!r}: choose auto, {', '.join(KINDS)}{closest(kind, KINDS)}")
    if where.type == "cuda":
        torch.cuda.set_device(where)
    numbers = ("bfloat16" if where.type == "cuda" else "float32") if dtype == "auto" else dtype
    return Placement(where, DTYPES[numbers], load_ops(kind, batch_invariant=batch_invariant))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        where = torch.device(name)
    except RuntimeError:
        where = torch.device("meta")
    if where.type not in ("cpu", "cuda"):
        raise ConfigError(f"device = {name!r}: choose auto, cpu, cuda or cuda:N")
    if where.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (where.index or 0) >= count:
            raise ConfigError(f"device = {name!r}: there are {count} CUDA devices here; choose another, or cpu")
        return torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)
    return torch.device("cpu")


def device_name(device: torch.device) -> str:
    """As the device calls itself; a CPU with the threads that compute."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"cpu ({_processor()}, {torch.get_num_threads()} threads)"


def _processor() -> str:
    """As Linux names it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken: free on the card, or available to a new process on the host (what Linux says; all
    of its physical memory elsewhere)."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - a file of the kernel
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def allocating(
    what: str,
    num_bytes: int,
    device: torch.device,
    cure: str = "choose fewer blocks, a smaller model or a narrower dtype",
) -> Iterator[None]:
    """Wraps the allocation of ``num_bytes`` for ``what``: ConfigError in one line where they are not there, with what
    to do about it.

    The size is compared first: on the CPU the kernel gives out memory that it does not have, and kills the process when
    it is touched.
    """
    free = free_bytes(device)
    short = ConfigError(
        f"out of memory: {what} take {num_bytes / 1e9:.2f} GB, and {device} has {free / 1e9:.2f} GB free;"
        f" {cure}"
    )
    if num_bytes > free:
        raise short
    try:
        yield
    except torch.OutOfMemoryError:
        raise short from None
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise short from None
