"""Swap against recompute: which of the two ways to preempt a sequence is faster, and from what bandwidth on."""

from __future__ import annotations

from typing import NamedTuple

from sim.costs.model import CostModel


class SwapChoice(NamedTuple):
    """Both ways to preempt one sequence, in seconds: its KV out and back, or computed again in one step."""

    out_and_back_s: float
    recompute_s: float

    @property
    def recompute_wins(self) -> bool:
        """What ``preemption_mode = "auto"`` goes by; equal costs swap."""
        return self.recompute_s < self.out_and_back_s

    @property
    def winner(self) -> str:
        """``recompute`` or ``swap``."""
        return "recompute" if self.recompute_wins else "swap"


def break_even_bytes_per_s(costs: CostModel, num_tokens: int) -> float:
    """Bandwidth above which moving the KV of ``num_tokens`` out and back beats computing it again."""
    return 2 * num_tokens * costs.shape.kv_bytes_per_token / costs.recompute_time_s(num_tokens, 0)


def swap_choice(costs: CostModel, num_tokens: int, block_size: int, pieces_per_block: int | None = None) -> SwapChoice:
    """A sequence of ``num_tokens`` in whole blocks, each in so many copies; by default K and V of each layer apart."""
    pieces = costs.shape.swap_pieces_per_block() if pieces_per_block is None else pieces_per_block
    blocks = -(-num_tokens // block_size)
    one_way_s = costs.swap_time_s(blocks * costs.shape.block_bytes(block_size), blocks * pieces)
    return SwapChoice(2 * one_way_s, costs.recompute_time_s(num_tokens, 0))


def swap_choice_in_bulk(costs: CostModel, num_tokens: int) -> SwapChoice:
    """The same sequence if its KV were one piece of memory; no run copies so."""
    one_way_s = costs.swap_time_s(num_tokens * costs.shape.kv_bytes_per_token, 1)
    return SwapChoice(2 * one_way_s, costs.recompute_time_s(num_tokens, 0))
