"""``batchscope keys``: every key of RUN.toml and --set, from the declarations that check them."""

from __future__ import annotations

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("section", required=False)
def keys(section: str | None) -> None:
    """Every key of RUN.toml and of --set: its kind of value, its default, and what it does; or those of one SECTION."""
    from policies.core.errors import ConfigError, closest
    from sim.config import SECTIONS

    if section is not None and section not in SECTIONS:
        known = ", ".join(SECTIONS)
        raise ConfigError(f"{section}: unknown section; known are {known}{closest(section, SECTIONS)}")
    shown = SECTIONS if section is None else [section]
    click.echo("\n\n".join(describe_section(name) for name in shown))


def describe_section(name: str) -> str:
    """One section in lines: each key with kind and default, and below it what it does."""
    from sim.config import SECTIONS
    from sim.config_toml import toml_value

    of_presets = _of_presets() if name == "engine" else set()
    lines = [f"[{name}]"]
    if not SECTIONS[name].all_keys():
        lines.append(f"  {name}.KEY = {SECTIONS[name].kind_of_own_keys()}")
        lines.append(f"      {_first_sentence(SECTIONS[name])}")
    for key, (kind, default, about) in SECTIONS[name].all_keys().items():
        absent = "the preset's" if key in of_presets else "none"
        value = absent if default is None else toml_value(default)
        lines += [f"  {name}.{key} = {kind.words}  (default: {value})", f"      {about}"]
    return "\n".join(lines)


def _first_sentence(section: type) -> str:
    """What a section whose keys are free says of itself."""
    import inspect

    return " ".join((inspect.getdoc(section) or "").split()).replace("``", "").split(". ")[0].rstrip(".") + "."


def _of_presets() -> set[str]:
    """Keys for which some preset has a default of its own."""
    from policies.presets import presets

    return {"max_model_len"}.union(*(preset.defaults for preset in presets()))
