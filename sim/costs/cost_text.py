"""A cost model in words and figures: where it comes from, each term of decode and prefill steps, swap and recompute."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from policies.core.plan import Chunk
from sim.costs.links import link_of
from sim.costs.model import CostModel
from sim.costs.swap import break_even_bytes_per_s, swap_choice, swap_choice_in_bulk

_BATCHES = (1, 4, 8, 16, 32, 64, 128)
_CONTEXT_TOKENS = 512
_CHUNKS = (128, 512, 1024, 2048, 4096)
_SWAP_TOKENS = 1000
_TERMS = ("linear", "all_reduce", "attention", "head", "host", "step", "floor")


def cost_lines(costs: CostModel, block_size: int, pieces_per_block: int | None = None) -> list[str]:
    """Origin and accuracy, the terms of some steps, and where swap beats recompute."""
    return [
        *_origin(costs),
        *_table(f"decode at context {_CONTEXT_TOKENS}, ms", [_decode(costs, batch) for batch in _BATCHES]),
        *_table("prefill of one prompt, ms", [_prefill(costs, tokens) for tokens in _CHUNKS]),
        *_remarks(costs),
        *_swap_lines(costs, block_size, pieces_per_block),
    ]


def ms_line(what: str, seconds: float) -> str:
    """A quantity and its milliseconds, in the columns of the page."""
    return f"  {what:62} {seconds * 1e3:9.3f} ms"


def _origin(costs: CostModel) -> list[str]:
    file = costs.file
    if file.kind == "roofline":
        return [
            "",
            f"cost model: roofline version {costs.version}, no measurement of this model on this card",
            *([] if file.band is None else [f"  {band_text(file.band)}"]),
            *_sources(file.provenance),
        ]
    lines = ["", f"cost model {costs.name} version {costs.version} of {file.date}{_held_out(file.held_out)}"]
    return [
        *lines,
        "  error of the sum of measured operators, not of measured steps",
        f"  measured up to {file.linear.num_tokens[-1]:,} tokens,"
        f" {file.decode.num_seqs[-1]} sequences, {file.decode.max_context:,} tokens of context"
        + (f"; data: {file.data_date}" if file.data_date else ""),
        *_sources(file.provenance),
    ]


def band_text(band: Mapping[str, float]) -> str:
    """How far the roofline was off, in words."""
    return (
        f"accuracy: {band['p5']:.2f} to {band['p95']:.2f} of the measured time in 90 % of {band['runs']} published"
        f" runs of whole batches (median {band['median']:.2f})"
    )


def _held_out(held_out: Mapping[str, Mapping[str, float]]) -> str:
    step = held_out.get("step")
    if step is None:
        return ", held-out error not stated"
    return f", held-out error of the step: median {100 * step['median']:.1f} %, p95 {100 * step['p95']:.1f} %"


def _sources(provenance: Mapping[str, object]) -> list[str]:
    """One line a term: what it was measured on."""
    lines = []
    for term, source in provenance.items():
        inner = source.values() if isinstance(source, Mapping) and "fresh_chunks" in source else (source,)
        texts = dict.fromkeys(text for text in map(_source_text, inner) if text)
        if texts:
            lines.append(f"  {term + ':':18} {'; '.join(texts)}")
    return lines


def _source_text(source: object) -> str:
    if not isinstance(source, Mapping):
        return str(source)
    method = str(source.get("method") or "")
    computed = re.search(r"computed from the [\w-]+'s", method)
    text = str(source.get("origin") or source.get("source") or method)
    return f"{text} ({computed[0]})" if computed else text


def _decode(costs: CostModel, batch: int) -> list[str]:
    total = batch * _CONTEXT_TOKENS
    parts = costs.parts(batch, batch, total, _CONTEXT_TOKENS)
    return _row(f"{batch} sequences", parts, costs.floor.decode_s(batch, total))


def _prefill(costs: CostModel, tokens: int) -> list[str]:
    parts = costs.parts(tokens, 0, 0, 0, (Chunk(0, 0, tokens, True),))
    return _row(f"{tokens:,} tokens", parts, costs.floor.step_s(tokens, 1, 0, tokens * (tokens + 1) // 2))


def _row(name: str, parts: Mapping[str, float], floor_s: float) -> list[str]:
    attention_s = parts["decode_attention"] + parts["prefill_attention"]
    shown = (*(parts[term] for term in ("linear", "all_reduce")), attention_s, parts["head"], parts["host"])
    return [name, *(f"{1e3 * value:.2f}" for value in (*shown, sum(parts.values()), floor_s))]


def _table(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["", f"  {title:26}" + "".join(f"{term.replace('_', '-'):>11}" for term in _TERMS)]
    return [*lines, *(f"    {name:24}" + "".join(f"{cell:>11}" for cell in cells) for name, *cells in rows)]


def _remarks(costs: CostModel) -> list[str]:
    uneven_us = 1e6 * costs.shape.layers * costs.file.decode.uneven_s
    lines = ["", f"  uneven contexts: {uneven_us:.3f} us for each token that the longest has over the mean"]
    graphs = costs.graphs
    if graphs.sizes:
        what = "steps" if graphs.pads_chunks else "decode steps"
        lines.append(f"  CUDA graphs: {what} of up to {graphs.sizes[-1]} tokens are padded to a recorded size")
    if not costs.host.at(1):
        lines.append("  no host term: real servers add host time to every step")
    if costs.shape.tp > 1:
        lines.append(f"  all-reduce, two a layer: {link_of(costs.card, costs.shape.tp).source}")
    return lines


def _swap_lines(costs: CostModel, block_size: int, pieces_per_block: int | None) -> list[str]:
    shape, swap = costs.shape, costs.file.swap
    in_layers = pieces_per_block is None or pieces_per_block == shape.swap_pieces_per_block()
    per_block = shape.swap_pieces_per_block() if pieces_per_block is None else pieces_per_block
    blocks = -(-_SWAP_TOKENS // block_size)
    piece_kib = shape.block_bytes(block_size) / per_block / 1024
    runs = swap_choice(costs, _SWAP_TOKENS, block_size, per_block)
    bulk = swap_choice_in_bulk(costs, _SWAP_TOKENS)
    rate = blocks * shape.block_bytes(block_size) / (runs.out_and_back_s / 2)
    each = "" if shape.tp == 1 else ", each GPU its part over its own link"
    return [
        "",
        f"swap against recompute, a sequence of {_SWAP_TOKENS:,} tokens{each}",
        f"  link {swap.bytes_per_s / 1e9:g} GB/s, {swap.copy_s * 1e6:g} us a copy,"
        f" {swap.fixed_s * 1e3:g} ms fixed",
        f"  {'as vLLM copies it' if in_layers else 'a block at once'} ({blocks * per_block:,} pieces of {piece_kib:g}"
        f" KiB, {rate / 1e9:.1f} GB/s), which runs use:",
        f"    out and back {1e3 * runs.out_and_back_s:.1f} ms, recompute {1e3 * runs.recompute_s:.1f} ms:"
        f" {runs.winner} wins; preemption_mode = auto decides by this",
        f"  in bulk, which no run uses: {1e3 * bulk.out_and_back_s:.1f} ms: {bulk.winner} would win"
        f" (break-even {break_even_bytes_per_s(costs, _SWAP_TOKENS) / 1e9:.1f} GB/s round trip)",
    ]
