"""Presets in words, for ``policies list`` and ``policies show``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from policies.core.errors import closest
from policies.preset_table import POOL_BLOCK_SIZE, PRESETS, Preset, Rule, Value

_WIDTH = 100
_BLOCKS = {
    "paged": "blocks of block_size tokens, taken as a request grows",
    "whole": "blocks of block_size tokens, all that a request can need taken when it starts",
    "reserved": "blocks of block_size tokens, those of max_model_len tokens reserved a request",
    "slot": "one slot of max_model_len tokens a request",
    "cell": "token slots, taken as a request grows",
    "token": "token slots, reserved for the whole request when it is admitted",
    "radix": "token slots, taken as a request grows, prefixes shared in a radix tree",
}
_DELIVERY = {
    "step": "each token at the end of its step",
    "every_k": "the tokens of num_scheduler_steps decode steps together, at the end of the last one",
    "batch_end": "all answers of a batch together, when its last request ends",
}
_POOL = 500
"""Blocks in the example of what ``num_gpu_blocks`` counts."""

_ALLOWED: Mapping[str, str] = {
    "preemption_mode": "recompute, swap, auto",
    "scheduling": "fcfs, lpm, dfs-weight, lof",
    "watermark": "at least 0, below 1",
    "capacity_scheduler_policy": "guaranteed_no_evict, max_utilization, static_batch",
    "context_chunking_policy": "first_come_first_served, equal_progress",
    "length_predictor": "oracle, max_tokens",
}
"""Values of keys that take few; switches take true and false."""


def describe(preset: Preset) -> str:
    """What a preset stands for, its defaults, what is modelled and what is not, and its guarded endings."""
    facts = [
        ("system", f"{preset.system}, {preset.version}"),
        ("source", preset.source),
        *_classes(preset),
        ("KV memory", _BLOCKS[preset.blocks] + (", block 0 unused" if preset.null_block else "")),
        *_pool(preset),
        ("delivery", _DELIVERY[preset.delivery]),
        ("host term", _host(preset)),
        ("CUDA graphs", _graphs(preset)),
    ]
    width = max(len(label) for label, _ in facts)
    lines = [f"{preset.name}: {preset.summary}", ""]
    lines += [f"  {label:<{width}}  {text}" for label, text in facts]
    whose = f", of {preset.defaults_of}" if preset.defaults_of else ""
    lines += ["", f"  Defaults{whose}, each an engine key of RUN.toml (--set engine.KEY=VALUE):"]
    lines += _defaults(preset)
    lines += _listed("Modelled:", preset.modelled)
    lines += _listed("Not modelled or assumed:", preset.left_out)
    lines += _listed(
        "So that a run always ends (engine.faithful = true: as the real engine):", preset.guarded
    )
    return "\n".join(lines)


def _host(preset: Preset) -> str:
    if preset.host is None:
        return "none"
    base_s, per_seq_s, source, parallel_s = preset.host
    parallel = f" + {parallel_s * 1e3:g} ms with several GPUs" if parallel_s else ""
    return f"{base_s * 1e3:g} ms + {per_seq_s * 1e3:g} ms a sequence{parallel} ({source})"


def _graphs(preset: Preset) -> str:
    if preset.graphs is None:
        return "none"
    sizes, pads_chunks = preset.graphs
    what = "steps" if pads_chunks else "decode steps"
    return f"{what} of up to {sizes[-1]} tokens are padded to one of {len(sizes)} sizes"


def describe_all() -> str:
    """One line a preset under the name of its system: name, version, what it does."""
    header = ("preset", "version", "what it does")
    rows = [(preset.system, (preset.name, preset.version, preset.summary)) for preset in PRESETS.values()]
    columns = [header, *(cells for _, cells in rows)]
    name_width, version_width = (max(len(cells[place]) for cells in columns) for place in (0, 1))

    def line(cells: tuple[str, str, str]) -> str:
        return f"  {cells[0]:<{name_width}}  {cells[1]:<{version_width}}  {cells[2]}"

    lines = [line(header)]
    for system, group in groupby(rows, key=lambda row: row[0]):
        lines += [system, *(line(cells) for _, cells in group)]
    return "\n".join(lines)


def to_dict(preset: Preset) -> dict[str, object]:
    """What ``describe`` says, in JSON types; a default that depends on the model or the card is its rule in words
    under ``rule``."""
    defaults: dict[str, object] = {"max_model_len": {"rule": "the model's"}}
    for key, default in preset.defaults.items():
        entry: dict[str, object] = {"rule": default.text} if isinstance(default, Rule) else {"value": default}
        defaults[key] = entry | ({"allowed": _ALLOWED[key]} if key in _ALLOWED else {})
    return {
        "name": preset.name,
        "system": preset.system,
        "version": preset.version,
        "summary": preset.summary,
        "source": preset.source,
        "policy": preset.policy,
        "chunked_policy": preset.chunked_policy,
        "kv_memory": preset.blocks,
        "delivery": preset.delivery,
        "host": preset.host and preset.host._asdict(),
        "graphs": preset.graphs and preset.graphs._asdict(),
        "defaults": defaults,
        "modelled": list(preset.modelled),
        "left_out": list(preset.left_out),
        "guarded": list(preset.guarded),
    }


def unknown(name: str, words: str) -> str:
    """What to tell of a ``name`` that is no preset, as the end of a sentence.

    The presets that begin with it, newest first; else the closest name; else all names. ``words`` say what it is not.
    """
    of_it = newest_first(known for known in PRESETS if name and known.startswith(name))
    if of_it:
        return f"{words}; those that begin so, newest first: {', '.join(of_it)}"
    return words + (closest(name, PRESETS) or f"; known: {', '.join(PRESETS)}")


def newest_first(names: Iterable[str]) -> list[str]:
    """By the first dotted version in each name, largest first; equal ones, and those without, as they were."""
    return sorted(names, key=_version, reverse=True)


def _version(name: str) -> tuple[int, ...]:
    import re  # only a wrong name pays for it

    found = re.search(r"\d+(\.\d+)+", name)
    return tuple(map(int, found[0].split("."))) if found else ()


def _classes(preset: Preset) -> list[tuple[str, str]]:
    if preset.chunked_policy is None:
        return [("policy", preset.policy)]
    return [
        ("policy", f"{preset.policy} without chunked prefill"),
        ("", f"{preset.chunked_policy} with chunked prefill (enable_chunked_prefill)"),
    ]


def _pool(preset: Preset) -> list[tuple[str, str]]:
    """What ``num_gpu_blocks`` counts where the policy's own blocks are others."""
    if preset.blocks not in ("slot", "token", "cell", "radix"):
        return []
    tokens = _POOL * POOL_BLOCK_SIZE
    what = f"{tokens:,} tokens, so {tokens:,} / max_model_len" if preset.blocks == "slot" else f"{tokens:,}"
    return [("", f"engine.num_gpu_blocks = {_POOL}: {_POOL} blocks of {POOL_BLOCK_SIZE} tokens = {what} slots")]


def _defaults(preset: Preset) -> list[str]:
    rows: dict[str, str] = {"max_model_len": "the model's"}
    for key, default in preset.defaults.items():
        text = default.text if isinstance(default, Rule) else _text(key, default)
        rows[key] = f"{text}  (allowed: {_ALLOWED[key]})" if key in _ALLOWED else text
    width = max(map(len, rows))
    from textwrap import wrap

    lines = []
    for key, text in rows.items():
        lines += wrap(
            text, _WIDTH, initial_indent=f"    {key:<{width}}  ", subsequent_indent=" " * (width + 6)
        )
    return lines


def _text(key: str, value: Value) -> str:
    if key.endswith("_bytes"):
        return f"{value} ({int(value) / (1 << 30):g} GiB)"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(title: str, items: Sequence[str]) -> list[str]:
    from textwrap import wrap

    lines = ["", f"  {title}"] if items else []
    for item in items:
        lines += wrap(item, _WIDTH, initial_indent="    - ", subsequent_indent="      ")
    return lines
