"""Runs the set-ups of claims that no model or card decides on the real executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrate.execute import execute
from policies.core.errors import RunError

MODEL = "tiny"
"""Counts of slots and steps are those of any model; this one runs on any CPU."""


def executed(tables: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
    """``summary.json`` of a configuration that is run on the executor, with the smallest model. Raises a RunError where
    it does not complete, and a UserError where torch is missing."""
    result = execute({**tables, "model": {"name": MODEL}})
    if result.exit_code:
        raise RunError(f"an executed run of the audit did not complete ({result.status}): {result.message}")
    return result.summary
