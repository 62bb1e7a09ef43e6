"""One process of the kernels' stage: ``python -m calibrate.gpu.kernel_jobs check|launch|gate ARGUMENTS``.

Results are lines of JSON, ``[kind, row]``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_backend.device import Placement
    from gpu_backend.model import LlamaModel

_CHUNKS = (1, 16, 128, 512, 2048)
_MOST_ROWS = 64


def main(arguments: list[str]) -> None:
    """Run the job that the arguments name."""
    kind, *rest = arguments
    if kind == "check":
        for row in check_dtype(*rest):
            _print("checks", row)
    elif kind == "launch":
        device, model, layers, dtype, page = rest
        launch_all(device, model, int(layers), dtype, int(page))
    else:
        for found in gate(rest[0], int(rest[1])):
            _print("gate", found)


def check_dtype(device: str, dtype: str) -> Iterator[tuple[str, str, float, float]]:
    """Every operation against float64 in one dtype: (operation, case, error, limit). The pool of bfloat16 passes 2^31
    elements on CUDA."""
    from gpu_backend.device import DTYPES, placement
    from gpu_backend.kernel_check import PAST_32_BITS
    from gpu_backend.kernel_comparison import check_kernels

    where = placement(device)
    most = PAST_32_BITS if where.device.type == "cuda" else 0
    for done in check_kernels(where.ops, where.device, min_elements=most, dtypes=(DTYPES[dtype],)):
        # JSON has no NaN: what is not a number is as wrong as can be.
        yield done.operation, done.case, done.error if done.error == done.error else 1e9, done.limit


def launch_all(device: str, model: str, layers: int, dtype: str, page: int) -> None:
    """Run steps of every kind once, so that all they launch is compiled; 0 layers are all of them."""
    from calibrate.measure_points import Step
    from calibrate.measure_steps import StepTimer
    from gpu_backend.cache import KvCache
    from gpu_backend.device import placement
    from gpu_backend.graphs import graph_sizes

    where = placement(device, dtype)
    llama = shallow_model(model, layers, where)
    longest = min(_CHUNKS[-1], llama.shape.max_model_len)
    blocks = max(_MOST_ROWS, -(-longest // page)) + 1
    cache = KvCache(blocks, llama.shape, page, where.dtype, where.device)
    cache.blocks_NL2KSD.zero_()
    timer = StepTimer(llama, cache, _MOST_ROWS, graphs=False)
    for size in graph_sizes(_MOST_ROWS):
        timer.seconds(Step((1,) * size))
    for tokens in sorted({min(tokens, longest) for tokens in _CHUNKS}):
        timer.seconds(Step(chunk_tokens=tokens))


def shallow_model(name: str, layers: int, where: Placement) -> LlamaModel:
    """A model whose layers share one layer's weights: its kernels are those of the real one, its memory is not."""
    from gpu_backend.model import LlamaModel
    from gpu_backend.weights import random_weights
    from policies.catalog import model

    shape = model(name)
    shape = shape._replace(layers=layers or shape.layers)
    drawn = random_weights(shape._replace(layers=1), dtype=where.dtype, device=where.device)
    config = drawn.config._replace(shape=shape)
    return LlamaModel(shape, drawn._replace(config=config, layers=drawn.layers * shape.layers), where.ops)


def gate(device: str, jobs: int) -> Iterator[dict[str, Any]]:
    """The ahead-of-time gate's variants for the architecture of the device."""
    import torch

    from gpu_backend.aot import run
    from gpu_backend.aot_variants import variants
    from gpu_backend.tiles import arch_of

    arch = arch_of(torch.cuda.get_device_capability(torch.device(device)))
    for variant, code, shared_bytes, faults in run(variants((arch,), quick=True), jobs):
        yield {
            "kernel": variant.kernel,
            "case": variant.case,
            "arch": variant.arch,
            "registers": code.registers,
            "spills": code.spills,
            "shared_bytes": shared_bytes,
            "faults": "; ".join(faults),
        }


def _print(kind: str, row: object) -> None:
    print(json.dumps([kind, row]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
