"""Workload profiles: what is typical of a trace, in tables of quantiles, as a JSON file of a few kilobytes.

Shipped ones lie in ``data/`` beside this module, each with source, licence, date, and what it only approximates;
``batchscope traces fit`` makes one of any trace.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, cast

from policies.core.errors import TraceError, closest
from policies.json_text import read_json
from traces.workload.lengths import MAX_TOKENS
from traces.workload.prefixes import Sharing
from traces.workload.quantiles import GRID, QuantileTable

SCHEMA = 1
_FOLDER = Path(__file__).parent / "data"


class ArrivalProfile(NamedTuple):
    """When requests come. ``rate_per_s`` is the mean over ``span_s``; ``relative_rate`` divides that span into equal
    slots (mean 1); ``gaps`` are those between requests in units of the mean gap at their time (mean about 1)."""

    rate_per_s: float
    span_s: float
    gaps: QuantileTable
    relative_rate: tuple[float, ...]


class Profile(NamedTuple):
    """What is known of a trace of ``requests`` rows.

    ``output_by_prompt`` are the output lengths of equally many requests each, from those with the shortest prompts to
    those with the longest. Without ``arrivals`` a rate must be given; without ``sharing`` prompts have nothing in
    common. The texts say what it is (``about``), where it is from, and what gets lost (``approximated``).
    """

    name: str
    about: str
    source: str
    licence: str
    recorded: str
    requests: int
    prompt: QuantileTable
    output: QuantileTable
    output_by_prompt: tuple[QuantileTable, ...]
    arrivals: ArrivalProfile | None = None
    sharing: Sharing | None = None
    approximated: tuple[str, ...] = ()

    def share_of_prompts_above(self, tokens: int) -> float:
        """The share of prompts of more than so many tokens."""
        values = self.prompt.values
        place = bisect_right(values, tokens)
        if place == 0 or place == len(values):
            return 1.0 - place / len(values)
        within = (tokens - values[place - 1]) / (values[place] - values[place - 1])
        return 1.0 - (GRID[place - 1] + within * (GRID[place] - GRID[place - 1]))

    def length_class(self, share: float) -> int:
        """The class of prompt lengths of a prompt at that quantile of all prompts, in [0, 1)."""
        return int(share * len(self.output_by_prompt))


def shipped() -> list[str]:
    """Names of the profiles that come with this project."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_profile(name: str) -> Profile:
    """The shipped profile of that name, or the one in the file of that path (``*.json``); raises TraceError."""
    path = _FOLDER / f"{name}.json"
    if name.endswith(".json") or "/" in name:
        path = Path(name)
    elif not path.is_file():
        known = shipped()
        raise TraceError(
            f"workload.profile = '{name}': unknown; known are {', '.join(known)}{closest(name, known)}, or give the "
            "path of a FILE.json of 'batchscope traces fit'"
        )
    try:
        table = read_json(path)
    except OSError as error:
        raise TraceError(f"{name}: cannot be read ({error.strerror}); give a profile, or its path") from None
    except ValueError:
        raise TraceError(f"{name}: no JSON; give a file of 'batchscope traces fit'") from None
    return profile_from(table, name)


def profile_from(table: object, where: str) -> Profile:
    """The profile in a parsed file; raises TraceError that says what is wrong in it."""
    try:
        return _profile(cast("Mapping[str, Any]", table))
    except KeyError as error:
        fault = f"{error} is missing"
    except (ValueError, TypeError, AttributeError) as error:
        fault = str(error) if isinstance(error, _WrongError) else "a value is of the wrong kind"
    raise TraceError(f"{where}: no profile: {fault}; make it with 'batchscope traces fit'")


class _WrongError(ValueError):
    """What is wrong in a profile, in words."""


def _profile(table: Mapping[str, Any]) -> Profile:
    if table.get("schema") != SCHEMA:
        raise _WrongError(f"schema is {table.get('schema')!r}, this version reads {SCHEMA}")
    arrivals, sharing = table.get("arrivals"), table.get("prefixes")
    by_prompt = tuple(_table(values, "output_by_prompt", least=1) for values in table["output_by_prompt"])
    if not by_prompt:
        raise _WrongError("output_by_prompt is empty")
    requests = int(table["requests"])
    if requests < 1:
        raise _WrongError(f"requests = {requests} is below 1")
    return Profile(
        **{name: str(table[name]) for name in ("name", "about", "source", "licence", "recorded")},
        requests=requests,
        prompt=_table(table["prompt_tokens"], "prompt_tokens", least=1),
        output=_table(table["output_tokens"], "output_tokens", least=1),
        output_by_prompt=by_prompt,
        arrivals=None if arrivals is None else _arrivals(arrivals),
        sharing=None if sharing is None else _sharing(sharing, len(by_prompt)),
        approximated=tuple(map(str, table.get("approximated", ()))),
    )


def _arrivals(table: Mapping[str, Any]) -> ArrivalProfile:
    gaps = _table(table["gaps"], "arrivals.gaps")
    relative = tuple(_numbers(table["relative_rate"], "arrivals.relative_rate"))
    rate, span = float(table["rate_per_s"]), float(table["span_s"])
    if not (rate > 0 and span > 0 and isfinite(rate) and isfinite(span)):
        raise _WrongError("arrivals.rate_per_s and span_s must be above 0")
    if gaps.mean() <= 0 or sum(relative) <= 0:
        raise _WrongError("arrivals.gaps and relative_rate must not be all 0")
    return ArrivalProfile(rate, span, gaps, relative)


def _sharing(table: Mapping[str, Any], classes: int) -> Sharing:
    shares = tuple(_numbers(table["share_of_requests"], "prefixes.share_of_requests"))
    parts = tuple(_table(values, "prefixes.shared_part") for values in table["shared_part"])
    distance = _table(table["distance"], "prefixes.distance", least=1)
    block_tokens = int(table["block_tokens"])
    if len(shares) != classes or len(parts) != classes:
        raise _WrongError(f"prefixes need {classes} classes of prompts, as output_by_prompt has")
    if block_tokens < 1 or max(shares) > 1 or max(part.values[-1] for part in parts) > 1:
        raise _WrongError("prefixes: block_tokens must be at least 1, shares and parts at most 1")
    return Sharing(block_tokens, shares, parts, distance)


def _table(values: Sequence[float], where: str, least: float = 0) -> QuantileTable:
    numbers = _numbers(values, where)
    if len(numbers) != len(GRID):
        raise _WrongError(f"{where} has {len(numbers)} quantiles where {len(GRID)} are needed")
    if numbers != sorted(numbers):
        raise _WrongError(f"{where} decreases")
    if not least <= numbers[0] <= numbers[-1] <= MAX_TOKENS:
        raise _WrongError(f"{where} leaves the range from {least:g} to {MAX_TOKENS}")
    return QuantileTable(tuple(numbers))


def _numbers(values: Sequence[float], where: str) -> list[float]:
    for value in values:
        if type(value) not in (int, float) or not isfinite(value) or value < 0:
            raise _WrongError(f"{where} holds {value!r}, which is no number of at least 0")
    return list(values)


def to_json(profile: Profile) -> str:
    """The file of a profile, which ``load_profile`` reads back; numbers are rounded to five digits."""
    arrivals, sharing = profile.arrivals, profile.sharing
    table: dict[str, object] = {
        "schema": SCHEMA,
        **{name: getattr(profile, name) for name in ("name", "about", "source", "licence", "recorded")},
        "approximated": list(profile.approximated),
        "requests": profile.requests,
        "prompt_tokens": _rounded(profile.prompt.values),
        "output_tokens": _rounded(profile.output.values),
        "output_by_prompt": [_rounded(table.values) for table in profile.output_by_prompt],
    }
    if arrivals is not None:
        table["arrivals"] = {
            "rate_per_s": _rounded([arrivals.rate_per_s])[0],
            "span_s": _rounded([arrivals.span_s])[0],
            "gaps": _rounded(arrivals.gaps.values),
            "relative_rate": _rounded(arrivals.relative_rate),
        }
    if sharing is not None:
        table["prefixes"] = {
            "block_tokens": sharing.block_tokens,
            "share_of_requests": _rounded(sharing.share_of_requests),
            "shared_part": [_rounded(part.values) for part in sharing.shared_part],
            "distance": _rounded(sharing.distance.values),
        }
    return _wrapped(table)


def _rounded(values: Sequence[float]) -> list[float]:
    """Five significant digits, whole numbers as such."""
    short = [float(f"{value:.5g}") for value in values]
    return [int(value) if value == int(value) else value for value in short]


def _wrapped(table: Mapping[str, object]) -> str:
    """JSON with one line for each key and each row of numbers: readable, and short in a diff."""

    def text(value: object, indent: str) -> str:
        deeper = indent + "  "
        if isinstance(value, Mapping):
            inner = (f"{deeper}{json.dumps(name)}: {text(part, deeper)}" for name, part in value.items())
            return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
        if isinstance(value, list) and value and isinstance(value[0], list | str):
            return "[\n" + ",\n".join(f"{deeper}{text(part, deeper)}" for part in value) + f"\n{indent}]"
        return json.dumps(value, ensure_ascii=False)

    return text(table, "") + "\n"
