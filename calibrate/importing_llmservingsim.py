"""Operator tables of LLMServingSim: those of its profiler 1.0 (dense, per_sequence, attention, skew; microseconds) and
of its older one (layers in nanoseconds, attention as Vidur's)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from calibrate.checks import Limits, products
from calibrate.importing import Group, first_row, unknown_table
from calibrate.importing_vidur import attention_rows
from calibrate.operators import read_rows
from calibrate.profile import Measurement

_LAYER = ("qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")
_NORMS_A_LAYER = 2
_ONCE_A_STEP = ("embedding", "final_layernorm")
_OLD_LAYER = (
    "input_layernorm",
    "q_proj",
    "k_proj",
    "v_proj",
    "rope",
    "o_proj",
    "post_layernorm",
    "gate_proj",
    "up_proj",
    "act_fn",
    "down_proj",
)
_SEQUENCES = 512
"""Rows of the head up to which the older tables are read: they have one for each number of tokens."""

_KNOWN = "dense, per_sequence, attention, skew, and layers and attention of the older profiler"


def measurements(path: Path, group: Group) -> Iterator[Measurement]:
    """The rows of one table, whose kind its columns tell."""
    columns = first_row(path).columns()
    for wanted, read in (
        ({"layer", "tokens", "time_us"}, _dense),
        ({"layer", "sequences", "time_us"}, _per_sequence),
        ({"prefill_chunk", "kv_prefill", "n_decode", "kv_decode"}, _attention),
        ({"regime", "kv_mean", "t_skew_us"}, _skew),
        ({"layer_name", "input", "kv_cache", "latency(ns)"}, _old_layers),
        ({"n_q_head", "kv_cache_size", "prefill_chunk_size", "is_prefill"}, attention_rows),
    ):
        if wanted <= set(columns):
            return read(path, group)
    raise unknown_table(path, "LLMServingSim", columns, _KNOWN)


def _dense(path: Path, group: Group) -> Iterator[Measurement]:
    """The operators of a layer summed; what runs once a step is spread over the layers."""
    by_tokens: dict[int, dict[str, float]] = {}
    limits, shape = Limits(group.card), group.shape
    sizes = products(shape)
    for row in read_rows(path):
        layer, tokens, seconds = row.text("layer"), row.integer("tokens"), row.microseconds("time_us")
        by_tokens.setdefault(tokens, {})[layer] = seconds
        if layer in sizes:
            limits.gemm(f"{row.where}, {layer}", tokens, *sizes[layer], seconds, shape)
    for tokens, times in sorted(by_tokens.items()):
        if all(name in times for name in (*_LAYER, "layernorm")):
            seconds = sum(times[name] for name in _LAYER) + _NORMS_A_LAYER * times["layernorm"]
            seconds += sum(times.get(name, 0.0) for name in _ONCE_A_STEP) / shape.layers
            yield Measurement("linear", group.source, seconds, tokens=tokens)


def _per_sequence(path: Path, group: Group) -> Iterator[Measurement]:
    """Output head and sampling together."""
    sums: dict[int, float] = {}
    limits, shape = Limits(group.card), group.shape
    for row in read_rows(path):
        sequences, seconds = row.integer("sequences"), row.microseconds("time_us")
        if row.text("layer") == "lm_head":
            limits.gemm(f"{row.where}, lm_head", sequences, shape.vocab, shape.hidden, seconds, shape)
        sums[sequences] = sums.get(sequences, 0.0) + seconds
    for sequences, seconds in sorted(sums.items()):
        yield Measurement("head", group.source, seconds, sequences=sequences)


def _attention(path: Path, group: Group) -> Iterator[Measurement]:
    """Decode, prefill and mixed steps by which of the two there are."""
    limits, shape = Limits(group.card), group.shape
    for row in read_rows(path):
        chunk, cached = row.integer("prefill_chunk"), row.integer("kv_prefill")
        sequences, context = row.integer("n_decode"), row.integer("kv_decode")
        operator = "decode" if not chunk else "mixed" if sequences else "prefill"
        found = Measurement(
            operator,
            group.source,
            row.microseconds("time_us"),
            sequences=sequences,
            context=context,
            chunks=1 if chunk else 0,
            chunk_tokens=chunk,
            chunk_context=cached,
        )
        limits.measurement(row.where, found, shape)
        yield found


def _skew(path: Path, group: Group) -> Iterator[Measurement]:
    """Batches of unequal contexts, beside even ones."""
    for row in read_rows(path):
        chunk = row.integer("pc")
        yield Measurement(
            "uneven_mixed" if chunk else "uneven",
            group.source,
            row.microseconds("t_skew_us"),
            sequences=row.integer("n"),
            context=row.integer("kv_mean"),
            longest_context=row.integer("kv_big"),
            chunks=1 if chunk else 0,
            chunk_tokens=chunk,
            chunk_context=row.integer("kp"),
            even_seconds=row.microseconds("t_mean_us"),
            longest_seconds=row.microseconds("t_max_us"),
        )


def _old_layers(path: Path, group: Group) -> Iterator[Measurement]:
    """Layers by tokens without cached ones: a layer, its prefill attention, and the head."""
    by_tokens: dict[int, dict[str, float]] = {}
    for row in read_rows(path):
        if row.integer("tp_size") == group.shape.tp and not row.integer("kv_cache"):
            by_tokens.setdefault(row.integer("input"), {})[row.text("layer_name")] = row.number("latency(ns)") * 1e-9
    limits, shape = Limits(group.card), group.shape
    for tokens, times in sorted(by_tokens.items()):
        where = f"{path.name}, input {tokens}"
        if all(name in times for name in _OLD_LAYER):
            seconds = sum(times[name] for name in _OLD_LAYER)
            rows = [Measurement("linear", group.source, seconds, tokens=tokens)]
            if "attn" in times:
                rows.append(
                    Measurement("prefill", group.source, times["attn"], chunks=1, chunk_tokens=tokens, chunk_context=0)
                )
            if "lm_head" in times and tokens <= _SEQUENCES:
                rows.append(Measurement("head", group.source, times["lm_head"], sequences=tokens))
            for found in rows:
                limits.measurement(where, found, shape)
                yield found
