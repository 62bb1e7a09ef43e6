"""The simulated world and the command line.

``from sim import simulate`` runs one configuration, ``sweep`` many that differ in some keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.api import simulate
    from sim.explore.sweep import sweep

__all__ = ["simulate", "sweep"]

_HOMES = {"simulate": "sim.api", "sweep": "sim.explore.sweep"}


def __getattr__(name: str) -> object:
    """Load a function on first use, so that ``import sim`` stays free of SimPy and numpy."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
