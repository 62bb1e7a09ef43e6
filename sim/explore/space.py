"""What a sweep varies: keys of RUN.toml, each with values to choose from or a range to draw from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, product
from random import Random
from typing import Any, NamedTuple

from policies.core.errors import ConfigError, closest
from sim.config import SECTIONS
from sim.config_keys import impossible
from sim.config_toml import toml_value

Settings = dict[str, object]
"""Key of RUN.toml (``engine.max_num_seqs``) and value."""

_MOST_VALUES = 1_000_000
_MOST_WHOLE = 2**63 - 1
"""More does not fit a column of a table."""
_MOST_MISSES = 100_000
"""Draws in a row that give no new random point, after which there is taken to be none."""
_RANGE_KEYS = ("low", "high", "num", "log")


def as_written(value: Any) -> Any:
    """A value as SWEEP.toml and a table show it: a float with twelve digits at most."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


class Choices(NamedTuple):
    """Any of these values."""

    values: tuple[object, ...]

    def grid(self, where: str) -> Sequence[object]:
        """All of them."""
        return self.values

    @property
    def size(self) -> float:
        """How many values it has."""
        return len(self.values)

    def draw(self, random: Random) -> object:
        """One of them, each as likely."""
        return self.values[random.randrange(len(self.values))]

    def to_toml(self) -> object:
        """As it is written in SWEEP.toml."""
        return list(self.values)


class Range(NamedTuple):
    """From ``low`` to ``high``, both included; whole numbers where both are. ``log``: evenly in the logarithm.
    ``num`` is how many values a grid takes."""

    low: float
    high: float
    log: bool = False
    num: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> float:
        """The value at a share of the way from ``low`` (0) to ``high`` (1)."""
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        value = min(max(value, self.low), self.high)
        return round(value) if self.is_whole else as_written(value)

    def grid(self, where: str) -> Sequence[object]:
        """``num`` values from low to high, equal ones once."""
        if self.num is None:
            raise ConfigError(f"{where}: a grid needs to know how many values; add num, or list the values")
        shares = [place / (self.num - 1) for place in range(self.num)] if self.num > 1 else [0.0]
        return list(dict.fromkeys(self.at(share) for share in shares))

    @property
    def size(self) -> float:
        """How many values it has."""
        return int(self.high) - int(self.low) + 1 if self.is_whole else math.inf

    def draw(self, random: Random) -> object:
        """One of them, each as likely."""
        if self.is_whole and not self.log:
            return random.randint(int(self.low), int(self.high))
        return self.at(random.random())

    def to_toml(self) -> object:
        """As it is written in SWEEP.toml."""
        return {name: value for name, value in self._asdict().items() if value is not None and value is not False}


Domain = Choices | Range
Space = dict[str, Domain]


def parse_space(table: Mapping[str, object], where: str) -> Space:
    """The keys and domains of a table of SWEEP.toml such as [grid]; keys are ``"engine.max_num_seqs"`` or nested
    tables. Raises ConfigError."""
    space: Space = {}
    for name, value in _flat(table, ""):
        check_key(name, where)
        if name in space:
            raise ConfigError(f"{where}.{name}: given twice; leave one out")
        space[name] = _domain(value, f"{where}.{name}")
    if not space:
        raise ConfigError(
            f'[{where}] is empty; name a key of RUN.toml and its values, as in "engine.max_num_seqs" = [64, 128, 256]'
        )
    return space


def check_key(name: str, where: str) -> None:
    """Raise ConfigError unless RUN.toml has such a key."""
    section, _, rest = name.partition(".")
    if section not in SECTIONS:
        known = ", ".join(SECTIONS)
        raise ConfigError(f"{where}.{name}: unknown section '{section}'; known are {known}{closest(section, SECTIONS)}")
    key = rest.partition(".")[0]
    keys = SECTIONS[section].all_keys()
    if not key:
        example = next(iter(keys), "KEY")
        raise ConfigError(f"{where}.{name}: is a section; name one of its keys, as in {section}.{example}")
    if keys and key not in keys:
        raise ConfigError(f"{where}.{name}: unknown key; 'batchscope keys {section}' lists all{closest(key, keys)}")


def grid_points(space: Space, where: str) -> Iterator[Settings]:
    """All combinations, the last key changing fastest."""
    values = [domain.grid(f"{where}.{name}") for name, domain in space.items()]
    size = math.prod(map(len, values))
    if size > _MOST_VALUES:
        raise ConfigError(f"[{where}] has {size:,} points, more than are run; give fewer values, or use [random]")
    return (dict(zip(space, point, strict=True)) for point in product(*values))


def random_points(space: Space, seed: int, num_points: int) -> Iterator[Settings]:
    """The first of an endless series of random points, all different; more of them change none. Raises ConfigError
    where there are not that many."""
    size = math.prod(domain.size for domain in space.values())
    if num_points > size:
        raise ConfigError(f"sweep.num_points = {num_points}: [random] has no more than {size:g} different points")
    seen: set[str] = set()
    last = 0
    for number in count():
        if len(seen) == num_points:
            return
        if number - last > _MOST_MISSES:
            raise ConfigError(
                f"sweep.num_points = {num_points}: [random] finds no more than {len(seen)} different points"
            )
        point = {name: domain.draw(Random(f"{seed}/{number}/{name}")) for name, domain in space.items()}
        if (text := canonical(point)) not in seen:
            seen.add(text)
            last = number
            yield point


def canonical(settings: Mapping[str, object]) -> str:
    """The same text for the same settings."""
    return json.dumps(settings, sort_keys=True, separators=(",", ":"))


def _flat(table: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
    """Nested tables as dotted keys, down to lists and ranges."""
    for name, value in table.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping) and not _is_range(value):
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _is_range(value: Mapping[str, object]) -> bool:
    return "low" in value or "high" in value


def _domain(value: object, where: str) -> Domain:
    if isinstance(value, Mapping):
        return _range(value, where)
    if not isinstance(value, list | tuple):
        raise impossible(where, value, "give a list of values, or {low = ..., high = ..., num = ..., log = true}")
    if not value:
        raise ConfigError(f"{where} = []: give at least one value")
    seen: set[str] = set()
    for one in value:
        _check_value(one, where)
        if (text := canonical({"": one})) in seen:
            raise ConfigError(f"{where}: {toml_value(one)} is given twice; leave one out")
        seen.add(text)
    return Choices(tuple(value))


def _check_value(value: object, where: str) -> None:
    """Raise ConfigError for a value that no table can hold, at any depth: dates, infinite and too large numbers."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_value(inner, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_value(inner, where)
    elif isinstance(value, int | float):
        if not math.isfinite(value) or (isinstance(value, int) and abs(value) > _MOST_WHOLE):
            raise impossible(where, value, "give finite numbers, whole ones of at most 64 bits")
    elif not isinstance(value, str):
        raise impossible(where, value, "give numbers, texts, true or false, lists or tables")


def _range(table: Mapping[str, object], where: str) -> Range:
    for name in table:
        if name not in _RANGE_KEYS:
            known = ", ".join(_RANGE_KEYS)
            raise ConfigError(f"{where}.{name}: unknown; a range has {known}{closest(name, _RANGE_KEYS)}")
    low, high = (_number(table.get(name), f"{where}.{name}") for name in ("low", "high"))
    log, num = table.get("log", False), table.get("num")
    if not isinstance(log, bool):
        raise impossible(f"{where}.log", log, "give true or false")
    if num is not None and (isinstance(num, bool) or not isinstance(num, int) or not 1 <= num <= _MOST_VALUES):
        raise impossible(f"{where}.num", num, f"give a whole number of at least 1 and of at most {_MOST_VALUES}")
    if low >= high:
        raise ConfigError(f"{where}: low = {low:g} is not below high = {high:g}")
    if log and low <= 0:
        raise ConfigError(f"{where}: log needs low above 0")
    return Range(low, high, log, num)


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
        raise impossible(where, "" if value is None else value, "give a number")
    if isinstance(value, int) and abs(value) > _MOST_WHOLE:
        raise impossible(where, value, "give a whole number of at most 64 bits")
    return value
