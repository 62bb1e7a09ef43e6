"""The checks of the kit: one for each rule, over all scenarios, and one for each thing that a user counts on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from policies.core.errors import UserError
from policies.core.request import Request
from policies.kit.drive import Log
from policies.kit.play import Broken, Kit
from policies.kit.rules import Rule
from policies.kit.scenarios import ABORTED, LONG_AMONG_SHORT, SCENARIOS, Scenario, random_scenario

_BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
_ALL = (*SCENARIOS, *LONG_AMONG_SHORT, ABORTED)
_UNSERVED = ("abort", "kv_capacity", "prompt_too_long")


class CheckFailed(Exception):
    """What went wrong, in words; ``broken`` says by which requests, where a rule was broken."""

    def __init__(self, said: str, broken: Broken | None = None) -> None:
        super().__init__(said)
        self.broken = broken


class Check(NamedTuple):
    """``run`` raises CheckFailed; ``words`` say what holds if it does not."""

    name: str
    words: str
    run: Callable[[Kit], None]


def _rule(rule: Rule) -> Check:
    def run(kit: Kit) -> None:
        broken = kit.broken(rule, _ALL)
        if broken is not None:
            raise CheckFailed(broken.in_words(), broken)

    return Check(rule.name.lower(), rule.value, run)


def _log(kit: Kit, scenario: Scenario) -> Log:
    log = kit.stepped(scenario)
    if isinstance(log, Broken):
        raise CheckFailed(log.in_words(), log)
    return log


def _unserved(log: Log) -> dict[int, str]:
    """Requests that ended without all their tokens, by reason."""
    return {key: finish.reason for key, (_, finish) in log.ends.items() if finish.reason in _UNSERVED}


def _everybody_is_served(scenario: Scenario, log: Log) -> None:
    for key, reason in _unserved(log).items():
        raise CheckFailed(f"'{scenario.name}' ({scenario.words}): request {key} ends with '{reason}'")


def _served(name: str, words: str) -> Check:
    scenario = _BY_NAME[name]
    return Check(name, words, lambda kit: _everybody_is_served(scenario, _log(kit, scenario)))


# -- more than that everybody is served ------------------------------------------------------------------------------


def _one_token(kit: Kit) -> None:
    scenario = _BY_NAME["one_token"]
    log = _log(kit, scenario)
    _everybody_is_served(scenario, log)
    for key, tokens in log.tokens.items():
        if len(tokens) != 1:
            raise CheckFailed(f"request {key} of one token makes {len(tokens)}")


def _too_long(kit: Kit) -> None:
    scenario = _BY_NAME["too_long"]
    longest, unserved = scenario.limits.max_model_len, _unserved(_log(kit, scenario))
    for key, item in enumerate(scenario.items):
        if (item.prompt_tokens > longest) != (key in unserved):
            ends = unserved.get(key, "is served")
            raise CheckFailed(f"a prompt of {item.prompt_tokens} tokens with max_model_len {longest}: {ends}")


def _outgrow(kit: Kit) -> None:
    scenario = _BY_NAME["outgrow"]
    unserved = _unserved(_log(kit, scenario))
    if unserved.keys() != {0, 1}:
        raise CheckFailed(
            f"'{scenario.name}': requests 0 and 1 need more than all blocks and must end with 'kv_capacity', the"
            f" others must be served; not served are {unserved or 'none'}"
        )


def _starvation(kit: Kit) -> None:
    for scenario in LONG_AMONG_SHORT:
        log = _log(kit, scenario)
        _everybody_is_served(scenario, log)
        key = max(range(len(scenario.items)), key=lambda number: scenario.items[number].prompt_tokens)
        later = [log.started[number] for number in range(key + 1, len(scenario.items))]
        if log.started[key] >= max(later):
            raise CheckFailed(
                f"'{scenario.name}' ({scenario.words}): request {key} starts in step {log.started[key]}, after the"
                f" {len(later)} short ones that came later; an endless stream starves it"
            )


def _abort_anywhere(kit: Kit) -> None:
    whole = _log(kit, ABORTED)
    for key, item in enumerate(ABORTED.items):
        for patience in range(0, whole.ends[key][0] - item.step + 1):
            items = [*ABORTED.items]
            items[key] = item._replace(patience=patience)
            _one_abort(kit, ABORTED._replace(items=tuple(items)), key)


def _one_abort(kit: Kit, scenario: Scenario, key: int) -> None:
    log = kit.play(scenario)
    if isinstance(log, Broken):
        patience = scenario.items[key].patience
        raise CheckFailed(f"request {key} aborted {patience} steps after it came: {log.in_words()}", log)
    for other, reason in _unserved(log).items():
        if other != key:
            raise CheckFailed(f"request {key} is aborted, and request {other} ends with '{reason}'")


def _impatient(kit: Kit) -> None:
    scenario = _BY_NAME["impatient"]
    for key, reason in _unserved(_log(kit, scenario)).items():
        if scenario.items[key].patience is None or reason != "abort":
            raise CheckFailed(f"'{scenario.name}': request {key} ends with '{reason}'")


def _deterministic(kit: Kit) -> None:
    """The global random generator, which differs from run to run, has no say."""
    state = random.getstate()
    try:
        for name in ("burst", "tight", "prefixes_tight"):
            logs = []
            for seed in (1, 2):
                random.seed(seed)
                logs.append(kit.play(_BY_NAME[name]))
            _same(logs[0], logs[1], f"two runs of '{name}' differ")
    finally:
        random.setstate(state)


def _alone_with_itself(kit: Kit) -> None:
    """An instance that was used and forgotten half-way leaves nothing behind."""
    scenario = _BY_NAME["tight"]
    first = kit.play(scenario)
    other = kit.new(scenario.limits)
    try:
        for number in range(9):
            other.on_arrival(Request(number, 0.0, 9, 9))
        other.schedule(0.0)
    except UserError as error:
        raise CheckFailed(str(error)) from error
    _same(first, kit.play(scenario), "the same scenario goes differently after another instance was used")


def _same(first: Log | Broken, second: Log | Broken, otherwise: str) -> None:
    for log in (first, second):
        if isinstance(log, Broken):
            raise CheckFailed(log.in_words(), log)
    if first != second:
        raise CheckFailed(f"{otherwise}; keep state in the instance, and ask no clock and no unseeded generator")


def _jumps(kit: Kit) -> None:
    for scenario in _ALL:
        broken = kit.jumped(scenario)
        if broken is not None:
            raise CheckFailed(broken.in_words(), broken)


def _random_prefixes(kit: Kit) -> None:
    for seed in range(100, 112):
        scenario = random_scenario(seed, caches=True)
        _log(kit, scenario)
        broken = kit.jumped(scenario)
        if broken is not None:
            raise CheckFailed(broken.in_words(), broken)


def _situations() -> tuple[Check, ...]:
    return (
        _served("alone", "a lone request is served"),
        Check("one_token", "requests for one token get one token", _one_token),
        _served("gap", "after a time without requests the next ones are served"),
        _served("burst", "30 requests at once are all served"),
        _served("closed_loop", "clients that wait for each answer are served"),
        _served("late", "requests that come while others decode are served"),
        _served("one_seq", "with max_num_seqs = 1 everybody is served"),
        _served("long_prompt", "a prompt of nearly max_model_len is served, and the short ones beside it"),
        Check("too_long", "prompts that the model cannot take end, and hold nobody up", _too_long),
        _served("length_limit", "requests end at max_tokens and at max_model_len"),
        _served("tight", "with a pool for two requests, eight end with all their tokens"),
        _served("full", "with a pool for one longest request and no free block left, everybody is served"),
        Check("outgrow", "a request that the whole pool cannot hold ends with kv_capacity", _outgrow),
        _served("prefixes", "requests that share prefixes are served"),
        _served("prefixes_tight", "requests that share prefixes are served from a small pool"),
        Check("random_prefixes", "so they are with turns, aborts and pools drawn at random", _random_prefixes),
        Check("no_starvation", "an endless stream of short requests does not starve a long one", _starvation),
        Check("impatient", "clients that go away change nothing for those that stay", _impatient),
        Check("abort_at_any_time", "a request may be aborted after any step of its life", _abort_anywhere),
        Check("deterministic", "the same requests are served in the same way", _deterministic),
        Check("instances", "instances share nothing", _alone_with_itself),
        Check("jumps", "runs that jump over quiet steps leave the same record as those that step", _jumps),
    )


CHECKS = (*map(_rule, Rule), *_situations())
"""All of them, those of the rules first."""
