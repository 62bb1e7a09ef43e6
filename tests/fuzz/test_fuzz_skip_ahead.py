"""Fifty random runs of each kind for every policy, with and without skip-ahead."""

from __future__ import annotations

import pytest

from tests.test_skip_ahead import EVERY, skipping_changes_nothing
from tests.world_cases import KINDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EVERY)
def test_skipping_ahead_changes_nothing(name: str, kind: str) -> None:
    for seed in range(1, 51):
        skipping_changes_nothing(name, kind, seed)
