"""Checks that need no oracle: a graph against the same step without it, bfloat16 against float32, swaps bit by bit."""

from __future__ import annotations

import torch

from calibrate.gpu.kernel_jobs import shallow_model
from calibrate.measure_points import BLOCK_SIZE, Step
from calibrate.measure_steps import StepTimer
from gpu_backend.cache import KvCache
from gpu_backend.device import Placement
from gpu_backend.model import LlamaModel
from gpu_backend.ops import load_ops
from gpu_backend.swap import SwapPool
from gpu_backend.upload import Uploader
from gpu_backend.weights import LayerWeights, Weights, random_weights
from policies.catalog import model
from policies.core.plan import Transfer

_GRAPH_ROWS = (1, 4, 8, 32)


def graph_differences(name: str, where: Placement) -> dict[int, int]:
    """Logits of two layers of a model that differ between a graph and the same rows without it, by the size of the
    batch; the graph has run on another batch before, whose rows must not shine through."""
    llama = shallow_model(name, 2, where)
    cache = KvCache(16 * _GRAPH_ROWS[-1], llama.shape, BLOCK_SIZE, where.dtype, where.device)
    cache.blocks_NL2KSD.normal_(std=0.5)
    timer = StepTimer(llama, cache, _GRAPH_ROWS[-1], graphs=True)
    runner, uploader = timer.full, Uploader(where.device, 2)
    assert runner.graphs is not None
    runner.tokens_RP.random_(llama.shape.vocab)
    found = {}
    for rows in _GRAPH_ROWS:
        timer.seconds(Step((200,) * rows))
        arrays = timer.arrays(Step(tuple(100 + 3 * row for row in range(rows))))
        batch = uploader.upload(arrays, arrays.new_ids_N).batch
        eager = llama.forward(batch, runner.tokens_RP, cache.blocks_NL2KSD).clone()
        graph = runner.graphs.logits(batch, runner.tokens_RP)
        found[rows] = int((eager.view(torch.int32) != graph.view(torch.int32)).sum())
    return found


def bf16_error(name: str, where: Placement) -> float:
    """Relative error of the logits of two layers of a model in bfloat16, against plain torch in float32 on the same
    weights: a chunk, then decode rows on what it left in the cache."""
    shape = model(name)._replace(layers=2)
    numbers = torch.bfloat16
    drawn = random_weights(shape, dtype=numbers, device=where.device, seed=1)
    pairs = ((drawn, where.ops, numbers), (_widened(drawn), load_ops("torch"), torch.float32))
    logits = []
    tokens = min(256, shape.max_model_len // 2)
    for weights, ops, dtype in pairs:
        llama = LlamaModel(shape, weights, ops)
        cache = KvCache(4 * (tokens // BLOCK_SIZE + 1), shape, BLOCK_SIZE, dtype, where.device)
        cache.blocks_NL2KSD.zero_()
        timer = StepTimer(llama, cache, 4, graphs=False)
        known = torch.arange(timer.full.tokens_RP.numel(), device=where.device) * 7919 % shape.vocab
        timer.full.tokens_RP.copy_(known.view_as(timer.full.tokens_RP))
        parts = []
        for step in (Step(chunk_tokens=tokens), Step((tokens,)), Step((tokens, 40, 7))):
            arrays = timer.arrays(step)
            batch = Uploader(where.device, 1).upload(arrays, arrays.new_ids_N).batch
            parts.append(llama.forward(batch, timer.full.tokens_RP, cache.blocks_NL2KSD).clone())
        logits.append(torch.cat(parts).double())
    return float((logits[0] - logits[1]).norm() / logits[1].norm())


def _widened(weights: Weights) -> Weights:
    """The same weights in float32."""
    layers = tuple(LayerWeights(*(tensor.float() for tensor in layer)) for layer in weights.layers)
    head = weights.head_VE
    embedding = weights.embedding_VE.float()
    wide = embedding if head is weights.embedding_VE else head.float()
    return Weights(weights.config, embedding, layers, weights.norm_E.float(), wide)


def swap_is_exact(llama: LlamaModel) -> bool:
    """Whether scattered blocks come back from host memory as they went, to other places."""
    cache = KvCache(24, llama.shape, BLOCK_SIZE, llama.dtype, llama.device)
    cache.blocks_NL2KSD.normal_()
    pool = SwapPool(12, cache)
    source, host, target = (1, 2, 3, 9, 7), (4, 5, 6, 0, 11), (20, 14, 15, 16, 22)
    before = cache.blocks_NL2KSD[list(source)].clone()
    pool.start([Transfer(0, 0, "out", source, host, True)])
    cache.blocks_NL2KSD[list(source)] = float("nan")
    pool.start([Transfer(1, 0, "in", host, target, True)])
    after = cache.blocks_NL2KSD[list(target)].clone()
    pool.wait()
    return bool((before == after).all())
