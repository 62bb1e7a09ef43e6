"""TOML in and out: files, ``section.key=value`` overrides, and a writer for what a configuration holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from policies.core.errors import ConfigError


def toml_value(value: object) -> str:
    """``value`` as TOML: numbers, booleans, texts, and tables and lists of these in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name} = {toml_value(part)}" for name, part in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value) if isinstance(value, int | float) else str(value)


def toml_document(tables: Mapping[str, Mapping[str, object]]) -> str:
    """One ``[table]`` after the other; empty tables are left out."""
    blocks = [
        "\n".join([f"[{name}]", *(f"{name_} = {toml_value(value)}" for name_, value in table.items())]) + "\n"
        for name, table in tables.items()
        if table
    ]
    return "\n".join(blocks)


def read_toml(path: str) -> dict[str, object]:
    """The tables of a file; raises ConfigError when it is missing or no TOML."""
    import tomllib
    from pathlib import Path

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        remedy = "mend it" if path.endswith(".toml") else "give a RUN.toml (a trace goes to --trace)"
        raise ConfigError(f"{path}: not valid TOML: {str(error).splitlines()[0]}; {remedy}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8; give a RUN.toml") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give the path of a RUN.toml") from None


def parse_overrides(overrides: Sequence[str]) -> Iterator[tuple[list[str], object]]:
    """Path of keys and value of each ``section.key=value``; raises ConfigError, also for a key that comes twice."""
    seen: set[str] = set()
    for override in overrides:
        path, value = parse_override(override)
        name = ".".join(path)
        if name in seen:
            raise ConfigError(f"--set {name}: given twice; leave one out")
        seen.add(name)
        yield path, value


def parse_override(override: str) -> tuple[list[str], object]:
    """Path of keys and value of ``section.key=value``; the value is TOML, and a bare word is a text."""
    name, equals, text = override.partition("=")
    path = [part.strip() for part in name.split(".")]
    if not equals or len(path) < 2 or not all(path) or not text.strip():
        raise ConfigError(f"--set {override}: write section.key=value, for example engine.max_num_seqs=64")
    return path, _parse_value(text.strip(), override)


def _parse_value(text: str, override: str) -> object:
    import tomllib

    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        if text[:1] in ("{", "[", '"', "'"):
            remedy = 'quote each text within it, as in {dist = "fixed", value = 8}'
            raise ConfigError(f"--set {override}: the value is no TOML; {remedy}") from None
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
