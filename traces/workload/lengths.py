"""Laws of prompt and output lengths, in tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from math import exp, expm1, log, log1p, sqrt
from random import Random
from typing import NamedTuple

from policies.core.errors import ConfigError, closest

MAX_TOKENS = 2**31 - 1
"""The longest prompt or output that a row may have."""


class Fixed(NamedTuple):
    """Every length is ``value``."""

    value: int

    def __str__(self) -> str:
        return f"fixed {self.value}"


class Uniform(NamedTuple):
    """Every whole number from ``low`` to ``high``, both included, is equally likely."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"uniform {self.low}..{self.high}"


class Exponential(NamedTuple):
    """Exponential with ``mean``, rounded, at least 1; as if values above ``cap`` were drawn again."""

    mean: float
    cap: int | None = None

    def __str__(self) -> str:
        return f"exponential {self.mean:g}" + (f" up to {self.cap}" if self.cap is not None else "")


class Lognormal(NamedTuple):
    """Lognormal with ``mean`` and coefficient of variation ``cv``, rounded, at least 1; as if values above ``cap``
    were drawn again."""

    mean: float
    cv: float
    cap: int | None = None

    def __str__(self) -> str:
        up_to = f" up to {self.cap}" if self.cap is not None else ""
        return f"lognormal {self.mean:g}, cv {self.cv:g}{up_to}"


LengthLaw = Fixed | Uniform | Exponential | Lognormal

LAWS = (Fixed, Uniform, Exponential, Lognormal)
"""All laws of lengths."""

_LAWS: dict[str, type[Fixed] | type[Uniform] | type[Exponential] | type[Lognormal]] = {
    "fixed": Fixed,
    "uniform": Uniform,
    "exponential": Exponential,
    "lognormal": Lognormal,
}


def draw_lengths(law: LengthLaw, random_stream: Random) -> Iterator[int]:
    """Endless lengths of ``law``: exactly one number of the stream each, so that request i keeps its draw."""
    if isinstance(law, Fixed):
        return repeat(law.value)
    if isinstance(law, Uniform):
        return _uniform(law, random_stream)
    return _lognormal(law, random_stream) if isinstance(law, Lognormal) else _exponential(law, random_stream)


def _uniform(law: Uniform, random_stream: Random) -> Iterator[int]:
    low, width, draw = law.low, law.high - law.low + 1, random_stream.random
    while True:
        yield low + int(width * draw())


def _exponential(law: Exponential, random_stream: Random) -> Iterator[int]:
    """Inverts the distribution cut half a token above ``cap``: what redrawing gives, without a loop."""
    mean, draw = law.mean, random_stream.random
    highest = MAX_TOKENS if law.cap is None else law.cap
    kept = -expm1(-(highest + 0.5) / mean)
    while True:
        length = round(-mean * log1p(-kept * draw()))
        yield 1 if length < 1 else length if length < highest else highest


def _lognormal(law: Lognormal, random_stream: Random) -> Iterator[int]:
    """Inverts the distribution cut half a token above ``cap``, as ``_exponential`` does."""
    from statistics import NormalDist  # 10 ms, for this law alone

    draw, inverse = random_stream.random, NormalDist().inv_cdf
    variance = log1p(law.cv * law.cv)
    location, width = log(law.mean) - variance / 2, sqrt(variance)
    highest = MAX_TOKENS if law.cap is None else law.cap
    kept = NormalDist().cdf((log(highest + 0.5) - location) / width)
    while True:
        share = kept * draw()
        # Far out in the upper tail of a wide law the exponential may overflow.
        power = location + width * inverse(share) if share > 0.0 else 0.0
        length = round(exp(power)) if power < 40.0 else highest
        yield 1 if length < 1 else length if length < highest else highest


def parse_law(table: object, where: str) -> LengthLaw:
    """A law from ``{dist = "uniform", low = 50, high = 200}`` and the like; ``where`` is the key for
    messages.

    Raises ConfigError for an unknown law or parameter, a missing one, and an impossible value.
    """
    if isinstance(table, LAWS):
        table = law_table(table)
    if not isinstance(table, Mapping) or "dist" not in table:
        raise ConfigError(
            f'{where} = {table!r}: give a table like {{dist = "uniform", low = 50, high = 200}}'
        )
    parameters = {str(name): value for name, value in table.items() if name != "dist"}
    dist = table["dist"]
    if dist not in _LAWS:
        hint = closest(str(dist), _LAWS)
        raise ConfigError(f"{where}.dist = {dist!r}: unknown; known are {', '.join(_LAWS)}{hint}")
    law = _LAWS[dist]
    _check_names(law._fields, law._field_defaults, parameters, f"{where} (dist = '{dist}')")
    for name, value in parameters.items():
        _check_value(name, value, f"{where}.{name}")
    if law is Uniform and parameters["low"] > parameters["high"]:
        raise ConfigError(
            f"{where}: low = {parameters['low']} is above high = {parameters['high']}; swap them"
        )
    return law(**parameters)


def law_table(law: LengthLaw) -> dict[str, object]:
    """The table that ``parse_law`` reads back as ``law``."""
    dist = next(name for name, kind in _LAWS.items() if kind is type(law))
    return {"dist": dist} | {name: value for name, value in law._asdict().items() if value is not None}


def _check_names(
    names: tuple[str, ...], optional: Mapping[str, object], given: Mapping[str, object], where: str
) -> None:
    for name in given:
        if name not in names:
            raise ConfigError(
                f"{where}: unknown key '{name}'; known are {', '.join(names)}{closest(name, names)}"
            )
    for name in names:
        if name not in given and name not in optional:
            raise ConfigError(f"{where}: '{name}' is missing; add {name} = ...")


def _check_value(name: str, value: object, where: str) -> None:
    if name == "cv":
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-3 <= value <= 100:
            raise ConfigError(f"{where} = {value!r}: give a number from 0.001 to 100")
        return
    if name == "mean":
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TOKENS:
            raise ConfigError(f"{where} = {value!r}: give a number of tokens above 0")
    elif isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        raise ConfigError(f"{where} = {value!r}: give a whole number of tokens, at least 1")
