"""Runs the checks without pytest: one line each, and the first failure in plain words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.kit.checks import CHECKS, Check, CheckFailed
from policies.kit.play import Kit
from policies.kit.script import in_words


def run_checks(kit: Kit, echo: Callable[[str], object] = print, checks: Sequence[Check] = CHECKS) -> int:
    """Run the checks and echo a line for each, then what the first failure is and the fewest requests that show it.

    Returns the exit code, 1 if a check fails. UserError if the policy cannot be built.
    """
    width = max(len(check.name) for check in checks)
    first: tuple[Check, CheckFailed] | None = None
    num_failed = 0
    for check in checks:
        try:
            check.run(kit)
            state = "ok  "
        except CheckFailed as error:
            state = "FAIL"
            num_failed += 1
            first = first or (check, error)
        echo(f"{state}  {check.name:<{width}}  {check.words}")
    echo("")
    if first is None:
        echo(f"all {len(checks)} checks hold")
        return 0
    echo(f"{num_failed} of {len(checks)} checks fail; the first of them, {first[0].name}:")
    echo(f"  {first[1]}")
    _explain(kit, first[1], echo)
    return 1


def _explain(kit: Kit, error: CheckFailed, echo: Callable[[str], object]) -> None:
    """The smallest case, with its requests."""
    if error.broken is None:
        return
    smallest = kit.smallest(error.broken)
    scenario = smallest.scenario
    echo(f"  fewest requests that show it, with {scenario.limits.in_words()}:")
    for line in in_words(scenario.items).split("; "):
        echo(f"    {line}")
    echo(f"  there, in step {smallest.step}: {smallest.said}")
