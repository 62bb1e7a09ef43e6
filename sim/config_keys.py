"""How one section of RUN.toml is declared, checked and written.

A section is a frozen class whose fields are keys: ``rate_per_s: float | None = key(positive, default=None)``.
This does for us what dataclasses would, at a tenth of their import time, and checks each value when an object
is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

from policies.core.errors import ConfigError, closest
from sim.config_toml import toml_value

_MANY_KEYS = 20
"""Of a section with more keys an error does not list them all, which would bury what it says."""

Check = Callable[[object, str], object]
"""Takes a value and its key (``"engine.block_size"``); returns the value to keep or raises ConfigError."""


class Kind(NamedTuple):
    """A kind of value: in words for a reader (``"whole number >= 1"``), and the check that a value is one."""

    words: str
    check: Check


class Key(NamedTuple):
    """One key: the kind of its value, what holds where none is given, and what it does, in a line."""

    kind: Kind
    default: object
    about: str


def key(kind: Kind, about: str, *, default: object) -> Any:
    """Declares a field of a ``Section``. A default of None means that the key may be left out."""
    return Key(kind, default, about)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(key,))
class Section:
    """Base of one table of RUN.toml; subclasses name it in ``_table`` and declare their keys.

    Making one checks every value and raises ConfigError, which names key, value and remedy.
    """

    _table: ClassVar[str]
    _keys: ClassVar[dict[str, Key]]
    _meant: ClassVar[Mapping[str, str]] = {}
    """Words that people try, and the key that each of them means."""
    _refused: ClassVar[Mapping[str, str]] = {}
    """Keys that people expect and that do not exist, and what to do instead."""
    _free_keys: ClassVar[str] = ""
    """Of a section whose keys are the user's own: what kind of value they take."""

    def __init_subclass__(cls) -> None:
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Key)}
        cls._keys = own
        for base in cls.__bases__:
            cls._keys |= getattr(base, "_keys", {})

    def __init__(self, **values: Any) -> None:
        known = self._keys
        for name in values:
            if name in self._refused:
                raise ConfigError(f"{self._table}.{name}: {self._refused[name]}")
            if name not in known:
                meant = self._meant.get(name)
                hint = f"; did you mean '{meant}'?" if meant else closest(name, known)
                many = len(known) > _MANY_KEYS
                listed = f"'batchscope keys {self._table}' lists all" if many else f"known are {', '.join(known)}"
                raise ConfigError(f"{self._table}.{name}: unknown key; {listed}{hint}")
        for name, (kind, default, _) in known.items():
            value = values.get(name, default)
            if value is not default:
                value = kind.check(value, f"{self._table}.{name}")
            object.__setattr__(self, name, value)
        self._check_together()

    def _check_together(self) -> None:
        """Checks between keys; raises ConfigError."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; use replace({name}=...)")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        changed = (
            f"{name}={vars(self)[name]!r}" for name, spec in self._keys.items() if vars(self)[name] != spec.default
        )
        return f"{type(self).__name__}({', '.join(changed)})"

    @classmethod
    def all_keys(cls) -> Mapping[str, Key]:
        """All keys by name, in order."""
        return cls._keys

    @classmethod
    def kind_of_own_keys(cls) -> str:
        """What kind of value the user's own keys take, where it has such keys; else ""."""
        return cls._free_keys

    def replace(self, **changes: Any) -> Self:
        """The same section with some keys changed, checked again."""
        return type(self)(**vars(self) | changes)

    def to_dict(self) -> dict[str, object]:
        """Key and value of every key that has one, in plain types for JSON and TOML."""
        return {name: value for name, value in vars(self).items() if value is not None}


def impossible(where: str, value: object, remedy: str) -> ConfigError:
    """The one wording of a bad value: key, value, what to give instead."""
    return ConfigError(f"{where} = {toml_value(value)}: {remedy}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise impossible(where, value, "give a text")
    return value


text = Kind("text", _text)
"""Any text but the empty one."""


def _boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise impossible(where, value, "give true or false")
    return value


boolean = Kind("true | false", _boolean)
"""True or false."""


def whole(at_least: int, at_most: int | None = None) -> Kind:
    """A whole number of at least ``at_least``, and of at most ``at_most`` if that is given."""
    most = "" if at_most is None else f" and of at most {at_most}"

    def check(value: object, where: str) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < at_least
            or (at_most is not None and value > at_most)
        ):
            raise impossible(where, value, f"give a whole number of at least {at_least}{most}")
        return value

    return Kind(f"whole number >= {at_least}", check)


def number(
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    unit: str = "",
) -> Kind:
    """A finite number within the given bounds; ``unit`` is that of the words."""
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (
            ("above", above),
            ("of at least", at_least),
            ("below", below),
            ("of at most", at_most),
        )
        if bound is not None
    ]

    def check(value: object, where: str) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not -1e300 < value < 1e300  # nan and both infinities fail as well
            or (above is not None and value <= above)
            or (at_least is not None and value < at_least)
            or (below is not None and value >= below)
            or (at_most is not None and value > at_most)
        ):
            raise impossible(where, value, f"give a number {' and '.join(bounds)}")
        return float(value) if isinstance(value, float) else value  # numpy's doubles have another repr

    signs = ((">", above), (">=", at_least), ("<", below), ("<=", at_most))
    limits = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if bound is not None)
    return Kind(f"{unit or 'number'} {limits}", check)


def choice(*names: str) -> Kind:
    """One of ``names``."""

    def check(value: object, where: str) -> str:
        if not isinstance(value, str) or value not in names:
            raise impossible(where, value, f"give one of {', '.join(names)}{closest(str(value), names)}")
        return value

    return Kind(" | ".join(names), check)


def table_of(value: object, where: str) -> dict[str, object]:
    """A TOML table as a dictionary."""
    if not isinstance(value, Mapping):
        raise impossible(where, value, f"this is a table; write [{where}] or --set {where}.KEY=VALUE")
    return dict(value)
