"""The limit ``max_tokens`` that each request of a workload carries.

A trace seldom says what limit its users set, and that limit decides every policy which reserves memory for
it. The rule ``workload.max_tokens`` is one of: ``"trace"`` the file's column, which must be there;
``"output"`` the true length; ``"model"`` whatever the model's length leaves; a number; ``"x1.5"`` that many
times the true length, rounded up. No rule means the column where it has a value, else the true length.
"""

from __future__ import annotations

from math import ceil, isfinite

from policies.core.errors import ConfigError, TraceError
from traces.workload.rows import TraceRow

MaxTokensRule = str | int | None
"""``"trace"``, ``"output"``, ``"model"``, ``"xF"``, a number of tokens, or None for the default."""


def check_rule(rule: object, where: str = "workload.max_tokens") -> MaxTokensRule:
    """``rule`` itself if it is one; raises ConfigError otherwise."""
    if rule is None or rule in ("trace", "output", "model"):
        return rule
    if isinstance(rule, int) and not isinstance(rule, bool) and rule >= 1:
        return rule
    if isinstance(rule, str) and _factor(rule) is not None:
        return rule
    raise ConfigError(
        f"{where} = {rule!r}: give 'trace', 'output', 'model', a whole number of at least 1, "
        "or 'x' and a factor such as 'x1.5'"
    )


def resolve_max_tokens(rule: MaxTokensRule, row: TraceRow, max_model_len: int) -> int:
    """The limit of one row under ``rule``, at least 1.

    Only ``"model"`` looks at ``max_model_len``; where the prompt and the limit exceed the model's length
    together, the policy cuts the answer. Raises TraceError when the rule is ``"trace"`` and the row has no
    value.
    """
    if rule is None:
        return row.output_tokens if row.max_tokens is None else row.max_tokens
    if rule == "output":
        return row.output_tokens
    if rule == "model":
        return max(1, max_model_len - row.prompt_tokens)
    if rule == "trace":
        if row.max_tokens is None:
            raise TraceError(
                "workload.max_tokens = 'trace', but a row has no max_tokens; use 'output' or a number"
            )
        return row.max_tokens
    if isinstance(rule, int):
        return rule
    # Rounded first, or 1.1 x 10 = 11.000000000000002 would give 12.
    return max(1, ceil(round(float(rule[1:]) * row.output_tokens, 6)))


def _factor(rule: str) -> float | None:
    """F of ``"xF"``, or None where there is no such positive number."""
    try:
        factor = float(rule[1:])
    except ValueError:
        return None
    return factor if rule[0] == "x" and isfinite(factor) and factor > 0 else None
