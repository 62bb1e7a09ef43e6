"""The cited measurements that travel with the project, and the band in which each must stay.

``anchors.jsonl`` holds cases in the schema of docs/validate.md, a figure each, with ``band``: the largest absolute
error that a change may leave. Tests fail on a row beyond it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from calibrate.validation.cases import read_cases
from calibrate.validation.compare import Row, rows_of
from calibrate.validation.shipped import recipe_of

ANCHORS_FILE = Path(__file__).with_name("anchors.jsonl")


class Anchor(NamedTuple):
    """A row and its band."""

    row: Row
    band: float

    @property
    def is_within(self) -> bool:
        """Whether the error is inside the band."""
        return abs(self.row.error) <= self.band


def anchors() -> list[Anchor]:
    """All anchors, each simulated under the recipe of its engine."""
    bands = {record["id"]: float(record["band"]) for record in map(json.loads, _lines())}
    found = []
    for case in read_cases(ANCHORS_FILE):
        for row in rows_of(case, recipe_of(case), vary_pool=False):
            found.append(Anchor(row, bands[case.id]))
    return found


def _lines() -> list[str]:
    return ANCHORS_FILE.read_text(encoding="utf-8").splitlines()
