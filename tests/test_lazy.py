"""What a run does not import: time that every call of the command line would pay."""

from __future__ import annotations

import subprocess
import sys

WORLD_FIRST = """
import sys
import sim.world.world
print("importlib.metadata" in sys.modules, "hashlib" in sys.modules)
import simpy
import simpy.core
print(simpy.Environment is simpy.core.Environment, issubclass(sim.world.clock.Clock, simpy.Environment))
print(simpy.Store.__name__, hasattr(simpy, "nothing"), type(simpy).__name__)
"""

SIMPY_FIRST = """
import simpy
import sim.world.world
print(simpy is sys.modules["simpy"], issubclass(sim.world.clock.Clock, simpy.Environment))
"""


def _lines(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_world_takes_simpy_without_its_version_and_leaves_it_whole() -> None:
    assert _lines(WORLD_FIRST) == ["False False", "True True", "Store False module"]


def test_simpy_may_be_there_already() -> None:
    assert _lines(SIMPY_FIRST) == ["True True"]
