"""Fifty random runs of each kind for every policy over a pool of single tokens, with ids and without."""

from __future__ import annotations

import pytest

from tests.test_unnumbered import COUNTED, counting_changes_nothing
from tests.world_cases import KINDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COUNTED)
def test_counting_changes_no_decision(name: str, kind: str) -> None:
    for seed in range(1, 51):
        counting_changes_nothing(name, kind, seed)
