"""The simulated world and the command line. ``from sim import simulate`` runs one configuration; ``diagnose`` says what
limits a run, and what helps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.api import simulate
    from sim.explore.diagnose import diagnose

__all__ = ["diagnose", "simulate"]

_PLACES = {"diagnose": "sim.explore.diagnose", "simulate": "sim.api"}


def __getattr__(name: str) -> object:
    """Load a function on first use, so that ``import sim`` stays free of SimPy and numpy."""
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
