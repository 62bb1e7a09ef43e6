"""Rows of a run record to start from, and a small run of which every number can be worked out by hand."""

from __future__ import annotations

import math
from typing import TypeVar

from traces.metrics.accumulate import Delivery, MetricsSink
from traces.record.schema import RequestRow, Stall, StepRow

T = TypeVar("T")
NAN = math.nan

STEP = StepRow(
    step=0, steps=1, start_s=0.0, end_s=1.0, first=-1, anchor_s=0.0, base_s=0.0, slope_s=0.0, anchor_context=0,
    num_seqs=0, num_tokens=0, sum_context=0, emitting=0, irregular=0, chunk_emits=0, chunk_tokens=0,
    previous_emit_s=0.0, waiting=0, running=0, swapped=0, free_blocks=100, stored_tokens=0, moved_bytes=0,
    limited_by="arrivals", phase=0, residues=(),
)  # fmt: skip
"""One step of a second in which nothing runs."""

REQUEST = RequestRow(
    id=0, arrival_s=0.0, first_scheduled_s=0.0, first_token_s=1.0, finish_s=2.0, reason="stop", prompt_tokens=10,
    output_tokens=5, priority=0, client_id="", recompute_preemptions=0, swap_preemptions=0, recomputed_tokens=0,
    waited_s=0.0, hit_tokens_new=0, hit_tokens_resumed=0, segments=(),
)  # fmt: skip
"""TTFT 1 s, TPOT 0.25 s, E2E 2 s."""


def known(value: T | None) -> T:
    """The value, which must be there."""
    assert value is not None
    return value


def metrics_sink(delivery: Delivery = "step") -> MetricsSink:
    """Of an engine for 4 sequences with 100 blocks of 4 tokens."""
    return MetricsSink(max_num_seqs=4, num_gpu_blocks=100, block_size=4, delivery=delivery)


def small_run() -> MetricsSink:
    """Two requests, prompts 10 and 6, outputs 4 and 3: a prefill step of both until 1.0, a quiet run of two steps (2
    rows: 1.0-1.5, 1.5-2.25), nothing until 3.0; one more step of one row and an idle slot, 3.0-4.0."""
    prefill = STEP._replace(
        num_tokens=16, chunk_emits=2, chunk_tokens=16, running=2, free_blocks=95, limited_by="arrivals"
    )
    # Step i takes 0.5 + 0.125 * (sum_context + 2 i), context 0 for easy sums: 0.5, then 0.75.
    quiet = STEP._replace(
        step=1, steps=2, start_s=1.0, end_s=2.25, first=0, anchor_s=1.0, base_s=0.5, slope_s=0.125,
        num_seqs=2, num_tokens=2, emitting=2, irregular=2, running=2, free_blocks=95, stored_tokens=16, phase=0,
        residues=(0, 1, 0, 1), limited_by="kv_blocks",
    )  # fmt: skip
    last = STEP._replace(
        step=3, start_s=3.0, end_s=4.0, num_seqs=2, num_tokens=1, emitting=1, previous_emit_s=2.25, running=1,
        free_blocks=97, stored_tokens=12, moved_bytes=7, limited_by="arrivals",
    )  # fmt: skip
    metrics = metrics_sink()
    metrics.steps([prefill, quiet, last])
    metrics.stalls([Stall(0.5, 2, "decode")])
    metrics.requests([
        REQUEST._replace(
            id=1, finish_s=2.25, prompt_tokens=6, output_tokens=3, swap_preemptions=1, waited_s=0.25, hit_tokens_new=3
        ),
        REQUEST._replace(
            finish_s=4.0, reason="length", output_tokens=4, recompute_preemptions=1, recomputed_tokens=5,
            waited_s=0.5, hit_tokens_new=1, hit_tokens_resumed=15,
        ),
    ])  # fmt: skip
    return metrics
