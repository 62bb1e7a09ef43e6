"""From a model and a policy's memory to the backend that runs its plans."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from gpu_backend.backend import ModelBackend
from gpu_backend.batch import BatchTable, Ints, columns_for, physical_block_size
from gpu_backend.cache import KvCache
from gpu_backend.clock import Clock
from gpu_backend.device import allocating
from gpu_backend.graphs import DecodeGraphs
from gpu_backend.model import LlamaModel
from gpu_backend.prompts import prompt_ids
from gpu_backend.runner import GREEDY, Sampling, StepRunner
from gpu_backend.swap import SwapPool
from policies.core.protocols import Policy
from policies.core.request import Request, RequestId


class Limits(NamedTuple):
    """Most tokens of a request, and most requests of a step, as the policy was built for them."""

    max_model_len: int
    max_num_seqs: int


def make_cache(model: LlamaModel, policy: Policy) -> KvCache:
    """Memory for the block ids of a policy, its slots as runs of blocks. ConfigError where memory is short."""
    kv = policy.kv
    size = physical_block_size(kv.block_size)
    return KvCache(kv.num_gpu_blocks * (kv.block_size // size), model.shape, size, model.dtype, model.device)


def make_backend(
    model: LlamaModel,
    policy: Policy,
    limits: Limits,
    clock: Clock,
    *,
    sampling: Sampling = GREEDY,
    prompt_of: Callable[[Request], Ints] | None = None,
    stop_ids: Collection[int] = (),
    on_token: Callable[[RequestId, int], object] | None = None,
    graphs: bool = True,
) -> ModelBackend:
    """The backend of one run of ``policy``. Without ``prompt_of`` the tokens of prompts follow from their segments.

    ``graphs`` captures decode steps on CUDA, which takes some seconds. ConfigError where memory is short.
    """
    cache, kv = make_cache(model, policy), policy.kv
    outputs: dict[RequestId, list[int]] = {}

    def drawn(request: Request) -> Ints:
        return prompt_ids(request, outputs, model.shape.vocab, sampling.seed)

    num_rows = 2 * limits.max_num_seqs
    columns = columns_for(limits.max_model_len, policy.tokens_past_length)
    tables_bytes = 8 * num_rows * columns  # of int64 tokens; tables of blocks stay on the host
    what = f"the tables of engine.max_num_seqs = {limits.max_num_seqs:,}"
    with allocating(what, tables_bytes, model.device, "lower it, or engine.max_model_len"):
        table = BatchTable(
            block_size=kv.block_size,
            max_model_len=limits.max_model_len,
            tokens_past_length=policy.tokens_past_length,
            num_rows=num_rows,
            prompt_of=prompt_of or drawn,
        )
        runner = StepRunner(
            model,
            cache,
            num_rows=table.num_rows,
            num_columns=table.num_columns,
            sampling=sampling,
            depth=policy.max_in_flight * policy.num_scheduler_steps,
        )
    if graphs and model.device.type == "cuda":
        columns = -(-limits.max_model_len // cache.block_size) + 1
        runner.graphs = DecodeGraphs(
            model, cache, runner.tokens_RP, max_batch=limits.max_num_seqs, max_columns=columns
        )
    num_swapped = kv.cpu_pool.num_blocks * table.split
    swap = SwapPool(num_swapped, cache) if num_swapped else None
    return ModelBackend(
        runner, table, clock, outputs=outputs, swap=swap, stop_ids=stop_ids, on_token=on_token
    )
