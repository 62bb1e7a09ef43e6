"""Where the time of simulated steps goes, by the terms of their cost model, for whole tables of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from policies.core.plan import Chunk
from traces.record.columns import StepTable
from traces.record.expand import Expanded

if TYPE_CHECKING:
    from policies.catalog import ModelShape
    from sim.costs.model import CostModel

Floats = NDArray[np.float64]


class StepTerms:
    """A ``StepSplit`` by cost model.

    Terms that depend on counts alone are asked for once for each pair of tokens and rows. Decode attention is a line
    in the context, up to the next knot, where the record begins another row. What is left of a step with prompts is the
    attention of these prompts, of any other step what unequal contexts add and what lifts it to the hardware's floor.
    ``linear`` of a group of GPUs has its communication with it. Where an engine plans several steps at once, the first
    of them has the time of all and the host's: the others, ``in_groups``, take theirs back from its ``other``.
    """

    names = ("linear", "decode_attention", "prefill_attention", "head", "host", "swap", "other")

    def __init__(self, costs: CostModel, shape: ModelShape, block_size: int, *, in_groups: bool = False) -> None:
        self._in_groups = in_groups
        self._costs, self._floor = costs, costs.floor
        self._pieces, self._block_bytes = shape.swap_pieces_per_block(), shape.block_bytes(block_size)
        self._known: dict[tuple[int, int, int], tuple[float, ...]] = {}

    def seconds(self, part: StepTable, steps: Expanded) -> Floats:
        """(terms, steps): seconds of each term in each step."""
        numbers, each = part.numbers, steps.each
        emits = np.where(numbers["chunk_tokens"] > 0, np.minimum(numbers["chunk_emits"], 1), -1)
        sizes = zip(numbers["num_tokens"].tolist(), numbers["num_seqs"].tolist(), emits.tolist(), strict=True)
        rows = [self._known.get(size) or self._at(size) for size in sizes]
        linear_s, head_s, host_s = each(np.array(rows, np.float64).reshape(-1, 3).T)
        rows_of = zip(numbers["num_seqs"].tolist(), numbers["sum_context"].tolist(), strict=True)
        lines = [self._costs.decode_line(*counts) for counts in rows_of]
        base_s, slope_s = each(np.array(lines, np.float64).reshape(-1, 2).T)
        context = each(numbers["sum_context"]) + steps.index * each(numbers["num_seqs"])
        attention_s = base_s + slope_s * context
        swap_s = np.where(steps.index == 0, each(self._swap_s(numbers["moved_bytes"])), 0.0)
        took_s = steps.end_s - steps.start_s
        if self._in_groups:
            follows = (took_s == 0.0) & each(numbers["num_seqs"] > 0)
            host_s = np.where(follows, 0.0, host_s)
        known_s = linear_s + attention_s + head_s + host_s + swap_s
        rest_s = took_s - known_s
        prompts = each(numbers["chunk_tokens"] > 0)
        prefill_s, other_s = np.where(prompts, rest_s, 0.0), np.where(prompts, 0.0, rest_s)
        terms: Floats = np.maximum([linear_s, attention_s, prefill_s, head_s, host_s, swap_s, other_s], 0.0)
        if self._in_groups:
            terms[-1, follows] = other_s[follows]
        return terms

    def floor_s(self, part: StepTable, steps: Expanded) -> Floats:
        """(steps,): bytes over bandwidth or FLOPs over peak. The attention of prompt tokens is left out, which only
        lowers it."""
        numbers, each = part.numbers, steps.each
        body_s, head_s, context_s, token_s, head_row_s, pair_s = self._floor
        num_rows = each(numbers["num_seqs"]) + np.where(steps.is_last, each(numbers["chunk_emits"]), 0)
        context = each(numbers["sum_context"]) + steps.index * each(numbers["num_seqs"])
        read_s = body_s + context_s * context + np.where(num_rows > 0, head_s, 0.0)
        work_s = token_s * each(numbers["num_tokens"]) + head_row_s * num_rows + pair_s * context
        floor_s: Floats = np.maximum(read_s, work_s)
        return floor_s

    def _at(self, size: tuple[int, int, int]) -> tuple[float, ...]:
        """Linear part with communication, head and host of a step of so many tokens and decoding rows; the last number
        is -1 without prompts, and 1 if a prompt is completed. A step that computes nothing has none of them."""
        num_tokens, num_seqs, emits = size
        if not num_seqs and emits < 0:
            return self._known.setdefault(size, (0.0, 0.0, 0.0))
        chunks = () if emits < 0 else (Chunk(0, 0, max(num_tokens - num_seqs, 1), emits > 0),)
        parts = self._costs.parts(num_tokens, num_seqs, 0, 0, chunks)
        terms = (parts["linear"] + parts["all_reduce"], parts["head"], parts["host"])
        self._known[size] = terms
        return terms

    def _swap_s(self, moved_bytes: NDArray[np.int64]) -> Floats:
        blocks = moved_bytes // self._block_bytes
        time_s, size, pieces = self._costs.swap_time_s, self._block_bytes, self._pieces
        times = [time_s(n * size, n * pieces) if n else 0.0 for n in blocks.tolist()]
        return np.array(times, np.float64)
