"""Every error this project raises on purpose.

    BatchscopeError
    +-- UserError            exit code 2: what, where, what to do, in one line
    |   +-- ConfigError      an unknown or impossible parameter
    |   +-- TraceError       a file that cannot be read as a trace
    |   +-- CatalogError     an unknown model, card, preset or policy
    |   +-- CostFileError    a cost file that is missing, malformed, or physically impossible
    |   +-- LogError         a decision log that cannot be read
    |   +-- WeightsError     a model folder or file whose weights cannot be loaded
    +-- RunError             exit code 3: the run ended without completing
    |   +-- EngineDied       the real engine dies here (``faithful``)
    |   +-- Stuck            requests wait and nothing can ever run
    +-- ContractError        a policy or backend broke the contract: a bug, with the rule it broke
"""

from __future__ import annotations

from collections.abc import Iterable


class BatchscopeError(Exception):
    """Root of the tree."""

    exit_code = 1


class UserError(BatchscopeError):
    """The user's input is wrong; the message is one line that says what, where, and what to do."""

    exit_code = 2


class ConfigError(UserError):
    """An unknown or impossible parameter."""


class TraceError(UserError):
    """A trace file that cannot be read; names file and row."""


class CatalogError(UserError):
    """An unknown model, card, preset or policy."""


class CostFileError(UserError):
    """A cost file or profile that is missing, malformed, or faster than the hardware allows."""


class LogError(UserError):
    """A decision log that cannot be read; names file and line."""


class WeightsError(UserError):
    """A model's folder or file that cannot be loaded: missing, damaged, of another shape or architecture."""


class RunError(BatchscopeError):
    """The run ended without completing; what happened so far is recorded."""

    exit_code = 3
    status = "failed"


class EngineDied(RunError):
    """The real engine ends here, as its own code would (only with ``engine.faithful``)."""

    status = "engine_died"


class Stuck(RunError):
    """Requests wait, and nothing that could ever happen lets one of them run."""

    status = "stuck"


class ContractError(BatchscopeError):
    """A policy or backend broke a rule of the contract; always a bug in that policy or backend."""


def closest(word: str, choices: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the most similar choice, or an empty string."""
    import difflib  # only a wrong name pays for it

    match = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""
