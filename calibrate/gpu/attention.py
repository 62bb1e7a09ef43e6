"""The last stage: attention kernels alone, with every tile that the table of tiles holds or could hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from calibrate.gpu.kernel_jobs import shallow_model
from calibrate.gpu.table import case_of, rate_of
from calibrate.gpu.timing import device_s
from calibrate.measure_points import BLOCK_SIZE, Step
from calibrate.measure_steps import StepTimer
from gpu_backend import tiles
from gpu_backend.cache import KvCache
from gpu_backend.upload import Uploader

if TYPE_CHECKING:
    from calibrate.gpu.worker import Check
    from gpu_backend.model import LlamaModel

_ON_CUDA = (Step((1024,) * 32), Step((2048,) * 8), Step((275,)), Step(chunk_tokens=2048), Step(chunk_tokens=4096))
_ON_CPU = (Step((96,) * 8), Step(chunk_tokens=64))


def run(check: Check) -> None:
    """Each case with the tile in use first; what the time does not allow is left out."""
    where, on_cuda = check.where, check.settings.on_cuda
    check.drop("timer")
    llama = shallow_model(check.settings.model, 2, where)
    cases = [step for step in (_ON_CUDA if on_cuda else _ON_CPU) if step.num_tokens <= llama.shape.max_model_len]
    blocks = max(sum(-(-context // BLOCK_SIZE) for context in (*step.contexts, step.chunk_tokens)) for step in cases)
    cache = KvCache(blocks + 1, llama.shape, BLOCK_SIZE, where.dtype, where.device)
    cache.blocks_NL2KSD.normal_()
    timer = StepTimer(llama, cache, 32, graphs=False)
    rows: list[dict[str, Any]] = []
    check.record.keep(attention=rows)
    for step in cases:
        call = _call(llama, timer, cache, step)
        for name, trying in _tiles(check, "prefill" if step.chunk_tokens else "decode"):
            if check.left_s() <= 0:
                return
            with trying:
                seconds = device_s(where.device, call, times=20 if on_cuda else 3)
            rows.append(_row(llama, step, name, seconds))
            check.record.keep(attention=rows)
            check.say(f"{case_of(rows[-1])}, {name}: {1e6 * seconds:.1f} us a layer, {rate_of(rows[-1])}")


def _tiles(check: Check, kernel: str) -> Iterator[tuple[str, AbstractContextManager[None]]]:
    """The tile in use, then the others; plain torch has none."""
    if not check.settings.on_cuda:
        yield "plain torch", nullcontext()
        return
    arch = tiles.arch_of(torch.cuda.get_device_capability(check.where.device))
    for number, tile in enumerate((tiles.TILES[kernel, arch], *tiles.CHOICES.get((kernel, arch), ()))):
        name = f"{tile.m}x{tile.n}, {tile.warps} warps, {tile.stages} stages"
        yield name + ("" if number else " (in use)"), tiles.trying(kernel, arch, tile)


def _call(llama: LlamaModel, timer: StepTimer, cache: KvCache, step: Step) -> Callable[[], object]:
    """One call of the operation of layer 1."""
    arrays = timer.arrays(step)
    batch = Uploader(llama.device, 1).upload(arrays, arrays.new_ids_N).batch
    shape, blocks, ops = llama.shape, cache.blocks_NL2KSD, llama.ops
    queries = torch.randn(step.num_tokens, shape.heads, shape.head_dim, device=llama.device).to(llama.dtype)
    if step.contexts:
        return lambda: ops.decode_attention(queries, blocks, 1, batch.tables_BM, batch.contexts_B)
    chunk = batch.chunk_tables_CM, batch.starts_C, batch.cu_C1, batch.max_chunk_tokens
    return lambda: ops.prefill_attention(queries, blocks, 1, *chunk)


def _row(llama: LlamaModel, step: Step, tile: str, seconds: float) -> dict[str, Any]:
    """Bytes of keys and values a second of decoding, FLOPs a second of a chunk (causal pairs alone count)."""
    shape, tokens = llama.shape, step.chunk_tokens
    row: dict[str, Any] = {
        "sequences": len(step.contexts),
        "context": max(step.contexts, default=0),
        "chunk_tokens": tokens,
        "tile": tile,
        "seconds": seconds,
    }
    if tokens:
        return row | {"flops_per_s": 4.0 * shape.heads * shape.head_dim * tokens * (tokens + 1) / 2 / seconds}
    kv_bytes = 2 * shape.kv_heads * shape.head_dim * llama.dtype.itemsize * sum(step.contexts)
    return row | {"bytes_per_s": kv_bytes / seconds}
