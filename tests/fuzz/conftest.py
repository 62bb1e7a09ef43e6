"""Skips this folder unless it is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the long tests under BATCHSCOPE_FUZZ=1 only."""
    if os.environ.get("BATCHSCOPE_FUZZ") != "1":
        skip = pytest.mark.skip(reason="long; run `make fuzz`")
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(skip)
