"""RUN.toml: one frozen section per component, checked when it is made.

Every key is also a ``--set section.key=value``. A key that is absent (None) leaves the choice to the preset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from policies.core.errors import ConfigError, closest
from sim.config_keys import Section, boolean, choice, impossible, key, number, table_of, text, whole
from sim.config_toml import parse_overrides, read_toml, toml_document
from traces.workload.lengths import Exponential, Fixed, LengthLaw, Uniform, law_table, parse_law
from traces.workload.limits import MaxTokensRule, check_rule
from traces.workload.spec import OverLength

GENERATORS = ("poisson", "gamma", "constant", "closed-loop")
RECORDS = ("requests", "steps", "tokens", "decisions")

_positive = number(above=0)
_rate = number(at_least=1e-6, at_most=1e9)  # a double of simulated seconds keeps parts of a step beyond these
_pause = number(at_least=0, at_most=1e9)
_count = whole(1)
_seed = whole(0)


class WorkloadConfig(Section):
    """What is sent: a ``trace`` file or a ``generator``.

    Generators: ``poisson``, ``gamma`` (with ``cv``) and ``constant`` send ``num_requests`` at ``rate_per_s``;
    ``closed-loop`` sends them from ``concurrency`` clients. ``concurrency`` with a trace makes its clients
    take the rows in turn. ``rate_scale`` multiplies the rate of either; ``limit`` keeps the first rows. A
    relative ``trace`` is looked up from where the command runs.
    """

    _table = "workload"

    trace: str | None = key(text, default=None)
    generator: Literal["poisson", "gamma", "constant", "closed-loop"] | None = key(
        choice(*GENERATORS), default=None
    )
    rate_per_s: float | None = key(_rate, default=None)
    cv: float | None = key(number(at_least=1e-3, at_most=1e6), default=None)
    num_requests: int | None = key(whole(1, at_most=10**12), default=None)
    prompt: LengthLaw | None = key(parse_law, default=None)
    output: LengthLaw | None = key(parse_law, default=None)
    rate_scale: float = key(_rate, default=1.0)
    limit: int | None = key(_count, default=None)
    concurrency: int | None = key(_count, default=None)
    think_time_s: float = key(_pause, default=0.0)
    max_tokens: MaxTokensRule = key(check_rule, default=None)
    abort_after_s: float | None = key(_positive, default=None)
    over_length: OverLength = key(choice("cut", "reject"), default="cut")
    seed: int = key(_seed, default=0)

    def _check_together(self) -> None:
        if self.trace is None and self.generator is None:
            raise ConfigError("workload: nothing to send; give workload.trace = FILE or workload.generator")
        if self.trace is not None and self.generator is not None:
            raise ConfigError("workload: trace and generator are both given; leave one out")
        source = "a trace" if self.trace is not None else f"generator = '{self.generator}'"
        needed, unused = _keys_of_source(self)
        for name in needed:
            if getattr(self, name) is None:
                raise ConfigError(f"workload.{name} is missing: {source} needs it")
        for name in unused:
            if getattr(self, name) != self._keys[name].default:
                raise impossible(
                    f"workload.{name}", self.to_dict()[name], f"{source} has no use for it; leave it out"
                )

    def to_dict(self) -> dict[str, object]:
        """Key and value of every key that has one, length laws as tables."""
        return {
            name: law_table(value) if isinstance(value, Fixed | Uniform | Exponential) else value
            for name, value in super().to_dict().items()
        }


def _keys_of_source(config: WorkloadConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that this source cannot do without, and those it has no use for."""
    open_loop = () if config.concurrency else ("think_time_s",)
    if config.trace is not None:
        closed = ("rate_scale",) if config.concurrency else ()
        return (), ("rate_per_s", "cv", "num_requests", "prompt", "output", *open_loop, *closed)
    lengths = ("num_requests", "prompt", "output")
    if config.generator == "closed-loop":
        return ("concurrency", *lengths), ("rate_per_s", "cv", "rate_scale")
    if config.generator == "gamma":
        return ("rate_per_s", "cv", *lengths), ("concurrency", "think_time_s")
    return ("rate_per_s", *lengths), ("cv", "concurrency", "think_time_s")


class EngineConfig(Section):
    """The scheduler: a preset, and what differs from it."""

    _table = "engine"

    preset: str = key(text, default="vllm-0.11")
    policy: str | None = key(text, default=None)
    faithful: bool = key(boolean, default=False)
    max_num_seqs: int | None = key(_count, default=None)
    max_num_batched_tokens: int | None = key(_count, default=None)
    max_model_len: int | None = key(_count, default=None)
    block_size: int | None = key(_count, default=None)
    num_gpu_blocks: int | None = key(_count, default=None)
    gpu_memory_utilization: float | None = key(number(above=0, at_most=1), default=None)
    swap_space_bytes: int | None = key(whole(0, at_most=1 << 42), default=None)
    preemption_mode: Literal["recompute", "swap", "auto"] | None = key(
        choice("recompute", "swap", "auto"), default=None
    )
    watermark: float | None = key(number(at_least=0, below=1), default=None)
    enable_chunked_prefill: bool | None = key(boolean, default=None)
    enable_prefix_caching: bool | None = key(boolean, default=None)
    long_prefill_token_threshold: int | None = key(whole(0), default=None)
    scheduler_reserve_full_isl: bool | None = key(boolean, default=None)
    max_paddings: int | None = key(whole(0), default=None)
    low_chunk_size: int | None = key(whole(0), default=None)
    chunk_schedule_max_tokens: int | None = key(whole(0), default=None)
    chunk_schedule_stages: int | None = key(whole(0, at_most=65_536), default=None)
    batch_wait_timeout_s: float | None = key(_pause, default=None)
    scheduling: str | None = key(text, default=None)
    chunked_prefill_size: int | None = key(whole(0), default=None)
    schedule_conservativeness: float | None = key(number(at_least=0), default=None)
    enable_mixed_chunk: bool | None = key(boolean, default=None)
    ignore_eos: bool | None = key(boolean, default=None)
    preferred_batch_sizes: str | None = key(text, default=None)


class ModelConfig(Section):
    """The model, by its name in the catalog."""

    _table = "model"

    name: str = key(text, default="llama-2-7b")


class HardwareConfig(Section):
    """The card, by its name in the catalog, and its cost model: ``calibrated`` or a cost file."""

    _table = "hardware"

    name: str = key(text, default="a100-80gb")
    cost_model: str = key(text, default="calibrated")


class SimConfig(Section):
    """How the simulation runs. ``skip_ahead = false`` steps through every step, to the same record."""

    _table = "sim"

    skip_ahead: bool = key(boolean, default=True)
    record: Literal["requests", "steps", "tokens", "decisions"] = key(choice(*RECORDS), default="requests")
    max_time_s: float | None = key(_positive, default=None)
    seed: int = key(_seed, default=0)


class SloConfig(Section):
    """Latency limits of every request, in seconds; absent is no limit."""

    _table = "slo"

    ttft_s: float | None = key(_positive, default=None)
    itl_s: float | None = key(_positive, default=None)
    tpot_s: float | None = key(_positive, default=None)
    e2e_s: float | None = key(_positive, default=None)


class RunConfig(NamedTuple):
    """Everything that decides a run."""

    workload: WorkloadConfig
    engine: EngineConfig = EngineConfig()
    model: ModelConfig = ModelConfig()
    hardware: HardwareConfig = HardwareConfig()
    sim: SimConfig = SimConfig()
    slo: SloConfig = SloConfig()

    def to_dict(self) -> dict[str, dict[str, object]]:
        """Section, key and value of every key that has a value, in plain types (for ``summary.json``)."""
        return {name: section.to_dict() for name, section in self._asdict().items()}

    def to_toml(self) -> str:
        """A RUN.toml that ``load_config`` reads back as this very configuration."""
        return toml_document(self.to_dict())


_SECTIONS: dict[str, type[Section]] = {
    "workload": WorkloadConfig,
    "engine": EngineConfig,
    "model": ModelConfig,
    "hardware": HardwareConfig,
    "sim": SimConfig,
    "slo": SloConfig,
}

FLAGS = {
    "trace": "workload.trace",
    "limit": "workload.limit",
    "preset": "engine.preset",
    "policy": "engine.policy",
    "model": "model.name",
    "hardware": "hardware.name",
    "cost_model": "hardware.cost_model",
    "record": "sim.record",
    "max_time_s": "sim.max_time_s",
}
"""The keyword arguments of ``load_config`` and the key that each stands for."""


def load_config(path: str | None = None, overrides: Sequence[str] = (), **flags: object) -> RunConfig:
    """The configuration of a run: the file, over it ``flags`` (see FLAGS; None: not given), over it
    ``overrides``.

    ``overrides`` are ``"section.key=value"`` with a TOML value or a bare word, each key once. A trace given
    outside the file replaces the file's generator with its parameters, and the other way round. Raises
    ConfigError.
    """
    in_file = read_toml(path) if path else {}
    _check_sections(in_file)
    tables = {name: table_of(table, name) for name, table in in_file.items()}
    given: dict[str, dict[str, object]] = {}
    for name, value in flags.items():
        if value is not None:
            _put(given, FLAGS[name].split("."), value)
    _name_preset(given.get("engine", {}))
    for path_, value in parse_overrides(overrides):
        _put(given, path_, value)
    _replace_source(tables.get("workload", {}), given.get("workload", {}))
    for name, table in given.items():
        tables[name] = _merged(tables.get(name, {}), table)
    return config_from_tables(tables)


def config_from_tables(tables: Mapping[str, Mapping[str, object]]) -> RunConfig:
    """The configuration that the tables of a RUN.toml describe; raises ConfigError."""
    _check_sections(tables)
    made = {name: section(**tables.get(name, {})) for name, section in _SECTIONS.items()}
    return RunConfig(**made)  # type: ignore[arg-type]


def _name_preset(engine: dict[str, object]) -> None:
    """``policy`` may name a preset, which then is the preset."""
    from policies.preset_table import PRESETS

    if engine.get("policy") in PRESETS:
        engine["preset"] = engine.pop("policy")


def _check_sections(names: Iterable[str]) -> None:
    for name in names:
        if name not in _SECTIONS:
            known = ", ".join(_SECTIONS)
            raise ConfigError(f"{name}: unknown section; known are {known}{closest(name, _SECTIONS)}")


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


def _replace_source(in_file: dict[str, object], given: Mapping[str, object]) -> None:
    """Takes the file's source of requests out of the way of another kind that the user gives."""
    if "trace" in given and "generator" not in given:
        for name in _OF_GENERATOR:
            in_file.pop(name, None)
    elif "generator" in given and "trace" not in given:
        in_file.pop("trace", None)
