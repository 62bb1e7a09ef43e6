"""What the methods of a policy return, held against the types that their interface states.

A class from a file is not compiled and need not be type-checked: a plan with a field of another kind would break the
simulation or the record later, where nobody could say whose fault it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from policies.core.plan import BatchRow, Chunk, Decode, Finish, Horizon, Idle, Load, Queues, StepPlan, Transfer
from policies.core.protocols import Counts, Id, Ids
from policies.core.unnumbered import Unnumbered
from policies.kit.rules import Rule, RuleBroken

LIMITS = ("arrivals", "max_num_seqs", "token_budget", "kv_blocks", "batch", "swapped")
"""Values of ``StepPlan.limited_by``."""

ENDS = ("kv_capacity", "prompt_too_long", "over_length", "overloaded")
"""Reasons for which a policy may end a request by itself: those that the summary counts as failed or rejected."""

_MOST = 1 << 53
"""The record keeps counts in 64 bits, the costs in floating point."""

_SHOWN = 60
"""Characters of a wrong value in a message."""


class _Form(NamedTuple):
    """``words`` say what is expected; ``fits`` tells whether a value is."""

    words: str
    fits: Callable[[object], bool]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_blocks(value: object) -> bool:
    return isinstance(value, Unnumbered) or (isinstance(value, tuple | list) and all(map(_is_count, value)))


def _is_grant(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and _is_count(value[0]) and _is_blocks(value[1])


def _is_chunk(value: object) -> bool:
    return isinstance(value, Chunk) and _are_numbers_and_emits(value)


def _are_numbers_and_emits(fields: tuple[object, ...]) -> bool:
    first, second, third, emits = fields
    if type(emits) is bool and type(first) is type(second) is type(third) is int:  # each row of each step is one
        return True
    return isinstance(emits, bool) and _is_whole(first) and _is_whole(second) and _is_whole(third)


def _is_whole(value: object) -> bool:
    return type(value) is int and -_MOST <= value <= _MOST


def _is_finish(value: object) -> bool:
    return isinstance(value, Finish) and _are_finish(value)


def _are_finish(fields: tuple[object, ...]) -> bool:
    request_id, reason, num_output_tokens = fields
    return _is_count(request_id) and isinstance(reason, str) and _is_whole(num_output_tokens)


def _is_preemption(value: object) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return _is_count(value[0]) and value[1] in ("recompute", "swap")


def _is_transfer(value: object) -> bool:
    if not isinstance(value, Transfer) or value.kind not in ("out", "in"):
        return False
    return _is_count(value.key) and _is_count(value.id) and _is_blocks(value.src) and _is_blocks(value.dst)


def _is_remap(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and _is_count(value[1]) and _is_grant((value[0], value[2]))


def _is_copy(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_count, value))


def _is_row(value: object) -> bool:
    return isinstance(value, BatchRow) and _are_numbers_and_emits(value)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_decode(value: object) -> bool:
    return isinstance(value, Decode) or (isinstance(value, tuple) and all(map(_is_count, value)))


def _each(words: str, fits: Callable[[object], bool]) -> _Form:
    """A sequence, all of whose items fit."""
    return _Form(
        f"a tuple of {words}",
        lambda value: value == () or (isinstance(value, Sequence) and _are(fits, value)),
    )


def _are(fits: Callable[[object], bool], items: Sequence[object]) -> bool:
    return not isinstance(items, str) and all(map(fits, items))


_COUNT = _Form("a whole number of at least 0", _is_count)
_IDS = _each("request ids", _is_count)
_GRANTS = _each("(request id, blocks), the blocks as kv.open and kv.extend return them", _is_grant)
_FINISHES = _each("Finish(id, reason, num_output_tokens)", _is_finish)
_ROWS = _each("BatchRow(id, num_tokens, context, emits)", _is_row)

_PLAN: Mapping[str, _Form] = {
    "step": _COUNT,
    "num_seqs": _Form("a whole number", _is_whole),
    "num_tokens": _Form("a whole number", _is_whole),
    "sum_context": _Form("a whole number", _is_whole),
    "max_context": _Form("a whole number", _is_whole),
    "decode": _Form("Decode.ALL, Decode.NONE or a tuple of request ids", _is_decode),
    "chunks": _each("Chunk(id, start, num_tokens, emits)", _is_chunk),
    "joins": _GRANTS,
    "grants": _GRANTS,
    "leaves": _IDS,
    "preempted": _each("(request id, 'recompute' or 'swap')", _is_preemption),
    "rejected": _FINISHES,
    "transfers": _each("what kv.swap_out and kv.swap_in return", _is_transfer),
    "copies": _each("(block, block)", _is_copy),
    "limited_by": _Form(f"one of {', '.join(LIMITS)}", lambda value: isinstance(value, str) and value in LIMITS),
    "lane": _COUNT,
    "remaps": _each("(request id, position, blocks)", _is_remap),
}

_IDLE: Mapping[str, _Form] = {
    "reason": _Form("a text, as 'no_requests' or 'blocked'", lambda value: isinstance(value, str) and value != ""),
    "wake_at_s": _Form("a time in seconds or None", lambda value: value is None or _is_time(value)),
    "leaves": _IDS,
    "rejected": _FINISHES,
}

_HORIZON: Mapping[str, _Form] = {
    "steps": _COUNT,
    "arrivals_matter": _Form("True or False", lambda value: isinstance(value, bool)),
}

_LOAD: Mapping[str, _Form] = {
    name: _each("counts", _is_count) if name == "residues" else _COUNT for name in Load._fields
}

_QUEUES: Mapping[str, _Form] = dict.fromkeys(Queues._fields, _IDS)


def check_plan(plan: StepPlan) -> None:
    """RuleBroken if a field is not of its kind."""
    _check_fields("the plan", plan, _PLAN)


def check_idle(idle: Idle) -> None:
    """RuleBroken if a field is not of its kind."""
    _check_fields("Idle", idle, _IDLE)


def check_horizon(horizon: object) -> None:
    """RuleBroken unless it is a Horizon."""
    _check_kind("horizon", horizon, Horizon, "Horizon(0, True) if unsure")
    _check_fields("Horizon", horizon, _HORIZON)


def check_load(load: object) -> None:
    """RuleBroken unless it is a Load."""
    _check_kind("load", load, Load, "Load(...), or leave load to the base class")
    _check_fields("Load", load, _LOAD)


def check_queues(queues: object) -> None:
    """RuleBroken unless it is a Queues."""
    _check_kind("queues", queues, Queues, "Queues(waiting, running, swapped), or leave queues to the base class")
    _check_fields("Queues", queues, _QUEUES)


def check_order(rows: object) -> None:
    """RuleBroken unless these are rows."""
    _check_value("batch_order", rows, _ROWS)


def check_grants(grants: object) -> None:
    """RuleBroken unless these are what ``skip`` returns."""
    _check_value("skip", grants, _GRANTS)


def check_produced(num_tokens: object) -> None:
    """RuleBroken unless this is what ``on_abort`` returns."""
    _check_value("on_abort", num_tokens, _Form("the number of output tokens the request had produced", _is_whole))


def check_refusal(reason: object) -> None:
    """RuleBroken unless this is what ``refusal`` returns."""
    known = _Form(f"None, or one of {', '.join(ENDS)}", lambda value: value is None or value in ENDS)
    _check_value("refusal", reason, known)


def check_details(method: str, details: object) -> None:
    """RuleBroken unless these fields can stand in a line of a decision log."""
    _check_value(method, details, _Form("fields for a line of the decision log by name", _is_details))


def _is_details(value: object) -> bool:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return False
    try:
        json.dumps([item for item in value.values() if not isinstance(item, Ids | Id | Counts)], allow_nan=False)
    except (TypeError, ValueError):
        return False
    return value.keys().isdisjoint(("type", "t", "arrived", "sched"))


def _check_kind(method: str, value: object, kind: type, remedy: str) -> None:
    if not isinstance(value, kind):
        raise RuleBroken(Rule.CODE, f"{method} returned {shown(value)}; return {remedy}")


def _check_value(method: str, value: object, form: _Form) -> None:
    if not _fits(form, value):
        raise RuleBroken(Rule.CODE, f"{method} returned {shown(value)}; return {form.words}")


def _check_fields(what: str, value: object, forms: Mapping[str, _Form]) -> None:
    for name, form in forms.items():
        field = getattr(value, name)
        if not _fits(form, field):
            raise RuleBroken(Rule.CODE, f"{what} has {name} = {shown(field)}; give {form.words}")


def _fits(form: _Form, value: object) -> bool:
    try:
        return form.fits(value)
    except TypeError:  # of what cannot be hashed or compared
        return False


def shown(value: object) -> str:
    """A wrong value in a message: itself if that is short, else its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value) if value is None or isinstance(value, int | float | str | tuple | list | dict) else ""
    return text if text and len(text) <= _SHOWN else f"a {type(value).__name__}"
