"""What ``batchscope hardware`` prints: cards, and every term of the KV pool and the cost model on one of
them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from policies.catalog import Card, ModelShape, cards, models
from policies.core.errors import ConfigError, CostFileError
from sim.costs.floor import Floor, floor_of
from sim.costs.load import load_cost_model, shipped_path
from sim.costs.model import CostModel
from sim.costs.pool import KvPool, kv_pool

_BATCHES = (1, 4, 8, 16, 32, 64, 128)
_CONTEXT_TOKENS = 512
_CHUNKS = (128, 512, 1024, 2048)
_SWAP_TOKENS = 1000
_GIB = float(1 << 30)


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


def describe_cards() -> str:
    """All cards of the catalog, one a line, with the models that have a cost file for them and the source of their
    figures."""
    costed = {card.name: [shape.name for shape in models() if _has_costs(shape, card)] for card in cards()}
    width = max(len("cost file for"), *(len(", ".join(names)) for names in costed.values()))
    lines = [f"{'card':16} {'TFLOP/s':>8} {'GB/s':>6} {'GiB':>5}  {'cost file for':{width}}  source"]
    for card in cards():
        lines.append(
            f"{card.name:16} {card.flops_per_s / 1e12:8.0f} {card.bytes_per_s / 1e9:6.0f}"
            f" {card.memory_bytes / _GIB:5.0f}  {', '.join(costed[card.name]) or '-':{width}}"
            f"  {card.title}: {card.source}"
        )
    return "\n".join(lines)


def describe_models() -> str:
    """All models of the catalog, one a line, and whether a cost file for one of the cards is shipped."""
    lines = [f"{'model':16} {'parameters, 1e9':>15} {'KV B a token':>12} {'max_model_len':>13}  cost file"]
    for shape in models():
        on = [card.name for card in cards() if _has_costs(shape, card)]
        lines.append(
            f"{shape.name:16} {shape.num_parameters / 1e9:15.3f} {shape.kv_bytes_per_token:12,}"
            f" {shape.max_model_len:13,}  {'yes, on ' + ', '.join(on) if on else 'no'}"
        )
    return "\n".join(lines)


def _has_costs(shape: ModelShape, card: Card) -> bool:
    return shipped_path(shape.name, card.name).exists()


def describe_hardware(
    card: Card,
    shape: ModelShape,
    *,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    block_size: int = 16,
    utilization: float = 0.9,
    cost_model: str = "calibrated",
) -> str:
    """The pool, the floor, the cost model and the swap break-even of ``shape`` on ``card``, every term named.

    What the pair does not have (no room for KV, no shipped cost file) is said in its place; a cost file that was named
    and cannot be used is a CostFileError.
    """
    lines = [
        f"{shape.name} on {card.name} ({card.title})",
        f"card: {card.flops_per_s / 1e12:g} TFLOP/s 16-bit, {card.bytes_per_s / 1e9:g} GB/s,"
        f" {card.memory_bytes / _GIB:g} GiB ({card.source})",
        f"model: {shape.num_parameters / 1e9:.3f} billion parameters,"
        f" {shape.kv_bytes_per_token:,} B of KV a token",
    ]
    try:
        pool = kv_pool(
            shape,
            card,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            utilization=utilization,
        )
        lines += _pool_lines(pool, max_num_batched_tokens, max_num_seqs)
    except ConfigError as error:
        lines += ["", f"KV pool: none. {error}"]
    lines += _floor_lines(floor_of(shape, card))
    try:
        lines += _cost_lines(load_cost_model(shape, card, cost_model), block_size)
    except CostFileError as error:
        if cost_model != "calibrated":
            raise
        lines += ["", f"cost model: none. {error}"]
    return "\n".join(lines)


def break_even_bytes_per_s(costs: CostModel, num_tokens: int) -> float:
    """Bandwidth above which moving the KV of ``num_tokens`` out and back beats computing it again."""
    return 2 * num_tokens * costs.shape.kv_bytes_per_token / costs.recompute_time_s(num_tokens, 0)


def swap_choice(costs: CostModel, num_tokens: int, block_size: int) -> SwapChoice:
    """A sequence of ``num_tokens`` in whole blocks, copied as runs copy: each layer's K and V of a block apart."""
    blocks = -(-num_tokens // block_size)
    pieces = blocks * costs.shape.swap_pieces_per_block()
    one_way_s = costs.swap_time_s(blocks * costs.shape.block_bytes(block_size), pieces)
    return SwapChoice(2 * one_way_s, costs.recompute_time_s(num_tokens, 0))


def swap_choice_in_bulk(costs: CostModel, num_tokens: int) -> SwapChoice:
    """The same sequence if its KV were one piece of memory; no run copies so."""
    one_way_s = costs.swap_time_s(num_tokens * costs.shape.kv_bytes_per_token, 1)
    return SwapChoice(2 * one_way_s, costs.recompute_time_s(num_tokens, 0))


def _pool_lines(pool: KvPool, max_num_batched_tokens: int, max_num_seqs: int) -> Iterable[str]:
    usable = pool.utilization * pool.memory_bytes
    left = usable - pool.weight_bytes - pool.activation_bytes - pool.reserve_bytes
    return (
        "",
        "KV pool",
        _gb(f"usable memory, {pool.utilization:g} of {pool.memory_bytes / _GIB:g} GiB nominal", usable),
        _gb("- weights", pool.weight_bytes),
        _gb(
            f"- activations, assumed for {max_num_batched_tokens} tokens, {max_num_seqs} sequences",
            pool.activation_bytes,
        ),
        _gb("- reserve, assumed", pool.reserve_bytes),
        _gb("= left for KV", left),
        f"  / {pool.block_bytes:,} B a block of {pool.block_size} tokens"
        f" = {pool.num_gpu_blocks:,} blocks = {pool.tokens:,} tokens",
    )


def _floor_lines(floor: Floor) -> Iterable[str]:
    return (
        "",
        "hardware floor, which no step undercuts",
        _ms("weights of the layers, read once a step", floor.body_read_s),
        _ms("weights of the head", floor.head_read_s),
        _ms("KV of 1,000 cached tokens", 1000 * floor.context_read_s),
        _ms("matrix work of 1,000 tokens", 1000 * floor.token_s),
    )


def _cost_lines(costs: CostModel, block_size: int) -> list[str]:
    step = costs.file.held_out["step"]
    lines = [
        "",
        f"cost model {costs.name} version {costs.version}, held-out error of the step:"
        f" median {100 * step['median']:.1f} %, p95 {100 * step['p95']:.1f} %",
        "  error of the sum of measured operators, not of measured steps",
        f"  measured up to {costs.file.linear.num_tokens[-1]:,} tokens,"
        f" {costs.file.decode.num_seqs[-1]} sequences, {costs.file.decode.max_context:,} tokens of context",
        f"  decode at context {_CONTEXT_TOKENS}, ms:"
        f" {'linear':>8} {'attention':>9} {'head':>6} {'step':>7} {'floor':>7}",
    ]
    for batch in _BATCHES:
        total = batch * _CONTEXT_TOKENS
        parts = costs.parts(batch, batch, total, _CONTEXT_TOKENS)
        lines.append(
            f"  {batch:4d} sequences {'':14}{1e3 * parts['linear']:8.2f}"
            f" {1e3 * parts['decode_attention']:9.2f} {1e3 * parts['head']:6.2f}"
            f" {1e3 * sum(parts.values()):7.2f} {1e3 * costs.floor.decode_s(batch, total):7.2f}"
        )
    lines += [_ms(f"prefill of {tokens:,} tokens", costs.recompute_time_s(tokens, 0)) for tokens in _CHUNKS]
    return lines + _swap_lines(costs, block_size)


def _swap_lines(costs: CostModel, block_size: int) -> list[str]:
    shape, swap = costs.shape, costs.file.swap
    blocks = -(-_SWAP_TOKENS // block_size)
    pieces = blocks * shape.swap_pieces_per_block()
    piece_bytes = shape.block_bytes(block_size) / shape.swap_pieces_per_block()
    runs, bulk = swap_choice(costs, _SWAP_TOKENS, block_size), swap_choice_in_bulk(costs, _SWAP_TOKENS)
    rate = blocks * shape.block_bytes(block_size) / (runs.out_and_back_s / 2)
    return [
        "",
        f"swap against recompute, a sequence of {_SWAP_TOKENS:,} tokens",
        f"  link {swap.bytes_per_s / 1e9:g} GB/s, {swap.copy_s * 1e6:g} us a copy,"
        f" {swap.fixed_s * 1e3:g} ms fixed",
        f"  as vLLM copies it ({pieces:,} pieces of {piece_bytes / 1024:g} KiB, {rate / 1e9:.1f} GB/s),"
        " which runs use:",
        f"    out and back {1e3 * runs.out_and_back_s:.1f} ms, recompute {1e3 * runs.recompute_s:.1f} ms:"
        f" {runs.winner} wins; preemption_mode = auto decides by this",
        f"  in bulk, which no run uses: {1e3 * bulk.out_and_back_s:.1f} ms: {bulk.winner} would win"
        f" (break-even {break_even_bytes_per_s(costs, _SWAP_TOKENS) / 1e9:.1f} GB/s round trip)",
    ]


def _gb(what: str, num_bytes: float) -> str:
    return f"  {what:62} {num_bytes / 1e9:9.3f} GB"


def _ms(what: str, seconds: float) -> str:
    return f"  {what:62} {seconds * 1e3:9.3f} ms"
