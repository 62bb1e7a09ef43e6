"""Settings of a run from a real engine: its command line, its start-up log, its /metrics page.

What RUN.toml and ``--set`` say stays; of the rest the command line counts before the page and the page before the log.
Every setting that is taken is said with where it came from, and so is every contradiction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from policies.core.errors import ConfigError
from policies.preset import Preset
from policies.preset_table import POOL_BLOCK_SIZE, PRESETS
from sim.config_toml import toml_value
from sim.engine_args import parse_command
from sim.engine_flags import VALUES, Meaning, Value, meaning_of
from sim.engine_log import Found, read_log, read_metrics

Tables = dict[str, dict[str, object]]

_ARGS = "--vllm-args"
_DEFAULT = "vllm-0.11"
_DEFAULT_MODEL = "llama-2-7b"


class Told(NamedTuple):
    """What to tell the user: a line for each setting ``taken``, and ``remarks`` on the rest."""

    taken: tuple[str, ...]
    remarks: tuple[str, ...]


def take_facts(tables: Tables, engine_log: str | None, metrics_page: str | None) -> Told:
    """Put the settings of the sources, and of ``engine.vllm_args``, into tables of a RUN.toml; raises ConfigError."""
    log = read_log(engine_log) if engine_log is not None else []
    facts = _Facts(tables, log)
    arguments = tables.get("engine", {}).get("vllm_args")
    if arguments is not None:
        if not isinstance(arguments, str):
            raise ConfigError(f"engine.vllm_args = {toml_value(arguments)}: give a text")
        # A variant of the preset first: it decides what the others mean.
        for name, value in sorted(parse_command(arguments), key=lambda pair: pair[0] != "num-scheduler-steps"):
            facts.add(Found(name, value, f"{_ARGS} {_shown(name, value)}"), strict=True)
        facts.end_source()
    if metrics_page is not None:
        facts.add_all(read_metrics(metrics_page))
    facts.add_all(log)
    return facts.settle()


def _shown(name: str, value: Value) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"


class _Facts:
    """Collects what the sources say, the most trusted first."""

    def __init__(self, tables: Tables, log: Sequence[Found]) -> None:
        self._tables = tables
        self._kept: dict[str, tuple[object, str]] = {}
        self._source: dict[str, tuple[object, str]] = {}
        self._ignored: list[str] = []
        self._untimed: list[str] = []
        self._remarks: list[str] = []
        self._preset = self._choose_preset(log)

    # -- the preset ------------------------------------------------------------------------------------------

    def _choose_preset(self, log: Sequence[Found]) -> Preset:
        """The configured preset, else that of the log's version, else the default."""
        engine = self._tables.get("engine", {})
        policy, name = engine.get("policy"), engine.get("preset")
        given = policy if policy in PRESETS else name
        version = _version_of(log)
        if given is None and version is not None:
            nearest = _nearest_preset(version.numbers, version.engine)
            self._kept["engine.preset"] = nearest.name, version.where
            given = nearest.name
        preset = PRESETS.get(str(given or _DEFAULT))
        if preset is None:
            return PRESETS[_DEFAULT]  # the name is refused when the configuration is made
        if preset.system != "vLLM":
            raise ConfigError(
                f"engine.preset = '{preset.name}': is {preset.system}'s; arguments, logs and pages of vLLM are for "
                "presets of vLLM, such as vllm-0.11"
            )
        if version is not None and (version.numbers, version.engine) != (_numbers(preset.version), _engine_of(preset)):
            self._remarks.append(
                f"{version.where}: vLLM {version.text} ({version.engine}), but preset {preset.name} models "
                f"{preset.version}"
            )
        return preset

    # -- collecting ------------------------------------------------------------------------------------------

    def add_all(self, found: Sequence[Found]) -> None:
        """A whole source that only reports: what is not modelled in it is said, not refused."""
        for part in found:
            if part.name == "kv-cache-tokens":
                self._put("kv-cache-tokens", self._number(part), part.where)
            elif part.name == "num-gpu-blocks":
                self._put("engine.num_gpu_blocks", self._number(part), part.where)
            elif part.name == "swap-space-bytes":
                if "swap_space_bytes" in self._preset.defaults:
                    self._put("engine.swap_space_bytes", self._number(part), part.where)
            elif part.name not in ("version", "engine"):
                self.add(part, strict=False)
        self.end_source()

    def _number(self, part: Found) -> int | None:
        """The whole number that a line gives; None where there is none, which is told if it says something else."""
        if not part.value:
            return None
        try:
            return int(float(str(part.value)))
        except (ValueError, OverflowError):
            text = str(part.value)
            shown = text if len(text) <= 20 else f"{text[:20]}..."
            self._remarks.append(f"{part.where}: {part.name} is '{shown}', which is no number here; left out")
            return None

    def add(self, part: Found, *, strict: bool) -> None:
        """One argument; ``strict``: unknown and unmodelled ones are refused."""
        try:
            meaning = meaning_of(part.name, part.value, self._preset)
        except ConfigError as error:
            section, _, key = VALUES.get(part.name, ("", None))[0].partition(".")
            if key in self._tables.get(section, {}):
                return
            if strict:
                raise
            self._remarks.append(f"{part.where}: {error}")
            return
        if meaning is not None:
            self._note(part, meaning, strict)

    def _note(self, part: Found, meaning: Meaning, strict: bool) -> None:
        if meaning.refused:
            message = f"{_shown(part.name, part.value)}: {meaning.refused}"
            if strict:
                raise ConfigError(message)
            if f"{part.where}: {message}" not in self._remarks:
                self._remarks.append(f"{part.where}: {message}")
        elif meaning.untimed:
            self._untimed.append(_shown(part.name, part.value))
        elif meaning.ignored and strict:
            self._ignored.append(f"--{part.name}")
        for key, value in meaning.sets.items():
            if key == "engine.preset":  # a variant of the preset at hand, whatever that came from
                self._preset = PRESETS[str(value)]
                self._kept[key] = value, part.where
            elif key == "model.name":
                self._put_model(str(value), part.where)
            else:
                self._put(key, value, part.where)

    def _put(self, key: str, value: object, where: str) -> None:
        """Within a source the last one counts, as in a log with several starts."""
        if value is not None:
            self._source[key] = value, where

    def _put_model(self, name: str, where: str) -> None:
        known = _catalog_name(name)
        if known is not None:
            self._put("model.name", known, where)
        elif not {"name", "config"} & self._tables.get("model", {}).keys():
            self._remarks.append(
                f"{where}: model {name} is none of the catalog by that name, {_DEFAULT_MODEL} is simulated; give "
                "model.name or model.config"
            )

    def end_source(self) -> None:
        """What an earlier source said stays; where this one says otherwise, that is told."""
        for key, (value, where) in self._source.items():
            kept = self._kept.setdefault(key, (value, where))
            if kept[0] != value and not key.startswith("kv-"):
                self._remarks.append(
                    f"{key} = {toml_value(kept[0])} ({kept[1]}) counts, although {_clause((value, where))}"
                )
        self._source = {}

    # -- settling --------------------------------------------------------------------------------------------

    def settle(self) -> Told:
        """Write into the tables what they do not say themselves."""
        self._settle_pool()
        taken = []
        for key, (value, where) in self._kept.items():
            section, _, name = key.partition(".")
            table = self._tables.setdefault(section, {})
            if key == "model.name" and "config" in table:
                continue
            own = table.get(name)
            variant = key == "engine.preset" and value in (f"{own}-priority", f"{own}-multi-step")
            if own is None or variant:
                table[name] = value
                taken.append(f"{key} = {toml_value(value)} ({where})")
            elif own != value:
                self._remarks.append(f"{key} = {toml_value(own)} stays, although {_clause((value, where))}")
        if self._ignored:
            self._remarks.append(f"{_ARGS}: without effect here: {', '.join(dict.fromkeys(self._ignored))}")
        if self._untimed:
            untimed = ", ".join(dict.fromkeys(self._untimed))
            self._remarks.append(f"steps are timed as without {untimed}, whose effect is not modelled")
        return Told(
            tuple(taken), (*((f"taken from your engine: {', '.join(taken)}",) if taken else ()), *self._remarks)
        )

    def _settle_pool(self) -> None:
        """Blocks from tokens where only these are known; measured blocks take the place of a share of memory."""
        engine = self._tables.setdefault("engine", {})
        tokens, blocks = self._kept.pop("kv-cache-tokens", None), self._kept.get("engine.num_gpu_blocks")
        size, _ = self._kept.get("engine.block_size", (self._preset.defaults.get("block_size", POOL_BLOCK_SIZE), ""))
        size = engine.get("block_size", size)
        if tokens is not None and isinstance(size, int) and size >= 1:  # any other size is refused later on
            count = int(str(tokens[0])) // size
            if blocks is None:
                self._kept["engine.num_gpu_blocks"] = count, f"{tokens[1]}: {tokens[0]} tokens in blocks of {size}"
            elif blocks[0] != count:
                self._remarks.append(
                    f"{tokens[1]}: {tokens[0]} tokens are not {blocks[0]} blocks of {size}, which count; models with "
                    "several kinds of cache are not modelled"
                )
        if "engine.num_gpu_blocks" in self._kept and "num_gpu_blocks" not in engine:
            self._kept.pop("engine.gpu_memory_utilization", None)
            if "gpu_memory_utilization" in engine:
                value, where = self._kept.pop("engine.num_gpu_blocks")
                stays = f"engine.gpu_memory_utilization = {toml_value(engine['gpu_memory_utilization'])} stays"
                self._remarks.append(f"{stays}, and sets the blocks, although {where} says {value}")
        elif "num_gpu_blocks" in engine:
            self._kept.pop("engine.gpu_memory_utilization", None)


def _clause(fact: tuple[object, str]) -> str:
    return f"{fact[1]} says {toml_value(fact[0])}"


# -- versions and names --------------------------------------------------------------------------------------


class _Version(NamedTuple):
    text: str
    numbers: tuple[int, int]
    engine: str
    where: str


def _version_of(log: Sequence[Found]) -> _Version | None:
    """The last version that a log names, and whether its engine is V0 or V1."""
    versions = [part for part in log if part.name == "version" and _numbers(str(part.value))]
    engines = [str(part.value) for part in log if part.name == "engine"]
    if not versions:
        return None
    numbers = _numbers(str(versions[-1].value)) or (0, 0)
    engine = engines[-1] if engines else "V1" if numbers >= (0, 8) else "V0"
    return _Version(str(versions[-1].value), numbers, engine, versions[-1].where)


def _numbers(version: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})", version)
    return (int(found[1]), int(found[2])) if found else None


def _engine_of(preset: Preset) -> str:
    return "V1" if "V1" in preset.version else "V0"


def _nearest_preset(numbers: tuple[int, int], engine: str) -> Preset:
    """Of the presets with plain defaults, the one of that engine whose version is closest."""

    def distance(preset: Preset) -> int:
        major, minor = _numbers(preset.version) or (0, 0)
        return abs(1_000 * (major - numbers[0]) + minor - numbers[1])

    plain = [preset for preset in PRESETS.values() if re.fullmatch(r"vllm-[\d.]+", preset.name)]
    same = [preset for preset in plain if _engine_of(preset) == engine]
    return min(same or plain, key=distance)


def _catalog_name(name: str) -> str | None:
    """The model of the catalog that a Hugging Face name or a path means; fine-tunes have the shape of their base."""
    from policies.catalog import models

    short = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    for word in ("-hf", "-chat", "-instruct", "-it", "-base"):
        short = short.replace(word, "")
    short = re.sub(r"-v0\.\d$", "", short)
    return next((shape.name for shape in models() if shape.name == short), None)
