"""Presets of request-level batchers: Ray Serve's serve.batch and Triton's dynamic batcher."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policies.preset import Preset, Rule, Value

_STATIC = (
    "the batch is a static one: prompts padded to the longest, a slot of max_model_len tokens each, and all"
    " answers together when the last request ends"
)
_LEFT_OUT = (
    "padding inside attention (own lengths count), and host time",
    "a batch never exceeds the slots of the pool",
)


def _ray(version: str, timeout_s: float, summary: str, rule: str, *, forms_ahead: bool) -> Preset:
    return Preset(
        name=f"ray-serve-batch-{version.removesuffix('.0')}",
        system="Ray Serve",
        version=version,
        source=f"ray {version}, serve.batch (python/ray/serve/batching.py); recorded decisions of that version",
        summary=summary,
        policy="policies.systems.request_batcher:RayServeBatch",
        defaults=MappingProxyType({"max_num_seqs": 10, "batch_wait_timeout_s": timeout_s}),
        fixed=MappingProxyType({"forms_ahead": forms_ahead}),
        delivery="batch_end",
        blocks="slot",
        modelled=(
            "a window of batch_wait_timeout_s opens when the batcher takes its first request, and closes early at"
            " max_num_seqs (max_batch_size) requests",
            rule,
            _STATIC,
        ),
        left_out=(
            "max_concurrent_batches above 1, batch_size_fn, multiplexed models, streaming handlers",
            "a request that is cancelled leaves the queue at once; Ray keeps its place until its batch starts",
            *_LEFT_OUT,
        ),
    )


_TRITON_DEFAULTS: Mapping[str, Value | Rule] = {
    "max_num_seqs": 4,
    "batch_wait_timeout_s": 0.0,
    "preferred_batch_sizes": Rule("max_num_seqs; give a text, such as '4,8'", lambda values, card: ""),
}

BATCHERS = (
    _ray(
        "2.40.0",
        0.0,
        "serve.batch: batches of up to 10, one after the other, no wait; answers return together",
        "the next window opens when the batch before has returned",
        forms_ahead=False,
    ),
    _ray(
        "2.60.0",
        0.01,
        "serve.batch: batches of up to 10, closed after 10 ms even while others run; answers return together",
        "the next window opens when the batch before was closed; closed batches wait in line, one runs at a time",
        forms_ahead=True,
    ),
    Preset(
        name="triton-dynamic",
        system="Triton Inference Server",
        version="core 73aad7c",
        source="Triton core 73aad7c, src/dynamic_batch_scheduler.cc, as read; no recordings",
        summary="dynamic batcher: what waits when the model is free, in preferred sizes; answers return together",
        policy="policies.systems.request_batcher:TritonDynamic",
        defaults=MappingProxyType(_TRITON_DEFAULTS),
        delivery="batch_end",
        blocks="slot",
        modelled=(
            "a batch is formed when the one model instance is free: the largest preferred size that waits",
            "a queue that fills none waits until its oldest request has waited for batch_wait_timeout_s"
            " (max_queue_delay_microseconds), then goes as it is",
            _STATIC,
        ),
        left_out=(
            "several instances, prefetched payloads, priority levels, queue limits and timeouts, sequence batching",
            "max_num_seqs (max_batch_size) is what Triton fills in where the model's configuration has none",
            *_LEFT_OUT,
        ),
    ),
)
"""Ray Serve 2.40 and 2.60, and Triton."""
