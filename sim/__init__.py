"""The simulated world and the command line. ``from sim import simulate`` runs one configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.api import simulate

__all__ = ["simulate"]


def __getattr__(name: str) -> object:
    """Load ``simulate`` on first use, so that ``import sim`` stays free of SimPy and numpy."""
    if name == "simulate":
        from sim.api import simulate

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
