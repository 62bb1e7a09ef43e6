"""Reads decision logs: ``.jsonl`` or ``.jsonl.gz``, one object a line, in the schema of the recorded logs."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import NamedTuple, TypeVar

from policies.core.errors import LogError
from policies.core.request import Request, RequestId, Segments, output_segment
from policies.json_text import parse_json

_T = TypeVar("_T")
Object = Mapping[str, object]

FIELDS_V1 = (
    *("sched", "tokens", "new", "resumed", "hits", "preempted", "new_blocks", "free_after_schedule"),
    *("finished", "waiting", "running", "free"),
)
"""Fields of a step of engine v1 that a replay must reproduce; physical block ids are among them."""

FIELDS_V0 = (
    *("sched", "tokens", "batched_tokens", "new", "resumed", "preempted", "swapped_out", "swapped_in"),
    *("ignored", "blocks_out", "blocks_in", "free_after_schedule", "cpu_free_after_schedule"),
    *("finished", "waiting", "running", "swapped", "free", "cpu_free"),
)
"""The same for engine v0, whose block ids are informative."""

FIELDS_VIDUR = (
    *("sched", "tokens", "new", "resumed", "preempted", "free_after_schedule"),
    *("finished", "waiting", "running", "free"),
)
"""The same for Vidur, which has no blocks of its own, only numbers of them."""

FIELDS_SARATHI = (*FIELDS_VIDUR, "ignored")
"""The same for Sarathi-Serve."""

FIELDS_SGLANG = (
    *("mode", "sched", "tokens", "new", "resumed", "preempted", "hits", "chunked", "free_after_schedule"),
    *("evictable_after_schedule", "new_token_ratio", "finished", "waiting", "running", "joining", "full"),
    *("free", "evictable"),
)
"""The same for SGLang, whose free slots do not count those that eviction would free."""

FIELDS_MII = (
    *("sched", "tokens", "new", "flushed", "finished", "planned", "preempted", "waiting", "free"),
)
"""The same for DeepSpeed-MII, which runs in each step what the one before planned."""

FIELDS_RAY = ("formed_us", "ids", "left", "start_us", "end_us")
"""Fields of a batch of Ray Serve."""

_FIELDS = {
    "v1": FIELDS_V1,
    "v0": FIELDS_V0,
    "sarathi-serve": FIELDS_SARATHI,
    "vidur": FIELDS_VIDUR,
    "sglang": FIELDS_SGLANG,
    "deepspeed-mii": FIELDS_MII,
    "ray-serve-batch": FIELDS_RAY,
}
_BATCHED = ("ray-serve-batch",)

END_FIELDS = ("preemptions", "swap_outs", "unfinished")
END_FIELDS_BATCHES = ("batches", "unfinished")
_END_DEFAULTS = {"swap_outs": 0}


class LoggedRequest(NamedTuple):
    """A request of a log under its number, with the output length it makes and the steps (of a batcher:
    microseconds) it comes and goes at."""

    request: Request
    arrival_step: int
    output_len: int
    abort_step: int | None


class DecisionLog(NamedTuple):
    """A log. ``names[i]`` is the name of request i; ``steps`` (or batches) and ``end`` are the lines as they are."""

    path: Path
    config: Object
    names: tuple[str, ...]
    requests: tuple[LoggedRequest, ...]
    steps: tuple[Object, ...]
    end: Object

    @property
    def name(self) -> str:
        """Name of the recorded scenario, or of the file."""
        scenario = self.config.get("scenario")
        return scenario if isinstance(scenario, str) else self.path.name.partition(".")[0]

    @property
    def fields(self) -> tuple[str, ...]:
        """Step fields to compare."""
        return _FIELDS[_family(self.config)]

    @property
    def is_batched(self) -> bool:
        """True for the log of a request-level batcher, which has batches in place of steps."""
        return _is_batched(self.config)

    @property
    def stopped_at(self) -> float:
        """Number of the step that would have come next where the run was stopped; infinity where it ended."""
        last = max((_value(step, "t", int, str(self.path)) for step in self.steps), default=-1)
        return last + 1 if self.end["stopped"] else inf

    def setting(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        """A setting of the config line; LogError if it is missing (without default) or of another type."""
        return _value(self.config, key, kind, f"{self.path}:1", default)


def read_log(path: Path) -> DecisionLog:
    """Read a log; LogError names the file and line of what is wrong."""
    config: Object | None = None
    requests: list[tuple[str, Object]] = []
    steps: list[Object] = []
    end: Object | None = None
    for where, line in _objects(path):
        kind = line.get("type")
        if (config is None) != (kind == "config"):
            raise LogError(f"{where}: the first line, and no other, must be of type 'config', not '{kind}'")
        if kind == "config":
            config = _checked_config(line, where)
        elif kind == "request":
            requests.append((where, line))
        elif kind == _step_type(config):
            steps.append(_checked_step(line, where, config))
        elif kind == "end":
            fields = END_FIELDS_BATCHES if _is_batched(config) else END_FIELDS
            counts = {key: _value(line, key, int, where, _END_DEFAULTS.get(key)) for key in fields}
            end = {**counts, "stopped": _value(line, "stopped", bool, where, False)}
        else:
            known = f"request, {_step_type(config)} or end"
            raise LogError(f"{where}: unknown line type '{kind}'; expected {known}")
    if config is None or end is None:
        raise LogError(f"{path}: no {'config' if config is None else 'end'} line; the log is cut off")
    numbers: dict[str, RequestId] = {}
    for where, line in requests:
        name = _value(line, "id", str, where)
        if name in numbers:
            raise LogError(f"{where}: request '{name}' is listed twice")
        numbers[name] = len(numbers)
    parse = _timed_request if _is_batched(config) else _request
    parsed = tuple(parse(line, where, numbers) for where, line in requests)
    for (where, _), (a, b) in zip(requests[1:], pairwise(parsed), strict=True):
        if b.arrival_step < a.arrival_step:
            key = "arrival_us" if _is_batched(config) else "arrival_step"
            raise LogError(f"{where}: {key} {b.arrival_step} follows {a.arrival_step}; sort the requests")
    return DecisionLog(path, config, tuple(numbers), parsed, tuple(steps), end)


def _objects(path: Path) -> Iterator[tuple[str, Object]]:
    """(place, object) of each line."""
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as stream
        ):
            for number, text in enumerate(stream, start=1):
                where = f"{path}:{number}"
                try:
                    line = parse_json(text)
                except ValueError as error:
                    raise LogError(f"{where}: not a JSON object ({error}); give a decision log") from None
                if not isinstance(line, dict):
                    raise LogError(f"{where}: a JSON object is expected, not {type(line).__name__}")
                yield where, line
    except gzip.BadGzipFile:
        raise LogError(f"{path}: not a gzip file, as its name says; rename it or fetch it again") from None
    except OSError as error:
        raise LogError(f"{path}: cannot be read ({error.strerror}); give the path of a decision log") from None
    except (EOFError, zlib.error):
        raise LogError(f"{path}: the gzip file is cut off or damaged; fetch it again") from None
    except UnicodeDecodeError:
        remedy = "give a decision log, JSON lines, or gzip with a name that ends in .gz"
        raise LogError(f"{path}: not a text file in UTF-8; {remedy}") from None


def _value(line: Object, key: str, kind: type[_T], where: str, default: _T | None = None) -> _T:
    value = line.get(key, default)
    if isinstance(value, bool) != (kind is bool):
        value = None if not isinstance(value, kind) or isinstance(value, bool) else value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        value = float(value) if -_LARGEST <= value <= _LARGEST else None  # no infinity, and nothing that is no number
    if not isinstance(value, kind):
        found = f"{line[key]!r}" if key in line else "missing"
        raise LogError(f"{where}: '{key}' must be {_KINDS[kind]}, but is {found}")
    return value


_LARGEST = 1e300

_KINDS = {int: "an integer", str: "a string", bool: "true or false", float: "a number", list: "a list"}


def _family(config: Object) -> str:
    """What decides the fields of a step: the system where it is one of those that have one engine."""
    system = config.get("system")
    return str(system if system in _FIELDS else config["engine"])


def _checked_config(line: Object, where: str) -> Object:
    if _value(line, "system", str, where) not in _FIELDS:
        engine = _value(line, "engine", str, where)
        if engine not in ("v0", "v1"):
            raise LogError(f"{where}: unknown engine '{engine}'; known are {', '.join(_FIELDS)}")
    return line


def _is_batched(config: Object | None) -> bool:
    return config is not None and config.get("system") in _BATCHED


def _step_type(config: Object | None) -> str:
    return "batch" if _is_batched(config) else "step"


def _checked_step(line: Object, where: str, config: Object | None) -> Object:
    if _is_batched(config):
        _value(line, "k", int, where)
    else:
        _value(line, "t", int, where)
        _value(line, "arrived", list, where)
    family = "" if config is None else _family(config)
    for field in _FIELDS.get(family, ()):
        if "error" not in line and field not in line:
            raise LogError(f"{where}: a {_step_type(config)} of {family} needs the field '{field}'")
    return line


def _request(line: Object, where: str, numbers: Mapping[str, RequestId]) -> LoggedRequest:
    name = _value(line, "id", str, where)
    step = _value(line, "arrival_step", int, where)
    prompt, output = _value(line, "prompt_len", int, where), _value(line, "output_len", int, where)
    if step < 0 or prompt < 1 or output < 1:
        raise LogError(f"{where}: arrival_step must be >= 0, prompt_len and output_len >= 1")
    segments = _segments(_value(line, "segments", list, where, []), where, numbers)
    if segments and sum(length for _, length in segments) != prompt:
        raise LogError(f"{where}: the segments of '{name}' do not add up to its prompt_len {prompt}")
    priority = _value(line, "priority", int, where, 0)
    request = Request(numbers[name], float(step), prompt, output, priority, segments=segments)
    abort_step = _value(line, "abort_step", int, where) if "abort_step" in line else None
    return LoggedRequest(request, step, output, abort_step)


def _timed_request(line: Object, where: str, numbers: Mapping[str, RequestId]) -> LoggedRequest:
    """A request of a batcher: it has a time in microseconds and no tokens; one of each stands for them."""
    arrival_us = _value(line, "arrival_us", int, where)
    if arrival_us < 0:
        raise LogError(f"{where}: arrival_us must be >= 0")
    request = Request(numbers[_value(line, "id", str, where)], arrival_us / 1e6, 1, 1)
    return LoggedRequest(request, arrival_us, 1, None)


def _segments(items: list[object], where: str, numbers: Mapping[str, RequestId]) -> Segments:
    """Segments with the output of request NAME under its number."""
    segments = []
    for item in items:
        if not isinstance(item, list) or len(item) != 2:
            raise LogError(f"{where}: a segment is [name, length], not {json.dumps(item)}")
        pair = {"name": item[0], "length": item[1]}
        key, length = _value(pair, "name", str, where), _value(pair, "length", int, where)
        kind, _, name = key.partition(":")
        if kind == "out":
            if name not in numbers:
                raise LogError(f"{where}: segment '{key}' names no request of this log")
            key = output_segment(numbers[name])
        segments.append((key, length))
    return tuple(segments)
