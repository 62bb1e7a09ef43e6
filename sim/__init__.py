"""The simulated world and the command line.

``from sim import simulate`` runs one configuration, ``sweep`` many that differ in some keys; ``capacity`` finds the
most load that keeps stated limits, ``diagnose`` says what limits a run and what helps, ``claims`` audits headline
claims about continuous batching.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.api import simulate
    from sim.explore.capacity import capacity
    from sim.explore.claims import claims
    from sim.explore.diagnose import diagnose
    from sim.explore.sweep import sweep

__all__ = ["capacity", "claims", "diagnose", "simulate", "sweep"]

_HOMES = {
    "capacity": "sim.explore.capacity",
    "claims": "sim.explore.claims",
    "diagnose": "sim.explore.diagnose",
    "simulate": "sim.api",
    "sweep": "sim.explore.sweep",
}


def __getattr__(name: str) -> object:
    """Load a function on first use, so that ``import sim`` stays free of SimPy and numpy."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
