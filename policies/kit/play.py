"""Plays scenarios on a policy under supervision, stepping and jumping, and keeps what came of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from policies.core.errors import BatchscopeError, UserError
from policies.core.plan import StepPlan
from policies.core.protocols import Policy
from policies.custom import file_of, line_of
from policies.kit.checked import CheckedPolicy
from policies.kit.drive import Log, ScriptRun
from policies.kit.rules import BrokenPolicy, Rule, RuleBroken
from policies.kit.scenarios import Scenario
from policies.kit.script import Guesses, Item, Limits

Build = Callable[[Limits], Policy]
"""Makes the policy, anew each time, for limits and memory of that size."""

NUM_JUMPING = 2
"""Runs of each scenario that jump, each cutting the quiet runs at other places."""


_CHUNKED_TOKENS = 20


class Broken(NamedTuple):
    """``rule`` was broken in ``step`` of a scenario: ``said`` says how. ``jumps`` is the seed of a run that jumped,
    None of one that stepped."""

    rule: Rule
    step: int
    said: str
    scenario: Scenario
    jumps: int | None = None

    def in_words(self) -> str:
        """One line: where, and what."""
        return f"step {self.step} of '{self.scenario.name}' ({self.scenario.words}): {self.said}"


class Kit:
    """A policy and what came of the scenarios on it; each is played once.

    ``build`` makes the policy; ``deliver_at_batch_end`` for one whose rows hold their slots until the batch ends;
    ``chunked`` for one that splits prompts: its token budget is then smaller than a long prompt.
    """

    def __init__(self, build: Build, *, deliver_at_batch_end: bool = False, chunked: bool = False) -> None:
        self._build, self._at_batch_end, self._chunked = build, deliver_at_batch_end, chunked
        self._stepped: dict[Scenario, Log | Broken] = {}
        self._jumped: dict[Scenario, Broken | None] = {}

    def play(self, scenario: Scenario, jumps: int | None = None) -> Log | Broken:
        """Play it anew, stepping or with the jumps of that seed."""
        if self._chunked:
            scenario = scenario._replace(limits=scenario.limits._replace(max_num_batched_tokens=_CHUNKED_TOKENS))
        limits = scenario.limits
        run = LimitedRun(
            self.new(limits._replace(services=Guesses(scenario.items))),
            scenario.items,
            limits,
            deliver_at_batch_end=self._at_batch_end,
            chooser=None if jumps is None else Random(jumps),
        )
        try:
            return run.run()
        except BrokenPolicy as error:
            return Broken(error.rule, error.step, error.said, scenario, jumps)
        except RuleBroken as error:
            return Broken(error.rule, run.time, str(error), scenario, jumps)

    def new(self, limits: Limits) -> CheckedPolicy:
        """A new policy under supervision; UserError if it cannot be built or is none."""
        try:
            policy: object = self._build(limits)
        except BatchscopeError:
            raise
        except (Exception, SystemExit) as error:
            said = f"the policy cannot be built for {limits.in_words()}: {type(error).__name__}: {error}"
            raise UserError(f"{said} ({line_of(error, '')})") from error
        if not isinstance(policy, Policy):
            raise UserError(f"build returns {policy!r}; return a policy for the limits that it is given")
        if policy.max_in_flight != 1:
            raise UserError(f"a policy that makes {policy.max_in_flight} plans ahead cannot be checked by this kit")
        return CheckedPolicy(policy, _address(policy))

    def stepped(self, scenario: Scenario) -> Log | Broken:
        """What came of it, step by step."""
        if scenario not in self._stepped:
            self._stepped[scenario] = self.play(scenario)
        return self._stepped[scenario]

    def jumped(self, scenario: Scenario) -> Broken | None:
        """What differs, by rule HORIZON, where quiet steps are jumped over; None if nothing does, or if the scenario
        cannot be judged because it breaks another rule step by step."""
        if scenario not in self._jumped:
            stepped = self.stepped(scenario)
            self._jumped[scenario] = None if isinstance(stepped, Broken) else self._jump(scenario, stepped)
        return self._jumped[scenario]

    def _jump(self, scenario: Scenario, stepped: Log) -> Broken | None:
        for seed in range(NUM_JUMPING):
            jumped = self.play(scenario, seed)
            if isinstance(jumped, Broken):
                difference: tuple[int, str] | None = jumped.step, jumped.said
            else:
                difference = first_difference(stepped, jumped)
            if difference is not None:
                if any(self.play(scenario) != stepped for _ in range(4)):
                    return None  # two stepped runs differ, too: the check 'deterministic' says so
                step, said = difference
                return Broken(Rule.HORIZON, step, f"after jumps that horizon allowed, {said}", scenario, seed)
        return None

    def broken(self, rule: Rule, scenarios: Sequence[Scenario]) -> Broken | None:
        """The first scenario that breaks a rule."""
        for scenario in scenarios:
            for found in (self.stepped(scenario), self.jumped(scenario) if rule is Rule.HORIZON else None):
                if isinstance(found, Broken) and found.rule is rule:
                    return found
        return None

    def smallest(self, broken: Broken) -> Broken:
        """The same rule broken by as few requests as can be found by leaving out one after the other."""
        found = broken
        for number in reversed(range(len(broken.scenario.items))):
            fewer = _without(found.scenario.items, number)
            if fewer:
                again = self._again(found.scenario._replace(items=fewer), broken)
                found = again or found
        return found

    def _again(self, scenario: Scenario, broken: Broken) -> Broken | None:
        stepped = self.play(scenario)
        if isinstance(stepped, Broken):
            return stepped if stepped.rule is broken.rule else None
        jumped = self._jump(scenario, stepped) if broken.jumps is not None else None
        return jumped if jumped is not None and jumped.rule is broken.rule else None


class LimitedRun(ScriptRun):
    """Asks for the limits that every policy has, and ends where there is no progress."""

    def __init__(
        self,
        policy: CheckedPolicy,
        items: Sequence[Item],
        limits: Limits,
        *,
        deliver_at_batch_end: bool,
        chooser: Random | None,
    ) -> None:
        super().__init__(
            policy,
            items,
            max_model_len=limits.max_model_len,
            deliver_at_batch_end=deliver_at_batch_end,
            chooser=chooser,
        )
        self._limits = limits
        self._has_budget = getattr(policy.policy, "max_num_batched_tokens", None) is not None
        self.max_steps = 500 + max(item.step for item in items) + 10 * sum(
            item.prompt_tokens + item.output_tokens for item in items
        )

    def check_plan(self, plan: StepPlan) -> None:
        """Rows within max_num_seqs, tokens within the budget of a policy that has one."""
        super().check_plan(plan)
        limits, rows = self._limits, len(self.mirror.decodes()) + len(plan.chunks)
        if rows > limits.max_num_seqs:
            raise RuleBroken(Rule.SEQS, f"the plan has {rows} rows, more than max_num_seqs = {limits.max_num_seqs}")
        most = limits.max_num_batched_tokens
        if self._has_budget and plan.num_tokens > most:
            said = f"the plan has {plan.num_tokens} tokens, more than max_num_batched_tokens = {most}"
            raise RuleBroken(Rule.BUDGET, said)


def first_difference(stepped: Log, jumped: Log) -> tuple[int, str] | None:
    """The step at which the record of a run that jumped parts from the stepped one, and how; None if it does not."""
    for time, seen in jumped.seen.items():
        old_seen = stepped.seen.get(time)
        if old_seen is None:
            return time, "a plan is asked for at a time at which the stepped run rests"
        for name, new, old in zip(seen._fields, seen, old_seen, strict=True):
            if new != old:
                what = "the order of the free blocks is not that" if name == "free" else f"{name}: {new}, not {old} as"
                return time, f"{what} of the stepped run"
    for start, (steps, grants) in jumped.jumps.items():
        planned = [grant for step in range(steps) for grant in stepped.grants.get(start + step, ())]
        if list(grants) != planned:
            return start, f"skip({steps}) grants {list(grants)}, the stepped run {planned}"
    for name in ("ends", "tokens", "started"):
        old, new = getattr(stepped, name), getattr(jumped, name)
        for request_id in old:
            if old[request_id] != new.get(request_id):
                said = f"{name} of request {request_id} are {new.get(request_id)}, of the stepped run {old[request_id]}"
                return 0, said
    return None


def _without(items: Sequence[Item], number: int) -> tuple[Item, ...]:
    """The items without one of them and those that come after it has ended."""
    gone = {number}
    for place, item in enumerate(items):
        if item.waits_for in gone:
            gone.add(place)
    kept = [place for place in range(len(items)) if place not in gone]
    places = {old: new for new, old in enumerate(kept)}
    moved = []
    for item in (items[place] for place in kept):
        parent, after = (None if old is None else places[old] for old in (item.parent, item.after))
        moved.append(item._replace(parent=parent, after=after))
    return tuple(moved)


def _address(policy: Policy) -> str:
    """``FILE.py:CLASS``, as a user names it."""
    return f"{file_of(type(policy))}:{type(policy).__name__}"
