"""Presets in words, for ``policies list`` and ``policies show``."""

from __future__ import annotations

from collections.abc import Sequence

from policies.preset_table import PRESETS, Preset, Rule, Value

_WIDTH = 100
_BLOCKS = {
    "paged": "blocks of block_size tokens, taken as a request grows",
    "reserved": "blocks of block_size tokens, those of max_model_len tokens reserved a request",
    "slot": "one slot of max_model_len tokens a request",
    "token": "token slots, reserved for the whole request when it is admitted",
    "radix": "token slots, taken as a request grows, prefixes shared in a radix tree",
}
_DELIVERY = {
    "step": "each token at the end of its step",
    "batch_end": "all answers of a batch together, when its last request ends",
}


def describe(preset: Preset) -> str:
    """What a preset stands for, its defaults, what is modelled and what is not, and its guarded endings."""
    classes = ", ".join(filter(None, (preset.policy, preset.chunked_policy)))
    facts = [
        ("system", f"{preset.system}, {preset.version}"),
        ("source", preset.source),
        ("policy", classes),
        ("KV memory", _BLOCKS[preset.blocks] + (", block 0 unused" if preset.null_block else "")),
        ("delivery", _DELIVERY[preset.delivery]),
        ("host term", preset.host or "none"),
    ]
    width = max(len(label) for label, _ in facts)
    lines = [f"{preset.name}: {preset.summary}", ""]
    lines += [f"  {label:<{width}}  {text}" for label, text in facts]
    lines += ["", "  Defaults, each an engine key of RUN.toml (--set engine.KEY=VALUE):"]
    lines += _defaults(preset)
    lines += _listed("Modelled:", preset.modelled)
    lines += _listed("Not modelled or assumed:", preset.left_out)
    lines += _listed(
        "So that a run always ends (engine.faithful = true: as the real engine):", preset.guarded
    )
    return "\n".join(lines)


def describe_all() -> str:
    """One line a preset: name, system and version, what it does."""
    rows = [(preset.name, f"{preset.system} {preset.version}", preset.summary) for preset in PRESETS.values()]
    name_width, system_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{row[0]:<{name_width}}  {row[1]:<{system_width}}  {row[2]}" for row in rows)


def _defaults(preset: Preset) -> list[str]:
    rows: dict[str, str] = {"max_model_len": "the model's"}
    for key, default in preset.defaults.items():
        rows[key] = default.text if isinstance(default, Rule) else _text(key, default)
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
