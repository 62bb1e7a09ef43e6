"""Where runs go when nobody says: ``runs/PRESET-N`` below the current folder."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from sim.config import RunConfig

RUNS = Path("runs")


def next_folder(config: RunConfig) -> Path:
    """The first folder of that pattern that does not exist yet; nothing is created."""
    name = config.engine.preset
    if config.engine.policy is not None:
        name = config.engine.policy.rpartition(":")[2]
    return next(folder for number in count(1) if not (folder := RUNS / f"{name}-{number}").exists())
