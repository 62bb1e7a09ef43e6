"""Stage 0: what the numbers of this check were measured on, and what nothing on it can exceed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from calibrate.dates import today
from calibrate.gpu.timing import device_s, host_s
from gpu_backend.device import device_name
from policies.catalog import Card, cards

if TYPE_CHECKING:
    from calibrate.gpu.worker import Check
    from gpu_backend.ops import Ops

_PACKAGES = ("torch", "triton", "numpy", "transformers", "safetensors")
_MIB = 1 << 20
BLOCK_BYTES = 8 * _MIB
"""Of 16 tokens of Llama-2-7B: the smallest copy of a swap."""


def run(check: Check) -> None:
    """Environment first, then the ceilings one by one."""
    device = check.where.device
    check.record.keep(environment=environment(device), dtype=str(check.where.dtype).removeprefix("torch."))
    known = check.record.found["environment"]
    check.say(f"{known['name']}, driver {known['driver'] or '-'}, torch {known['torch']}, {known['date']}")
    ceilings: dict[str, float] = {}
    measures: dict[str, Callable[[], dict[str, float]]] = {
        "copy": lambda: _copy(device),
        "matmul": lambda: _matmul(device, check.where.dtype),
        "link": lambda: _link(device),
        "launch": lambda: _launches(device, check.where.ops),
    }
    for name, measure in measures.items():
        if ceilings and check.left_s() <= 0:
            break
        found = measure()
        ceilings |= found
        check.record.keep(ceilings=ceilings)
        shown = (f"{key.removesuffix('_per_s')} {_short(key, value)}" for key, value in found.items())
        check.say(f"{name}: {', '.join(shown)}")


def environment(device: torch.device) -> dict[str, Any]:
    """Device and versions; ``card`` is the catalog's name, or empty."""
    found: dict[str, Any] = {
        "date": today(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "cores": os.cpu_count(),
        "driver": "",
    }
    if device.type != "cuda":
        return {**found, "name": device_name(device), "card": "cpu"}
    properties = torch.cuda.get_device_properties(device)
    card = catalog_card(properties.name, properties.total_memory)
    return {
        **found,
        "name": device_name(device),
        "card": "" if card is None else card.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": str(torch.version.cuda),
        **_driver(device),
    }


def catalog_card(name: str, memory_bytes: int) -> Card | None:
    """The card of the catalog that calls itself ``name``, of several the one nearest in memory."""
    words = "".join(letter for letter in name.lower() if letter.isalnum())
    fitting = [card for card in cards() if card.name != "cpu" and card.name.partition("-")[0] in words]
    if not fitting:
        return None
    longest = max(len(card.name.partition("-")[0]) for card in fitting)
    family = [card for card in fitting if len(card.name.partition("-")[0]) == longest]
    pcie = [card for card in family if ("pcie" in card.name) == ("pcie" in words)]
    return min(pcie or family, key=lambda card: abs(card.memory_bytes - memory_bytes))


def _version(package: str) -> str:
    for name in (package, f"pytorch-{package}"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def _driver(device: torch.device) -> dict[str, str]:
    """Driver, power limit and highest clocks, as nvidia-smi says them; nothing where it does not."""
    tool, fields = shutil.which("nvidia-smi"), ("driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", f"--id={device.index or 0}"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return {}
    values = dict(zip(fields, (word.strip() for word in line.split(",")), strict=False))
    return {"driver": values.pop("driver_version"), **values}


# -- ceilings ------------------------------------------------------------------------------------------------


def _copy(device: torch.device) -> dict[str, float]:
    """Bytes read and written a second by a copy within the device's memory."""
    size = 2048 * _MIB if device.type == "cuda" else 64 * _MIB
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    seconds = device_s(device, lambda: target.copy_(source), times=12 if device.type == "cuda" else 4)
    return {"copy_bytes_per_s": 2 * size / seconds}


def _matmul(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """FLOPs a second of a square product of random matrices: zeros would take less power and higher clocks."""
    size = 8192 if device.type == "cuda" else 768
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    seconds = device_s(device, lambda: torch.matmul(a, b, out=out), times=12 if device.type == "cuda" else 3, warm=3)
    return {"matmul_size": size, "matmul_flops_per_s": 2.0 * size**3 / seconds}


def _link(device: torch.device) -> dict[str, float]:
    """Bytes a second between host and device: one block, many blocks one by one, and many in one copy."""
    on_cuda = device.type == "cuda"
    blocks, block = (64, BLOCK_BYTES) if on_cuda else (8, _MIB)
    there = torch.ones((blocks, block), dtype=torch.uint8, device=device)
    here = torch.ones((blocks, block), dtype=torch.uint8, pin_memory=on_cuda)
    found: dict[str, float] = {"link_block_bytes": block, "link_blocks": blocks}
    for name, source, target in (("h2d", here, there), ("d2h", there, here)):

        def each(source: torch.Tensor = source, target: torch.Tensor = target) -> None:
            for number in range(blocks):
                target[number].copy_(source[number], non_blocking=True)

        def one(source: torch.Tensor = source, target: torch.Tensor = target) -> None:
            target[0].copy_(source[0], non_blocking=True)

        def merged(source: torch.Tensor = source, target: torch.Tensor = target) -> None:
            target.copy_(source, non_blocking=True)

        for how, call, count in (("block", one, 1), ("blocks", each, blocks), ("merged", merged, blocks)):
            found[f"{name}_{how}_bytes_per_s"] = count * block / device_s(device, call, times=5)
    return found


def _launches(device: torch.device, ops: Ops) -> dict[str, float]:
    """Host seconds to launch a kernel of torch, one of ours, and a graph; device seconds a kernel within a graph."""
    x = torch.ones(1, device=device)
    row, gain = torch.ones((1, 4096), dtype=torch.float32, device=device), torch.ones(4096, device=device)
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("torch_launch_s", lambda: x.add_(1.0)),
        ("own_launch_s", lambda: ops.rms_norm(row, gain, 1e-5)),
    )
    found = {name: host_s(device, call, times=200) for name, call in calls}
    if device.type == "cuda":
        kernels, graph = 500, torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(kernels):
                x.add_(1.0)
        found["graph_kernels"] = kernels
        found["graph_launch_s"] = host_s(device, graph.replay, times=50)
        found["graph_kernel_s"] = device_s(device, graph.replay, times=20) / kernels
    return found


def _short(key: str, value: float) -> str:
    if key.endswith("flops_per_s"):
        return f"{value / 1e12:.4g} TFLOPS"
    if key.endswith("_per_s"):
        return f"{value / 1e9:.4g} GB/s"
    return f"{1e6 * value:.2f} us" if key.endswith("_s") else f"{value:,.0f}"
