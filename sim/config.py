"""RUN.toml: one frozen section per component, checked when it is made.

Every key is also a ``--set section.key=value``. A key that is absent (None) leaves the choice to the preset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from policies.core.errors import ConfigError, closest
from sim.config_keys import Section, table_of
from sim.config_policy import PolicyConfig
from sim.config_price import PriceConfig
from sim.config_sections import (
    EngineConfig,
    HardwareConfig,
    ModelConfig,
    SimConfig,
    SloConfig,
    WorkloadConfig,
)
from sim.config_toml import parse_overrides, read_toml, toml_document

__all__ = [
    "FLAGS",
    "SECTIONS",
    "EngineConfig",
    "HardwareConfig",
    "ModelConfig",
    "RunConfig",
    "SimConfig",
    "SloConfig",
    "WorkloadConfig",
    "config_from_tables",
    "load_config",
    "merged_tables",
]


class RunConfig(NamedTuple):
    """Everything that decides a run."""

    workload: WorkloadConfig
    engine: EngineConfig = EngineConfig()
    model: ModelConfig = ModelConfig()
    hardware: HardwareConfig = HardwareConfig()
    sim: SimConfig = SimConfig()
    slo: SloConfig = SloConfig()
    policy: PolicyConfig = PolicyConfig()
    price: PriceConfig = PriceConfig()

    def to_dict(self) -> dict[str, dict[str, object]]:
        """Section, key and value of every key that has a value, in plain types (for ``summary.json``). [policy] and
        [price] are there only if they have keys."""
        tables = {name: section.to_dict() for name, section in self._asdict().items()}
        for name in ("policy", "price"):
            if not tables[name]:
                del tables[name]
        return tables

    def to_toml(self) -> str:
        """A RUN.toml that ``load_config`` reads back as this very configuration."""
        return toml_document(self.to_dict())


SECTIONS: dict[str, type[Section]] = {
    "workload": WorkloadConfig,
    "engine": EngineConfig,
    "model": ModelConfig,
    "hardware": HardwareConfig,
    "sim": SimConfig,
    "slo": SloConfig,
    "policy": PolicyConfig,
    "price": PriceConfig,
}
"""The tables of RUN.toml by name."""

FLAGS = {
    "trace": "workload.trace",
    "profile": "workload.profile",
    "limit": "workload.limit",
    "preset": "engine.preset",
    "policy": "engine.policy",
    "vllm_args": "engine.vllm_args",
    "model": "model.name",
    "hardware": "hardware.name",
    "cost_model": "hardware.cost_model",
    "record": "sim.record",
    "max_time_s": "sim.max_time_s",
}
"""The keyword arguments of ``load_config`` and the key that each stands for."""


def load_config(
    source: str | Mapping[str, object] | None = None,
    overrides: Sequence[str] = (),
    remarks: list[str] | None = None,
    *,
    engine_log: object = None,
    metrics_page: object = None,
    taken: list[str] | None = None,
    **flags: object,
) -> RunConfig:
    """The configuration of a run: ``source``, over it ``flags`` (see FLAGS; None: not given), over it ``overrides``.

    ``source`` is the path of a RUN.toml, or its tables as a mapping. ``overrides`` are ``"section.key=value"`` with a
    TOML value or a bare word, each key once. A trace given outside the source replaces its generator with its
    parameters, and the other way round; ``remarks`` takes a line that says so. ``engine_log`` and ``metrics_page`` are
    paths of a vLLM log and of its saved /metrics page: what they and ``engine.vllm_args`` say is set where nothing else
    is given; ``taken`` takes a line for each such setting (sim/engine_facts.py). Raises ConfigError.
    """
    tables = merged_tables(source, overrides, remarks, **flags)
    if engine_log is not None or metrics_page is not None or "vllm_args" in tables.get("engine", {}):
        _take_facts(tables, engine_log, metrics_page, remarks, taken)
    return config_from_tables(tables)


def merged_tables(
    source: str | Mapping[str, object] | None,
    overrides: Sequence[str] = (),
    remarks: list[str] | None = None,
    **flags: object,
) -> dict[str, dict[str, object]]:
    """The tables that ``load_config`` checks, for those who go on with tables: ``source`` with ``flags`` and
    ``overrides`` over it. Raises ConfigError for unknown sections and flags; keys and values are not looked at."""
    base = (read_toml(source) if source else {}) if source is None or isinstance(source, str) else source
    _check_sections(base)
    tables = {name: table_of(table, name) for name, table in base.items()}
    given: dict[str, dict[str, object]] = {}
    for name, value in flags.items():
        if name not in FLAGS:
            raise _unknown_flag(name)
        if value is not None:
            _put(given, FLAGS[name].split("."), value)
    _name_preset(given.get("engine", {}))
    for path_, value in parse_overrides(overrides):
        _put(given, path_, value)
    replaced = _replace_source(tables.get("workload", {}), given.get("workload", {}))
    if replaced and remarks is not None:
        remarks.append(replaced)
    for name, table in given.items():
        tables[name] = _merged(tables.get(name, {}), table)
    return tables


def _take_facts(
    tables: dict[str, dict[str, object]],
    engine_log: object,
    metrics_page: object,
    remarks: list[str] | None,
    taken: list[str] | None,
) -> None:
    from sim.engine_facts import take_facts

    paths = [None if path is None else str(path) for path in (engine_log, metrics_page)]
    told = take_facts(tables, *paths)
    if remarks is not None:
        remarks += told.remarks
    if taken is not None:
        taken += told.taken


def _unknown_flag(name: str) -> ConfigError:
    """A keyword that is none, with where the key of that name is to be given."""
    for section, kind in SECTIONS.items():
        if name in kind.all_keys():
            return ConfigError(f"{name}: unknown keyword; give overrides=['{section}.{name}=VALUE']")
    return ConfigError(f"{name}: unknown keyword; known are {', '.join(FLAGS)}{closest(name, FLAGS)}")


def config_from_tables(tables: Mapping[str, Mapping[str, object]]) -> RunConfig:
    """The configuration that the tables of a RUN.toml describe; raises ConfigError."""
    _check_sections(tables)
    # The workload last: that nothing is to be sent is said when there is no mistake in the other sections.
    order = sorted(SECTIONS, key=lambda name: name == "workload")
    made = {name: SECTIONS[name](**tables.get(name, {})) for name in order}
    return RunConfig(**made)  # type: ignore[arg-type]


def _name_preset(engine: dict[str, object]) -> None:
    """``policy`` may name a preset, which then is the preset."""
    from policies.preset_table import PRESETS

    if engine.get("policy") in PRESETS:
        engine["preset"] = engine.pop("policy")


def _check_sections(names: Iterable[str]) -> None:
    for name in names:
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise ConfigError(f"{name}: unknown section; known are {known}{closest(name, SECTIONS)}")


def _put(tables: dict[str, dict[str, object]], path: list[str], value: object) -> None:
    """Sets a value in nested tables; a long path goes into an inline table such as ``workload.prompt``."""
    table = tables.setdefault(path[0], {})
    for name in path[1:-1]:
        inner = table.get(name)
        table[name] = table = dict(inner) if isinstance(inner, Mapping) else {}
    table[path[-1]] = value


def _merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """``above`` over ``below``. A table merges with a table, except that a new ``dist`` starts afresh."""
    merged = dict(below)
    for name, value in above.items():
        old = below.get(name)
        merge = isinstance(value, Mapping) and isinstance(old, Mapping) and "dist" not in value
        merged[name] = _merged(old, value) if merge else value  # type: ignore[arg-type]
    return merged


_OF_GENERATOR = ("generator", "rate_per_s", "cv", "num_requests", "prompt", "output")


def _replace_source(in_file: dict[str, object], given: Mapping[str, object]) -> str:
    """Takes the file's source of requests out of the way of another kind that the user gives; says so if it did.

    A generator given beside or over a profile is only its arrivals, unless lengths are given too."""
    sources = [name for name in ("trace", "profile", "generator") if name in given]
    if not sources or ("trace" in sources and len(sources) > 1):
        return ""
    if "profile" in sources:
        gone = ("trace", *(("prompt", "output") if "generator" in sources else _OF_GENERATOR))
    elif sources == ["trace"]:
        gone = ("profile", *_OF_GENERATOR)
    else:
        gone = ("trace", "profile") if "prompt" in given or "output" in given else ("trace",)
    unused = {name: value for name in gone if (value := in_file.pop(name, None)) is not None}
    if "trace" in unused:
        return f"the {sources[0]} takes the place of workload.trace = {unused['trace']}"
    return f"the {sources[0]} takes the place of the workload's {', '.join(unused)}" if unused else ""
