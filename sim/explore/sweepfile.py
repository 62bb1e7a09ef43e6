"""SWEEP.toml: what a sweep varies, over which base, and what it tabulates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from policies.core.errors import ConfigError, closest
from sim.config import merged_tables
from sim.config_keys import Kind, Section, choice, impossible, key, table_of, text, whole
from sim.config_toml import read_toml, toml_document
from sim.explore.limits import Limit, parse_limit
from sim.explore.metrics import metric
from sim.explore.space import Settings, Space, check_key, grid_points, parse_space, random_points

Method = Literal["grid", "random", "search"]
METHODS: tuple[Method, ...] = ("grid", "random", "search")
DEFAULT_METRICS = (
    "ttft_p50_s", "ttft_p99_s", "itl_p99_s", "e2e_mean_s", "output_tokens_per_s", "finished", "kv_utilization_mean",
)  # fmt: skip
MOST_RUNS = 1_000_000
"""Of a sweep."""
SAMPLERS = ("tpe", "nsga2", "random")
_DIRECTIONS = {"min": "minimize", "max": "maximize"}


def _texts(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple) or not value or not all(isinstance(one, str) for one in value):
        raise impossible(where, value, "give a list of texts")
    return tuple(value)


_list = Kind("list of texts", _texts)


class SweepConfig(Section):
    """The table [sweep]."""

    _table = "sweep"
    _meant: ClassVar[Mapping[str, str]] = {
        "n": "num_points", "points": "num_points", "trials": "num_points", "n_trials": "num_points", "seeds": "repeats",
    }  # fmt: skip

    base: str | None = key(
        text, "RUN.toml under every point, seen from here; or write [base.workload] ...", default=None
    )
    num_points: int | None = key(whole(1, at_most=1_000_000), "Points of [random] or [search].", default=None)
    repeats: int = key(whole(1, at_most=1_000), "Runs of each point, each with the next workload seed.", default=1)
    seed: int = key(whole(0), "Decides which points are drawn; the requests have their own seed.", default=0)
    metrics: tuple[str, ...] = key(_list, "Columns of the table.", default=DEFAULT_METRICS)
    latency: str = key(text, "Metric of latency, for response curves and the Pareto front.", default="e2e_mean_s")
    throughput: str = key(text, "Metric of throughput, likewise.", default="output_tokens_per_s")
    limits: tuple[str, ...] = key(_list, "Limits that the chosen point meets, as in 'ttft_p99_s=0.5'.", default=())

    def _check_together(self) -> None:
        for name in (*self.metrics, self.latency, self.throughput):
            metric(name, "sweep.metrics" if name in self.metrics else "sweep")


class SearchConfig(Section):
    """The keys of [search] beside its space."""

    _table = "search"

    objectives: tuple[str, ...] = key(_list, "What to search for: 'min METRIC' or 'max METRIC'.", default=())
    sampler: str = key(choice(*SAMPLERS), "How Optuna draws the next points.", default="tpe")
    batch: int = key(whole(1, at_most=10_000), "Points drawn at once, before their results are known.", default=8)


class Objective(NamedTuple):
    """A metric and the direction in which it gets better, in Optuna's words."""

    metric: str
    direction: str


class SweepSpec(NamedTuple):
    """A sweep, checked. ``base`` are the tables of the RUN.toml under every point."""

    base: dict[str, dict[str, object]]
    config: SweepConfig
    method: Method
    space: Space
    search: SearchConfig
    objectives: tuple[Objective, ...]
    limits: tuple[Limit, ...]
    workload_seed: int

    @property
    def num_points(self) -> int:
        """How many points it has."""
        return sum(1 for _ in self.points()) if self.method == "grid" else self.config.num_points or 0

    def points(self) -> Iterator[Settings]:
        """The settings of every point of a grid or of random ones, in order."""
        if self.method == "grid":
            return grid_points(self.space, "grid")
        return random_points(self.space, self.config.seed, self.config.num_points or 0)

    def seeds(self) -> Sequence[int]:
        """The workload seeds of the repeats of each point: the same for all of them, so that points are compared on
        the same requests."""
        return [self.workload_seed + repeat for repeat in range(self.config.repeats)]

    def to_toml(self) -> str:
        """The whole sweep as one SWEEP.toml."""
        sweep = {name: value for name, value in self.config.to_dict().items() if name != "base"}
        tables: dict[str, Mapping[str, object]] = {"sweep": sweep}
        tables |= {f"base.{name}": table for name, table in self.base.items()}
        own = self.search.to_dict() if self.method == "search" else {}
        tables[self.method] = {**own, **{f'"{name}"': domain.to_toml() for name, domain in self.space.items()}}
        return toml_document(tables)


def load_sweep(source: str | Path | Mapping[str, object], overrides: Sequence[str] = ()) -> SweepSpec:
    """The sweep in a SWEEP.toml, or in its tables; ``overrides`` (``"section.key=value"``) come on top of its base.

    Raises ConfigError for whatever is wrong in it, the base included; a value that a single point cannot have is found
    when that point runs.
    """
    folder = Path()
    if isinstance(source, str | Path):
        folder, source = Path(source).parent, read_toml(str(source))
    known = ("sweep", "base", *METHODS)
    for name in source:
        if name not in known:
            raise ConfigError(f"{name}: unknown table of a sweep; known are {', '.join(known)}{closest(name, known)}")
    settings: dict[str, Any] = table_of(source.get("sweep", {}), "sweep")
    config = SweepConfig(**settings)
    method = _method(source, config)
    table = table_of(source[method], method)
    own: dict[str, Any] = {name: table.pop(name) for name in SearchConfig.all_keys() if name in table}
    if own and method != "search":
        raise ConfigError(f"{method}.{next(iter(own))}: is a key of [search]; leave it out")
    search = SearchConfig(**own)
    objectives = _objectives(search) if method == "search" else ()
    space = parse_space(table, method)
    base = _base(source, config, folder, overrides)
    spec = SweepSpec(
        base,
        config,
        method,
        space,
        search,
        objectives,
        tuple(_limit(text) for text in config.limits),
        _workload_seed(base, space),
    )
    if (runs := spec.num_points * config.repeats) > MOST_RUNS:
        raise ConfigError(
            f"sweep: {spec.num_points:,} points with {config.repeats:,} repeats each are {runs:,} runs,"
            f" more than {MOST_RUNS:,}; give fewer"
        )
    return spec


def _limit(text: str) -> Limit:
    limit = parse_limit(text, "sweep.limits")
    if not limit.of_all:
        raise ConfigError(f"sweep.limits: '{text}': a sweep knows one number for all prompts; leave out the prompt")
    return limit


def _method(source: Mapping[str, object], config: SweepConfig) -> Method:
    given = [name for name in METHODS if name in source]
    if len(given) != 1:
        what = f"{' and '.join(f'[{name}]' for name in given)} are all given" if given else "nothing is varied"
        raise ConfigError(f"sweep: {what}; give one of [grid], [random], [search]")
    method = given[0]
    if method == "grid" and config.num_points is not None:
        raise ConfigError("sweep.num_points: a grid has as many points as its values make; leave it out")
    if method != "grid" and config.num_points is None:
        raise ConfigError(f"sweep.num_points is missing: say how many points [{method}] draws")
    return method


def _objectives(search: SearchConfig) -> tuple[Objective, ...]:
    if not search.objectives:
        raise ConfigError("search.objectives is missing: say what to search for, as in ['min ttft_p99_s']")
    found: list[Objective] = []
    for words in search.objectives:
        direction, _, name = words.strip().partition(" ")
        if direction not in _DIRECTIONS or not name.strip():
            raise ConfigError(f"search.objectives: '{words}': write 'min METRIC' or 'max METRIC'")
        metric(name.strip(), "search.objectives")
        if any(name.strip() == other.metric for other in found):
            raise ConfigError(f"search.objectives: {name.strip()} is given twice; leave one out")
        found.append(Objective(name.strip(), _DIRECTIONS[direction]))
    return tuple(found)


def _base(
    source: Mapping[str, object], config: SweepConfig, folder: Path, overrides: Sequence[str]
) -> dict[str, dict[str, object]]:
    """The tables under every point. What they lack may come from the points, so they need not make a run by
    themselves; unknown sections and keys are found here."""
    tables: Mapping[str, object] = table_of(source.get("base", {}), "base")
    if config.base is not None:
        if tables:
            raise ConfigError("sweep.base and [base] are both given; leave one out")
        path = folder / config.base
        tables = read_toml(str(path))
        try:
            merged_tables(tables)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    base = merged_tables(tables, overrides)
    for section, table in base.items():
        for name in table:
            check_key(f"{section}.{name}", "base")
    return base


def _workload_seed(base: Mapping[str, Mapping[str, object]], space: Space) -> int:
    if "workload.seed" in space:
        raise ConfigError("workload.seed: is not varied as a key; give sweep.repeats = N for N seeds of each point")
    seed = base.get("workload", {}).get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise impossible("workload.seed", seed, "give a whole number of at least 0")
    return seed
